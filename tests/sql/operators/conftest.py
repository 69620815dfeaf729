"""A database with what waits in it, by each driver that a gateway takes, and a gateway that operators look at it by."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from oncegate.app.settings.admin_tokens import AdminToken
from oncegate.sql.outbox.tables import all_tables
from testing.postgresql import PostgreSQLServer
from testing.served import served
from tests.sql.conftest import at
from tests.sql.operators.looking import READER, WRITER, Operated
from tests.sql.places import Place, SyncPlace
from tests.sql.projections.accounts import make

TOKENS = [AdminToken.of("rita", READER, writes=False).setting(), AdminToken.of("will", WRITER).setting()]


@pytest.fixture(scope="session")
def postgresql_database(postgresql: PostgreSQLServer) -> str:
    """Of these tests alone: others make another table of events."""
    name = postgresql.database()
    SyncPlace(postgresql.url(name, "psycopg")).prepare()
    return name


@pytest.fixture(params=["asyncpg", "psycopg", "pysqlite"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A database with all tables, empty."""
    place = at(request, request.param, tmp_path)

    def create(session: Session) -> None:
        for table in all_tables(None):
            table.drop(session.connection(), checkfirst=True)
            table.create(session.connection())

    place.in_a_thread(partial(place.run, create))
    return make(place)


@asynccontextmanager
async def operating(url: str, **settings: Any) -> AsyncIterator[Operated]:
    async with served("http://127.0.0.1:1", admin_tokens=TOKENS, ops_database=url, **settings) as (client, gateway):
        yield Operated(client, gateway)


@pytest.fixture
async def operated(shop: Place) -> AsyncIterator[Operated]:
    async with operating(shop.url) as there:
        yield there
