"""The caches that the suite of behaviours runs against, each behind a `Store`: a key of its own and a hand on its time."""

from collections.abc import AsyncIterator, Iterator

import pytest

from oncegate.cache.redis.store import RedisCache
from testing.servers import RedisServer
from tests.cache.stores import MemoryStore, RedisStore, Store


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
async def redis_cache(redis_server: RedisServer) -> AsyncIterator[RedisCache]:
    cache = RedisCache.from_url(redis_server.url, timeout=30)
    yield cache
    await cache.close()


@pytest.fixture(params=["memory", "redis", "sentinel", "cluster"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """A store of each kind. The servers are the same for all tests, so each test has keys of its own."""
    fixtures = {"redis": "redis_server", "sentinel": "sentinel_group", "cluster": "cluster_group"}
    made = MemoryStore() if request.param == "memory" else RedisStore(request.getfixturevalue(fixtures[request.param]))
    yield made
    await made.cache.close()
