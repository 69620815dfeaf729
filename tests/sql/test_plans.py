"""A marker costs the same however many there are, by a plan, too, that PostgreSQL made before it had statistics of the table.

A driver keeps a prepared statement for as long as its connection lives, and the server its plan until the next ANALYZE.
"""

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, create_engine, text

from oncegate.sql import Inbox
from oncegate.sql.inbox.markers import record_of
from oncegate.sql.inbox.statements import statements
from testing.postgresql import PostgreSQLServer
from tests.sql.aging import TABLE
from tests.sql.places import SyncPlace

KEYS = [str(number) for number in range(3000)]
_READ = text(
    "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = 'oncegate_inbox'"
)
"""Rows that this transaction has read."""


@pytest.fixture
def connection(postgresql: PostgreSQLServer) -> Iterator[Connection]:
    """Plans each statement once, for a table with markers and without statistics."""
    url = postgresql.url(postgresql.database(), "psycopg")
    place = SyncPlace(url)
    place.prepare()
    place.execute("ALTER TABLE oncegate_inbox SET (autovacuum_enabled = off)")
    place.run(lambda session: Inbox("billing", aliases=["payments"]).first_many(session, KEYS))
    generic = {"prepare_threshold": 0, "options": "-c plan_cache_mode=force_generic_plan"}
    engine = create_engine(url, connect_args=generic)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def rows_read(connection: Connection, work: Callable[[], object]) -> int:
    before = connection.scalar(_READ) or 0
    work()
    return (connection.scalar(_READ) or 0) - before


@pytest.mark.parametrize("aliases", [(), ("payments",)])
def test_a_delivery_reads_no_marker_but_its_own(connection: Connection, aliases: tuple[str, ...]) -> None:
    """Of each name it has it is read twice: by the insert that finds it, and by the look-up."""
    inbox = Inbox("billing", aliases=aliases)
    read = 2 * (1 + len(aliases))
    assert rows_read(connection, lambda: inbox.first(connection, "new")) == 0
    assert rows_read(connection, lambda: inbox.first(connection, "new")) == read
    assert rows_read(connection, lambda: inbox.first_many(connection, [*KEYS[:20], "newer"])) == 20 * read


def test_nor_does_one_whose_marker_another_transaction_has_written_meanwhile(connection: Connection) -> None:
    """It is read by a second statement."""
    known = statements("postgresql", TABLE, ["billing", "payments"], wait_timeout=5, idle_timeout=60)
    records = [record_of(key, "") for key in KEYS[:20]]
    found = known.rows(connection, records)
    assert {record: {row.consumer for row in rows} for record, rows in found.items()} == {
        record: {"billing", "payments"} for record in records
    }
    assert rows_read(connection, lambda: known.rows(connection, records)) == 20 * 2
