"""The caches that the suite of behaviours runs against, each behind a `Store`: a key of its own and a hand on its time."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from oncegate.cache.redis.store import RedisCache
from testing.servers import RedisServer
from tests.cache.stores import MemoryStore, RedisStore, Store

GROUPS = ("sentinel", "cluster")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of each behaviour one case is enough on servers that belong together: what they add is who is sent a command.

    What a command does is the same script's work as on one server, where all cases run.
    """
    chosen: set[tuple[str, str]] = set()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        store = (
            item.callspec.params.get("store")
            if isinstance(item, pytest.Function) and hasattr(item, "callspec")
            else None
        )
        case = (item.nodeid.partition("[")[0], str(store))
        repeated = store in GROUPS and case in chosen and Path(__file__).parent in item.path.parents
        chosen.add(case)
        (left_out if repeated else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


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
