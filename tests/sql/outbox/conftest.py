"""A place of each kind with the tables of sequences and of the outbox."""

from pathlib import Path

import pytest
from sqlalchemy import MetaData
from sqlalchemy.orm import Session

from oncegate.sql import Outbox
from testing.postgresql import PostgreSQLServer
from tests.sql.conftest import SESSIONS, at
from tests.sql.places import Place, SyncPlace


def made(place: Place) -> Place:
    def make(session: Session) -> None:
        for table in Outbox("any").tables(MetaData()):
            table.create(session.connection(), checkfirst=True)

    place.run(make)
    place.execute("CREATE TABLE IF NOT EXISTS effects (what TEXT NOT NULL)")
    return place


@pytest.fixture(scope="session")
def outbox_database(postgresql: PostgreSQLServer, postgresql_database: str) -> str:
    """Shared: its tables are emptied before each test."""
    made(SyncPlace(postgresql.url(postgresql_database, "psycopg")))
    return postgresql_database


@pytest.fixture(params=SESSIONS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A database of each kind, by each driver's sessions; ``indirect`` chooses among `WAYS`."""
    found = at(request, request.param, tmp_path)
    if not found.is_postgresql:
        return made(found)
    request.getfixturevalue("outbox_database")
    found.execute("TRUNCATE oncegate_outbox, oncegate_sequence")
    return found
