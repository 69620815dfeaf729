"""A worker's consumer group: reads, takes over and acknowledges entries. One Redis command each, no policy.

What is pending under a worker's name is its to process; an entry's idle time shows others that the worker is gone. A live
one therefore refreshes all that it holds again and again (`Group.keep`).
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, cast

from redis.exceptions import NoScriptError, ResponseError

from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.redis.streams.client import REDIS_ERRORS, Client
from oncegate.cache.redis.streams.stream import CommandStream

log = logging.getLogger("oncegate.worker")

Fields = dict[bytes, bytes]
_AT_ONCE = 500
"""Entries named in one command."""
GONE_AFTER_MS = 24 * 3600 * 1000
"""A worker that holds nothing and was inactive for so long is removed from the group."""


class GroupMissing(CacheUnavailable):
    """The stream or its group is not there: deleted, or Redis has lost its data. `Group.create` makes it anew."""


class StreamRefused(CacheUnavailable):
    """Redis answers, and refuses: it is out of memory, or what lies under a key is something else."""


class Script:
    """A Lua script of the folder ``lua``. ``client`` runs it by its digest, and sends the text where Redis does not know it."""

    def __init__(self, name: str) -> None:
        self._text = resources.files("oncegate.cache.redis").joinpath("lua", f"{name}.lua").read_text("utf-8")
        self._digest = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()

    async def run(self, client: Client, keys: Sequence[str], *arguments: str | bytes | int) -> Any:
        """The script's reply. Raises `CacheUnavailable`."""
        try:
            try:
                return await client.evalsha(self._digest, len(keys), *keys, *arguments)
            except NoScriptError:  # it was not run: nothing happens twice
                return await client.eval(self._text, len(keys), *keys, *arguments)
        except REDIS_ERRORS as error:
            raise unavailable(error) from error


ACKNOWLEDGE = Script("acknowledge")
CREATE = Script("create_group")
LEAVE = Script("leave")


@dataclass(frozen=True, slots=True)
class LetterLimits:
    """Limits on a stream's dead letters: how many, at least 1, and for how many ms each is kept."""

    most: int
    ttl_ms: int


class Group:
    """The worker called ``worker`` in the group ``name`` of ``stream``, whose dead letters it keeps within ``limits``.

    ``reading`` is the client that waits for new entries: its time-out is longer than `read` blocks. Raises `CacheUnavailable`
    for all that Redis or the way to it refuses, `GroupMissing` where the group has to be made first.
    """

    def __init__(self, stream: CommandStream, reading: Client, name: str, worker: str, limits: LetterLimits) -> None:
        self.stream = stream
        self._limits = limits
        self.name = name
        self.worker = worker
        self._reading = reading
        self._client = stream.client

    async def create(self) -> bool:
        """Make the group, and the stream with it, to be read from the first entry on. False: it was there already."""
        return bool(await CREATE.run(self._client, (self.stream.key,), self.name))

    async def read(self, count: int, block_ms: int) -> list[tuple[bytes, Fields]]:
        """At most ``count`` entries that the group has not read, waiting for the first one for ``block_ms``."""
        told = await self._ask(
            self._reading.xreadgroup(self.name, self.worker, {self.stream.key: ">"}, count=count, block=block_ms)
        )
        return [(entry, fields or {}) for _, entries in told or () for entry, fields in entries]

    async def take(self, entry: bytes) -> Fields | None:
        """The fields of a pending entry, ours from now on; ``None``: it is pending no longer."""
        told = await self._ask(self._client.xclaim(self.stream.key, self.name, self.worker, 0, [entry]))
        for found, fields in told:
            if found == entry:
                return cast(Fields, fields or {})
        return None

    async def keep(self, entries: Sequence[bytes]) -> None:
        """Reset the idle time of ``entries``, as far as they are pending."""
        for first in range(0, len(entries), _AT_ONCE):
            some: list[Any] = [*entries[first : first + _AT_ONCE]]
            await self._ask(self._client.xclaim(self.stream.key, self.name, self.worker, 0, some, justid=True))

    async def leave_to_others(self, waits_ms: Mapping[bytes, int], idle_ms: int) -> None:
        """Give up entries so that each is taken for abandoned (idle for ``idle_ms``) once its own time to wait is over."""
        for entry, wait_ms in waits_ms.items():
            idle = max(0, idle_ms - wait_ms)
            ask = self._client.xclaim(self.stream.key, self.name, self.worker, 0, [entry], idle=idle, justid=True)
            await self._ask(ask)

    async def abandoned(self, idle_ms: int, cursor: bytes, count: int) -> tuple[bytes, list[tuple[bytes, Fields]]]:
        """At most ``count`` entries idle for ``idle_ms``, ours from now on, and where to go on.

        The cursor is ``0-0`` where those were all.
        """
        ask = self._client.xautoclaim(self.stream.key, self.name, self.worker, idle_ms, cursor, count=count)
        told = await self._ask(ask)
        return told[0], [(entry, fields or {}) for entry, fields in told[1]]

    async def acknowledge(self, entry: bytes, death: Mapping[bytes, bytes] | None = None, copy_of: str = "") -> bool:
        """Acknowledge ``entry``; with a dead letter that describes its ``death`` where it is given up.

        ``copy_of`` is its command where another copy may have its letter already: then it gets none.

        False: it was acknowledged before, and nothing was written.
        """
        told = [part for pair in (death or {}).items() for part in pair]
        done, _ = await self._acknowledge(entry, copy_of, *told)
        return bool(done)

    async def trim_letters(self) -> bool:
        """Take out dead letters that are too many or too old, a bounded number of them. False: there were none."""
        _, trimmed = await self._acknowledge(b"", "")
        return trimmed > 0

    async def _acknowledge(self, entry: bytes, copy_of: str, *told: bytes) -> tuple[int, int]:
        """Whether ``entry`` was pending, and how many dead letters were trimmed."""
        keys = (self.stream.key, self.stream.dead_key, self.stream.trimmed_key)
        limits = (self._limits.most, self._limits.ttl_ms)
        done, trimmed = await ACKNOWLEDGE.run(self._client, keys, self.name, entry, copy_of, *limits, *told)
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
        await LEAVE.run(self._client, (self.stream.key,), self.name, leaver, GONE_AFTER_MS)

    async def _ask(self, asked: Any) -> Any:
        try:
            return await asked
        except REDIS_ERRORS as error:
            raise unavailable(error) from error


def unavailable(error: Exception) -> CacheUnavailable:
    """The error without redis-py's text, which may quote keys and addresses."""
    if isinstance(error, ResponseError):
        if str(error).startswith("NOGROUP") or "no such key" in str(error):
            return GroupMissing("the stream or its group is not there")
        return StreamRefused(f"Redis refused a command on the stream ({type(error).__name__})")
    return CacheUnavailable(f"Redis did not answer for the stream ({type(error).__name__})")
