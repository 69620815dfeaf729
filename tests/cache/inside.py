"""A `RedisCache` with a server of its own, and a look inside, for tests that meddle with its connections."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from oncegate.cache.redis.connection.pipe import Bounds, PipelinedConnection
from oncegate.cache.redis.connection.server import OneServer, Session
from oncegate.cache.redis.connection.topology import Topology
from oncegate.cache.redis.connection.withdrawal import Withdrawals
from oncegate.cache.redis.store import RedisCache
from testing.servers import RedisServer


@contextlib.asynccontextmanager
async def cached(
    *kind: str, timeout: float = 30, bounds: Bounds | None = None, **options: Any
) -> AsyncIterator[tuple[RedisServer, RedisCache]]:
    """A Redis of its own, and a cache in it. Calls are answered in time, however slow the machine is, unless they have less."""
    with RedisServer(*kind, **options) as server:
        cache = RedisCache.from_url(server.url, timeout=timeout, bounds=bounds)
        yield server, cache
        await cache.close()


def session_of(cache: RedisCache) -> Session:
    """What a cache on one server has open on the running loop."""
    session = cache.client.routes[asyncio.get_running_loop()]
    assert isinstance(session, Session)
    return session


@contextlib.contextmanager
def timed(cache: RedisCache, seconds: float = 0.3) -> Iterator[None]:
    """What is asked meanwhile has so much time for its answer; all else has the cache's own."""
    before, cache.client.timeout = cache.timeout, seconds
    try:
        yield
    finally:
        cache.client.timeout = before


def topology_of(cache: RedisCache) -> Topology:
    """The servers that it knows."""
    return cache.client._topology


def withdrawals_of(cache: RedisCache) -> Withdrawals:
    """What a cache on one server has still to withdraw."""
    topology = topology_of(cache)
    assert isinstance(topology, OneServer)
    return topology.withdrawals


def set_bounds(pipeline: PipelinedConnection, bounds: Bounds) -> None:
    """Let no more than ``bounds`` wait for its replies, from now on."""
    pipeline._bounds = bounds


def is_withdrawing(session: Session) -> bool:
    """Whether a task withdraws what nobody waits for any more."""
    return session._withdrawing is not None
