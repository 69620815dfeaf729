"""A place of each kind with events, read models and the table of positions, all empty."""

from pathlib import Path

import pytest

from testing.postgresql import PostgreSQLServer
from tests.sql.conftest import ON_POSTGRESQL, SESSIONS
from tests.sql.places import Place, place_of
from tests.sql.projections.accounts import make


@pytest.fixture(scope="session")
def projection_database(postgresql: PostgreSQLServer) -> str:
    return postgresql.database()


@pytest.fixture(params=SESSIONS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A database of each kind, by each driver's sessions; ``indirect`` chooses among `SESSIONS`."""
    if request.param in ON_POSTGRESQL:
        server: PostgreSQLServer = request.getfixturevalue("postgresql")
        return make(place_of(server.url(request.getfixturevalue("projection_database"), request.param)))
    return make(place_of(f"sqlite+{request.param}:///{tmp_path}/app.db", connect_args={"timeout": 60}))
