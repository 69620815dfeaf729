"""Checks whether Redis has memory for another command: enough must be left to execute all that are accepted.

Strategy. An entry takes memory, and to execute it takes more before anything is freed: a claim, then a record that stays. A Redis
that was filled by accepted commands could not execute a single one of them. So submissions are refused while what is left is less
than that takes. Used memory is read now and then, since that costs more than appending does; until the answer is there the
last one counts, with what was accepted here since. What others accept meanwhile comes out of `SPARE`.

Workers may exceed ``maxmemory`` all the same (claims, outcomes, acknowledgements), for others may have filled it.
"""

import asyncio
from dataclasses import dataclass

from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.redis.client import RedisClient
from oncegate.cache.redis.scripts import MEMORY
from oncegate.cache.redis.streams.commands import run_script

EXECUTION_BYTES = 512
"""The size of an execution's record, with a small result: 331 bytes were measured."""
SUBMISSION_BYTES = 1024
"""The size of an entry without its body, and of its submission's record; an allocation may be a quarter larger than asked for."""
SPARE = 0.05
"""The share of ``maxmemory`` left for larger results, and for what is accepted between two samples."""
SAMPLE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class StreamMemory:
    """``used`` of ``most`` bytes (0: there is no limit, or Redis evicts), where a stream has so many ``entries``."""

    used: int
    most: int
    entries: int

    @property
    def reserved(self) -> int:
        """Bytes that have to be left for what is accepted."""
        return self.entries * EXECUTION_BYTES + int(self.most * SPARE)

    @property
    def suffices(self) -> bool:
        """Whether another command may be accepted."""
        return not self.most or self.used + self.reserved < self.most

    def after(self, size: int) -> "StreamMemory":
        """The memory used once a command with a body of ``size`` bytes is in the stream, and its submission recorded."""
        return StreamMemory(self.used + size * 5 // 4 + SUBMISSION_BYTES, self.most, self.entries + 1)


async def memory_of(client: RedisClient, stream: str) -> StreamMemory:
    """The memory where the stream under a Redis key is, and its length. Raises `CacheUnavailable`."""
    return StreamMemory(*await run_script(client, MEMORY, (stream,)))


class MemorySamples:
    """Samples of the memory where streams are, in the Redis of ``client``, taken at most every `SAMPLE_SECONDS`."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._samples: dict[str, tuple[float, StreamMemory]] = {}
        self._sampling: dict[str, asyncio.Task[None]] = {}

    async def suffice(self, key: str, size: int) -> bool:
        """Whether there is room for a command of ``size`` bytes in the stream under a Redis key, as far as that is known."""
        if key not in self._samples:
            await asyncio.shield(self._sampled(key))
        return self.suffices(key, size)

    def suffices(self, key: str, size: int) -> bool:
        """The same without waiting: ``False`` before the first sample, too."""
        known = self._samples.get(key)
        if known is None:
            return False
        taken, memory = known
        if asyncio.get_running_loop().time() - taken > SAMPLE_SECONDS:
            self._sampled(key)
        if memory.most and memory.suffices:
            self._samples[key] = taken, memory.after(size)
        return memory.suffices

    def _sampled(self, key: str) -> "asyncio.Task[None]":
        sampling = self._sampling.get(key)
        if sampling is None:
            sampling = self._sampling[key] = asyncio.create_task(self._sample(key))
            sampling.add_done_callback(lambda _: self._sampling.pop(key, None))
        return sampling

    async def _sample(self, key: str) -> None:
        try:
            memory = await memory_of(self._client, key)
        except CacheUnavailable:  # no answer, or this user may not see it: then appending shows whether there is room
            memory = StreamMemory(0, 0, 0)
        self._samples[key] = asyncio.get_running_loop().time(), memory
