"""`RedisClient`: commands to a Redis over connections that all callers of an event loop share.

What is kept there is others' business: records (`oncegate.cache.redis.store`), commands (`oncegate.cache.redis.streams`).
Requests are pipelined (`oncegate.cache.redis.connection.pipe`); which server holds a key is found by
`oncegate.cache.redis.connection.topology`.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from hiredis import ReplyError

from oncegate.cache.errors import CacheUnavailable, CacheUnsupported
from oncegate.cache.redis.advice import advise_all, describe_all
from oncegate.cache.redis.calls import CallbackCall
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.pipe import Bounds, Reply
from oncegate.cache.redis.connection.send import send
from oncegate.cache.redis.connection.server import Session
from oncegate.cache.redis.connection.topology import Routes, Topology, create_topology
from oncegate.cache.redis.scripts import Script
from oncegate.cache.store import Described


class RedisClient:
    """A client of Redis that connects when it is first used, and again whenever it has to; to be closed with `close`.

    ``timeout`` (s) bounds each command, opening a connection and finding the right server included. Several event loops may
    use one client: each has its own connections (``routes``).
    """

    __slots__ = ("_topology", "routes", "timeout")

    def __init__(self, topology: Topology, *, timeout: float) -> None:
        self._topology = topology
        self.timeout = timeout
        self.routes: dict[asyncio.AbstractEventLoop, Routes] = {}

    @classmethod
    def from_url(cls, url: str, *, timeout: float, bounds: Bounds | None = None) -> "RedisClient":
        """A client of the Redis at ``url``, as `RedisCache.from_url` takes it.

        ``bounds`` says how much may be unanswered on a connection.
        Raises ``ValueError`` for a URL that can't be used, without its credentials in the text. Does not connect.
        """
        return cls(create_topology(url, timeout, bounds or Bounds(patience=2 * timeout)), timeout=timeout)

    async def command(self, key: str, packed: bytes) -> Reply:
        """The reply to a packed command on ``key``, an error reply as a value.

        Raises `CacheUnavailable`, after which the command may have run or not.
        """
        routes = await self.opened()
        return await send(routes, key.encode(), packed, routes.loop.time() + self.timeout)

    async def run(self, script: Script, key: str, *arguments: bytes) -> Reply:
        """A script's reply. Raises the error that an error reply stands for."""
        return await self._run(key, script.call(key.encode(), *arguments))

    async def run_on(self, script: Script, keys: Sequence[str]) -> Reply:
        """The same of a script that takes any number of ``keys``, which one server has."""
        return await self._run(keys[0], script.call_on([key.encode() for key in keys]))

    async def _run(self, key: str, packed: bytes) -> Reply:
        reply = await self.command(key, packed)
        if isinstance(reply, ReplyError):
            raise faults.of_reply(reply)
        return reply

    def reply(self, call: CallbackCall[Any]) -> Awaitable[Reply]:
        """The reply to a call that was made for the `opened` connections, an error reply as a value."""
        return send(call.routes, call.key, call.packed, call.routes.loop.time() + self.timeout, call)

    async def opened(self) -> Routes:
        """The connections of the running loop."""
        return self.routes.get(asyncio.get_running_loop()) or await self._open()

    async def sessions(self, deadline: float) -> list[Session]:
        """The servers that have keys, in an order that stays. Raises `CacheUnavailable`."""
        try:
            return await (await self.opened()).sessions(deadline)
        except CacheUnsupported as error:
            raise CacheUnavailable(str(error)) from error

    async def check(self) -> list[str]:
        """See `Cache.check`."""
        routes = await self.opened()
        deadline = routes.loop.time() + self.timeout
        return await advise_all(await routes.sessions(deadline), deadline)

    async def describe(self) -> Described:
        """See `oncegate.cache.store.Describes`."""
        routes = await self.opened()
        deadline = routes.loop.time() + self.timeout
        return await describe_all(await routes.sessions(deadline), deadline)

    async def close(self) -> None:
        """See `Cache.close`. Claims that wait to be withdrawn get one more time-out; a call after this connects again."""
        for loop, routes in list(self.routes.items()):
            self.routes.pop(loop, None)
            if loop is asyncio.get_running_loop():
                routes.resume_withdrawing()
                await routes.settle()
                await routes.aclose()
            elif loop.is_closed():
                routes.close()
            else:
                loop.call_soon_threadsafe(routes.close)

    async def _open(self) -> Routes:
        loop = asyncio.get_running_loop()
        for old in [other for other in list(self.routes) if other.is_closed()]:
            self.routes.pop(old).close()
        routes = self.routes[loop] = self._topology.open()
        await routes.guard()
        routes.resume_withdrawing()
        return routes


def client_of(cache: object) -> RedisClient | None:
    """The client that a cache of records in Redis has; ``None`` where they are elsewhere."""
    client = getattr(cache, "client", None)
    return client if isinstance(client, RedisClient) else None
