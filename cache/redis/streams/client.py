"""The client of streams: runs their commands over connections like those of records, with a time-out of its own."""

from collections.abc import Sequence

from hiredis import ReplyError

from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.pipe import Bounds, Reply
from oncegate.cache.redis.scripts import Script, pack
from oncegate.cache.redis.store import RedisCache

Part = bytes | str | int
"""A part of a command, before it is packed."""


class StreamClient:
    """Runs commands in the Redis of a cache URL. It connects when it is first used; to be closed with `close`.

    Apart from the records' connections, since a reply may bring megabytes, and those behind it wait: ``timeout`` (s), which
    bounds each command, is longer. A command that blocks needs a client of its own for the same reason: Redis replies in order.

    Raises ``ValueError`` for a URL that can't be used, without its credentials in the text.
    """

    def __init__(self, url: str, *, timeout: float) -> None:
        self._connections = RedisCache.from_url(url, timeout=timeout, bounds=Bounds())

    async def run(self, name: str, key: str, *parts: Part) -> Reply:
        """The reply to the command ``name`` on ``key``. Raises `CacheUnavailable`, of the kind in `faults.of_stream_reply`."""
        return await self.run_on(key, *name.split(), key, *parts)

    async def run_on(self, key: str, *parts: Part) -> Reply:
        """The same where the command has ``key`` elsewhere among its ``parts``."""
        return await self._send(key, pack(*map(_octets, parts)))

    async def call(self, script: Script, keys: Sequence[str], *arguments: Part) -> Reply:
        """The reply of ``script``. Raises as `run` does."""
        return await self._send(keys[0], script.call(*map(_octets, (*keys, *arguments))))

    async def _send(self, key: str, packed: bytes) -> Reply:
        reply = await self._connections.command(key, packed)
        if isinstance(reply, ReplyError):
            raise faults.of_stream_reply(reply)
        return reply

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.close()


def _octets(part: Part) -> bytes:
    return part if isinstance(part, bytes) else str(part).encode()
