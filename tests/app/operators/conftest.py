"""A cache of each kind, on real servers, for what operators see of it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.sql.postgresql.rows import create_table
from oncegate.cache.sql.store import SqlCache
from oncegate.cache.store import Cache
from testing.postgresql import PostgreSQLServer


@pytest.fixture(scope="session")
def records_server() -> Iterator[PostgreSQLServer]:
    with PostgreSQLServer() as server:
        yield server


@pytest.fixture(params=["memory", "redis", "cluster", "sqlite", "postgresql"])
async def cache(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cache]:
    made: Cache
    if request.param == "memory":
        made = MemoryCache()
    elif request.param == "sqlite":
        made = SqlCache.from_url(f"sqlite:///{tmp_path / 'records.db'}", timeout=30)
    elif request.param == "postgresql":
        server = request.getfixturevalue("records_server")
        url = f"postgresql://postgres@127.0.0.1:{server.port}/{server.database()}"
        await create_table(url, timeout=30)
        made = SqlCache.from_url(url, timeout=30)
    else:
        server = request.getfixturevalue({"redis": "redis_server", "cluster": "cluster_group"}[request.param])
        made = RedisCache.from_url(server.url, timeout=30)
    yield made
    await made.close()
