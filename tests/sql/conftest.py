"""A PostgreSQL server for all tests of this folder, and each way into a database in turn."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.postgresql import PostgreSQLServer
from tests.sql.held import PATIENT, Pool
from tests.sql.places import Place, SyncPlace, place_of

SESSIONS = ("asyncpg", "psycopg", "aiosqlite", "pysqlite")
"""The drivers, by sessions."""
WAYS = (*SESSIONS, *[f"{driver} connection" for driver in SESSIONS])
ON_POSTGRESQL = SESSIONS[:2]
ON_SQLITE = SESSIONS[2:]
PRELOADED = (
    *[
        f"tests.sql.{module}"
        for module in ("consumers", "order.ordered_consumers", "handlers.batches", "inbox.cleaners")
    ],
    *[f"sqlalchemy.dialects.{name}" for name in ("postgresql.asyncpg", "postgresql.psycopg", "sqlite.aiosqlite")],
    *("asyncpg", "psycopg", "aiosqlite", "oncegate.cache.memory.store"),
)
"""What the processes of these tests import (testing/template.py)."""


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQLServer]:
    """Shared by this process's tests: leave it running."""
    with PostgreSQLServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgresql_database(postgresql: PostgreSQLServer) -> str:
    """Shared: its tables are emptied before each test."""
    name = postgresql.database()
    SyncPlace(postgresql.url(name, "psycopg")).prepare()
    return name


def at(request: pytest.FixtureRequest, way: str, folder: Path) -> Place:
    """The place by ``way``, its tables empty."""
    driver, _, kind = way.partition(" ")
    if driver in ON_POSTGRESQL:
        server: PostgreSQLServer = request.getfixturevalue("postgresql")
        name: str = request.getfixturevalue("postgresql_database")
        place = place_of(server.url(name, driver), connections=bool(kind))
        # By itself: SQLAlchemy looks at a server once, which must not come from several event loops at once.
        place.execute("TRUNCATE oncegate_inbox, oncegate_order, oncegate_parked, effects")
        return place
    place = place_of(f"sqlite+{driver}:///{folder}/app.db", connections=bool(kind))
    place.prepare()
    return place


@pytest.fixture(params=SESSIONS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A database of each kind, by each driver's sessions; ``indirect`` chooses among `WAYS`."""
    return at(request, request.param, tmp_path)


@pytest.fixture
def own_place(postgresql: PostgreSQLServer) -> SyncPlace:
    """A database of PostgreSQL that no other test uses, with its tables."""
    place = SyncPlace(postgresql.url(postgresql.database(), "psycopg"))
    place.prepare()
    return place


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool() as threads:
        yield threads


@pytest.fixture
def patient(place: Place) -> Place:
    if not place.is_postgresql:
        place.connect_with(connect_args={"timeout": PATIENT})
    return place
