"""A worker's consumer group: reads, takes over and acknowledges entries. One Redis command each, no policy.

What is pending under a worker's name is its to process; an entry's idle time shows others that the worker is gone. A live
one therefore refreshes all that it holds again and again (`Group.keep`).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oncegate.cache.redis.client import RedisClient
from oncegate.cache.redis.scripts import ACKNOWLEDGE, ACKNOWLEDGE_ALL, CREATE_GROUP, LEAVE
from oncegate.cache.redis.streams.commands import run_command, run_command_on, run_script
from oncegate.cache.redis.streams.stream import CommandStream, Fields, entries_of

log = logging.getLogger("oncegate.worker")

FIRST = b"0-0"
"""The cursor to begin with; Redis gives it back at the end, too."""
_AT_ONCE = 500
"""Entries named in one command."""
GONE_AFTER_MS = 24 * 3600 * 1000
"""A worker that holds nothing and was inactive for so long is removed from the group."""


@dataclass(frozen=True, slots=True)
class LetterLimits:
    """Limits on a stream's dead letters: how many, at least 1, and for how many ms each is kept."""

    most: int
    ttl_ms: int


class Group:
    """The worker called ``worker`` in the group ``name`` of ``stream``, whose dead letters it keeps within ``limits``.

    ``reading`` is the client that waits for new entries: one of its own, whose time-out is longer than `read` blocks. Raises
    `CacheUnavailable` for all that Redis or the way to it refuses, `GroupMissing` where the group has to be made first.
    """

    def __init__(
        self, stream: CommandStream, reading: RedisClient, name: str, worker: str, limits: LetterLimits
    ) -> None:
        self.stream = stream
        self._limits = limits
        self.name = name
        self.worker = worker
        self._reading = reading
        self._client = stream.client

    async def create(self) -> bool:
        """Make the group, and the stream with it, to be read from the first entry on. False: it was there already."""
        return bool(await run_script(self._client, CREATE_GROUP, (self.stream.key,), self.name))

    async def read(self, count: int, block_ms: int) -> list[tuple[bytes, Fields]]:
        """At most ``count`` entries that the group has not read, waiting for the first one for ``block_ms``."""
        own = ("GROUP", self.name, self.worker, "COUNT", count, "BLOCK", block_ms, "STREAMS")
        streams = await run_command_on(self._reading, self.stream.key, "XREADGROUP", *own, self.stream.key, ">")
        return [found for _, entries in streams or () for found in entries_of(entries)]

    async def take(self, entry: bytes) -> Fields | None:
        """The fields of a pending entry, ours from now on; ``None``: it is pending no longer."""
        found = await run_command(self._client, "XCLAIM", self.stream.key, self.name, self.worker, 0, entry)
        return dict(entries_of(found)).get(entry)

    async def keep(self, entries: Sequence[bytes]) -> None:
        """Reset the idle time of ``entries``, as far as they are pending."""
        for first in range(0, len(entries), _AT_ONCE):
            some = entries[first : first + _AT_ONCE]
            await run_command(self._client, "XCLAIM", self.stream.key, self.name, self.worker, 0, *some, "JUSTID")

    async def leave_to_others(self, waits_ms: Mapping[bytes, int], idle_ms: int) -> None:
        """Give up entries so that each is taken for abandoned (idle for ``idle_ms``) once its own time to wait is over."""
        own = (self.stream.key, self.name, self.worker)
        for entry, wait_ms in waits_ms.items():
            await run_command(self._client, "XCLAIM", *own, 0, entry, "IDLE", max(0, idle_ms - wait_ms), "JUSTID")

    async def abandoned(
        self, idle_ms: int, cursor: bytes, count: int
    ) -> tuple[bytes | None, list[tuple[bytes, Fields]]]:
        """The next cursor (``None``: those were all), and at most ``count`` entries idle for ``idle_ms``, ours from now on."""
        own = (self.name, self.worker, idle_ms, cursor, "COUNT", count)
        further, entries, *_ = await run_command(self._client, "XAUTOCLAIM", self.stream.key, *own)
        return None if further == FIRST else further, entries_of(entries)

    async def acknowledge(self, entries: Sequence[bytes]) -> int:
        """Acknowledge ``entries`` that were processed, a few hundred at most; how many of them nobody had acknowledged before."""
        return int(await run_script(self._client, ACKNOWLEDGE_ALL, (self.stream.key,), self.name, *entries))

    async def give_up(self, entry: bytes, death: Mapping[bytes, bytes], copy_of: str = "", since_ms: int = 0) -> bool:
        """Acknowledge ``entry``, which is given up, with a dead letter that describes its ``death``.

        ``copy_of`` is its command where another copy may have its letter already, and has got it at ``since_ms`` (Unix time) or
        later: then it gets none.

        False: it was acknowledged before, and nothing was written.
        """
        details = [part for pair in death.items() for part in pair]
        done, _ = await self._acknowledge(entry, copy_of, since_ms, *details)
        return bool(done)

    async def trim_letters(self) -> bool:
        """Take out dead letters that are too many or too old, a bounded number of them. False: there were none."""
        _, trimmed = await self._acknowledge(b"", "", 0)
        return trimmed > 0

    async def _acknowledge(self, entry: bytes, copy_of: str, since_ms: int, *details: bytes) -> tuple[int, int]:
        """Whether ``entry`` was pending, and how many dead letters were trimmed."""
        keys = (self.stream.key, self.stream.dead_key, self.stream.trimmed_key)
        limits = (self._limits.most, self._limits.ttl_ms)
        done, trimmed = await run_script(
            self._client, ACKNOWLEDGE, keys, self.name, entry, copy_of, since_ms, *limits, *details
        )
        if trimmed:
            log.warning(
                "%d dead letters of stream %s were too many or too old, and are gone", trimmed, self.stream.name
            )
        return done, trimmed

    async def leave(self) -> None:
        """Remove this worker from the group, unless something is pending under its name, and those that are long gone."""
        await self.strike_off(self.worker)

    async def strike_off(self, leaver: str = "") -> None:
        """Remove from the group workers that are long gone, and ``leaver``; none under whose name something is pending."""
        await run_script(self._client, LEAVE, (self.stream.key,), self.name, leaver, GONE_AFTER_MS)
