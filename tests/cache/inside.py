"""A look inside a `RedisCache`, for tests that meddle with its connections."""

import asyncio

from oncegate.cache.redis import RedisCache
from oncegate.cache.session import OneServer, Session
from oncegate.cache.withdrawal import Withdrawals


def session_of(cache: RedisCache) -> Session:
    """What a cache on one server has open on the running loop."""
    session = cache._routes[asyncio.get_running_loop()]
    assert isinstance(session, Session)
    return session


def withdrawals_of(cache: RedisCache) -> Withdrawals:
    """What a cache on one server has still to withdraw."""
    assert isinstance(cache._topology, OneServer)
    return cache._topology.withdrawals
