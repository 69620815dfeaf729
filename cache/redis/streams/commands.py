"""The commands of streams: run over a `RedisClient`, with the errors that they stand for."""

from collections.abc import Sequence

from hiredis import ReplyError

from oncegate.cache.redis.client import RedisClient
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.pipe import Bounds, Reply
from oncegate.cache.redis.scripts import Script, pack

Part = bytes | str | int
"""A part of a command, before it is packed."""


def stream_client(url: str, *, timeout: float) -> RedisClient:
    """A client for streams in the Redis of a cache URL.

    Its connections are apart from the records', since a reply may bring megabytes, and those behind it wait: ``timeout`` (s) is
    longer. A command that blocks needs a client of its own for the same reason: Redis replies in order.

    Raises ``ValueError`` for a URL that can't be used, without its credentials in the text.
    """
    return RedisClient.from_url(url, timeout=timeout, bounds=Bounds())


async def run_command(client: RedisClient, name: str, key: str, *parts: Part) -> Reply:
    """The reply to the command ``name`` on ``key``. Raises `CacheUnavailable`, of the kind in `faults.of_stream_reply`."""
    return await run_command_on(client, key, *name.split(), key, *parts)


async def run_command_on(client: RedisClient, key: str, *parts: Part) -> Reply:
    """The same where the command has ``key`` elsewhere among its ``parts``."""
    return await _send(client, key, pack(*map(_octets, parts)))


async def run_script(client: RedisClient, script: Script, keys: Sequence[str], *arguments: Part) -> Reply:
    """The reply of ``script``. Raises as `run_command` does."""
    return await _send(client, keys[0], script.call(*map(_octets, (*keys, *arguments))))


async def _send(client: RedisClient, key: str, packed: bytes) -> Reply:
    reply = await client.command(key, packed)
    if isinstance(reply, ReplyError):
        raise faults.of_stream_reply(reply)
    return reply


def _octets(part: Part) -> bytes:
    return part if isinstance(part, bytes) else str(part).encode()
