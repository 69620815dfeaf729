"""What can't hold the promise is refused in one line, before anything is committed.

Rules of docs/contract.md: R12.14.
"""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from oncegate.middleware.outcome.errors import NotProcessed
from oncegate.sql import Inbox, InboxMisused, InboxUnavailable
from testing.servers import free_port
from tests.sql.conftest import WAYS
from tests.sql.places import AsyncPlace, Place, SyncPlace

billing = Inbox("billing")


@pytest.mark.parametrize("place", WAYS, indirect=True)
def test_autocommit_is_refused(place: Place) -> None:
    place.connect_with(isolation_level="AUTOCOMMIT")
    with pytest.raises(InboxMisused, match="AUTOCOMMIT"):
        place.deliver(billing, "a")
    assert (place.markers(), place.effects()) == ([], [])


@pytest.mark.parametrize("place", ["pysqlite"], indirect=True)
def test_transactions_that_an_event_begins_are_transactions(place: Place) -> None:
    """SQLAlchemy's recipe for SQLite: the driver's own transactions are turned off."""
    place.connect_with()

    @event.listens_for(place.engine, "connect")
    def connected(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(place.engine, "begin")
    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    assert [place.deliver(billing, "a").first for _ in range(2)] == [True, False]


def test_a_missing_table_names_the_command_that_makes_it(place: Place) -> None:
    nowhere = Inbox("billing", schema="main" if not place.is_postgresql else "nowhere")
    if not place.is_postgresql:
        place.execute("DROP TABLE oncegate_inbox")
    with pytest.raises(InboxMisused, match="oncegate inbox create --database URL"):
        place.deliver(nowhere, "a")


@pytest.mark.parametrize("place", ["psycopg", "pysqlite"], indirect=True)
def test_a_table_without_its_key_takes_nobody_for_the_first(place: Place, request: pytest.FixtureRequest) -> None:
    keyless = (
        "CREATE TABLE oncegate_inbox (received_at TIMESTAMP, consumer TEXT, message {0}, fingerprint {0}, result TEXT)"
    )
    if place.is_postgresql:
        server = request.getfixturevalue("postgresql")
        place = SyncPlace(server.url(server.database(), "psycopg"))
        place.execute(keyless.format("BYTEA"))
    else:
        place.execute("DROP TABLE oncegate_inbox")
        place.execute(keyless.format("TEXT"))
    with pytest.raises(InboxMisused, match="not as an inbox needs it"):
        place.deliver(billing, "a")


@pytest.mark.parametrize("place", ["asyncpg", "psycopg"], indirect=True)
def test_a_role_needs_insert_select_and_update(place: Place) -> None:
    place.execute("DROP ROLE IF EXISTS consumer")
    place.execute("CREATE ROLE consumer LOGIN")
    place.execute("GRANT INSERT ON effects TO consumer")
    other = type(place)(place.url.replace("postgres@", "consumer@"))
    with pytest.raises(InboxMisused, match="INSERT, SELECT and UPDATE"):
        other.deliver(billing, "a")
    place.execute("GRANT INSERT, SELECT, UPDATE ON oncegate_inbox TO consumer")
    assert [other.deliver(billing, "a", keep=1).result for _ in range(2)] == [None, 1]
    place.execute("DROP OWNED BY consumer")
    place.execute("DROP ROLE consumer")


@pytest.mark.parametrize(("driver", "kind"), [("asyncpg", AsyncPlace), ("psycopg", SyncPlace)])
def test_a_database_that_is_away_is_no_failure_of_the_message(driver: str, kind: type[Place]) -> None:
    place = kind(f"postgresql+{driver}://postgres@127.0.0.1:{free_port()}/none")
    with pytest.raises(InboxUnavailable) as away:
        place.deliver(billing, "a")
    assert isinstance(away.value, NotProcessed)


def test_another_kind_of_session_is_refused() -> None:
    with pytest.raises(TypeError, match="give a Session"):
        billing.first(create_engine("sqlite://"), "a")  # type: ignore[call-overload]  # wrong on purpose
    with pytest.raises(InboxMisused, match="no database of its own"):
        billing.first(Session(), "a")


async def test_an_entry_that_is_not_awaited_is_not_true() -> None:
    async with AsyncSession(create_async_engine("sqlite+aiosqlite://")) as session:
        with pytest.raises(TypeError, match="awaited"):
            bool(billing.first(session, "a"))


@pytest.fixture
def two_databases(tmp_path: Path) -> Any:
    engines = [create_engine(f"sqlite:///{tmp_path}/{name}.db") for name in ("one", "other")]
    for engine in engines:
        billing.table(MetaData()).create(engine)
    yield engines
    for engine in engines:
        engine.dispose()


@pytest.mark.parametrize("marker_first", [True, False])
def test_a_second_database_in_the_transaction_is_refused(two_databases: Any, marker_first: bool) -> None:
    """A marker can't cover both: one of them may be committed without the other."""
    one, other = two_databases
    with Session(one) as session:
        if marker_first:
            billing.first(session, "a")
        with pytest.raises(InboxMisused, match="second database"):  # noqa: PT012 - whichever comes second
            session.execute(text("SELECT 1"), bind_arguments={"bind": other})
            billing.first(session, "a")
    with Session(one) as session:
        assert billing.first(session, "a")
        session.rollback()
        session.execute(text("SELECT 1"), bind_arguments={"bind": other})  # another transaction, without a marker


def test_a_second_database_may_be_warned_of(two_databases: Any, caplog: pytest.LogCaptureFixture) -> None:
    one, other = two_databases
    with Session(one) as session:
        assert Inbox("billing", strict=False).first(session, "a")
        session.execute(text("SELECT 1"), bind_arguments={"bind": other})
    assert "second database" in caplog.text
