"""The caches that the suite of behaviours runs against, each behind a `Store`: a key of its own and a hand on its time."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from oncegate.cache.redis.store import RedisCache
from oncegate.cache.sql.postgresql import statements
from testing.postgresql import PostgreSQLServer
from testing.servers import RedisServer
from tests.cache.stores import MemoryStore, PostgresStore, RedisStore, SqliteStore, Store


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
async def redis_cache(redis_server: RedisServer) -> AsyncIterator[RedisCache]:
    cache = RedisCache.from_url(redis_server.url, timeout=30)
    yield cache
    await cache.close()


@pytest.fixture(scope="session")
def records_server() -> Iterator[PostgreSQLServer]:
    with PostgreSQLServer() as server:
        yield server


@pytest.fixture(scope="session")
def records_database(records_server: PostgreSQLServer) -> str:
    """A database with the table of records."""
    name = records_server.database()
    records_server.execute(statements.TABLES, name)
    return name


@pytest.fixture(params=["memory", "redis", "sentinel", "cluster", "sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A store of each kind. The servers are the same for all tests, so each test has keys of its own."""
    fixtures = {"redis": "redis_server", "sentinel": "sentinel_group", "cluster": "cluster_group"}
    made: Store
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "sqlite":
        made = SqliteStore(tmp_path / "records.db")
        await made.cache.check()
    elif request.param == "postgresql":
        server = request.getfixturevalue("records_server")
        made = PostgresStore(server, request.getfixturevalue("records_database"))
    else:
        made = RedisStore(request.getfixturevalue(fixtures[request.param]))
    yield made
    await made.cache.close()
