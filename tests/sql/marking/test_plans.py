"""What statements read of a PostgreSQL: a delivery no marker but its own, a cleanup what it deletes.

That holds by a plan, too, that was made before there were statistics of the table: a driver keeps a prepared statement for as
long as its connection lives, and the server its plan until the next ANALYZE.
"""

import asyncio
import functools
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

from oncegate import Delivery
from oncegate.middleware.rules.keys.digests import UNKEYED
from oncegate.sql import Inbox
from oncegate.sql.database.terms import limits_of
from oncegate.sql.inbox.arguments import record_of
from oncegate.sql.marking.statements import MarkerStatements
from testing.postgresql import PostgreSQLServer
from testing.waiting import until as wait_for
from tests.sql.aging import TABLE, clean
from tests.sql.places import SyncPlace, planned_once

KEYS = [str(number) for number in range(3000)]
_READ = text(
    "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = 'oncegate_inbox'"
)
"""Rows that this transaction has read."""


@pytest.fixture
def connection(own_place: SyncPlace) -> Iterator[Connection]:
    """Plans each statement once, for a table with markers and without statistics."""
    own_place.execute("ALTER TABLE oncegate_inbox SET (autovacuum_enabled = off)")
    own_place.run(lambda session: Inbox("billing", aliases=["payments"]).first_many(session, KEYS))
    with planned_once(own_place.url) as connection:
        yield connection


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
    known = MarkerStatements("postgresql", TABLE, ["billing", "payments"], limits_of(5, 60))
    records = [record_of(Delivery(key), UNKEYED) for key in KEYS[:20]]
    found = known.rows(connection, records)
    assert {record: {row.consumer for row in rows} for record, rows in found.items()} == {
        record: {"billing", "payments"} for record in records
    }
    assert rows_read(connection, lambda: known.rows(connection, records)) == 20 * 2


def blocks_read(place: SyncPlace, work: Callable[[], object]) -> int:
    """Blocks of the table. A connection reports them when it ends, at the latest."""

    def alone() -> bool:
        others = (
            "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return not place.execute(others)[0].n

    def count() -> int:
        asyncio.run(wait_for(alone))
        found = place.execute(
            "SELECT heap_blks_hit + heap_blks_read AS n FROM pg_statio_user_tables WHERE relname = 'oncegate_inbox'"
        )
        return int(found[0].n)

    before = count()
    work()
    return count() - before


def test_a_cleanup_reads_nothing_again_for_each_batch(own_place: SyncPlace) -> None:
    """In fifty batches it reads about as much as in one."""
    own_place.execute("ALTER TABLE oncegate_inbox SET (autovacuum_enabled = off)")
    costs = []
    for batch_size in (5000, 40):
        own_place.execute("TRUNCATE oncegate_inbox")
        write_markers(own_place, 2000, "8 days")
        write_markers(own_place, 1000, "1 day")
        costs.append(blocks_read(own_place, lambda size=batch_size: clean(own_place, batch_size=size)))  # type: ignore[misc]  # bound early
        assert len(own_place.markers()) == 1000 + 1  # and the instant
    assert costs[1] < 1.5 * costs[0]


def test_where_old_markers_were_a_later_cleanup_reads_nothing(
    own_place: SyncPlace, postgresql: PostgreSQLServer
) -> None:
    """Their places are taken by young ones, by whose times the index is to know them."""
    write_markers(own_place, 2000, "8 days")
    write_markers(own_place, 1000, "2 days")
    vacuum = functools.partial(postgresql.execute, "VACUUM ANALYZE oncegate_inbox", own_place.url.rpartition("/")[2])
    vacuum()
    assert clean(own_place).pruned == 2000
    vacuum()
    write_markers(own_place, 2000, "1 day")
    vacuum()
    (size,) = own_place.execute("SELECT pg_relation_size('oncegate_inbox') / 8192 AS blocks")
    assert 700 < size.blocks < 1000  # they have taken the places of the others
    assert (
        blocks_read(own_place, lambda: clean(own_place)) < 350
    )  # the last blocks, whose range is not full, are always read


def test_a_cleanup_waits_for_no_vacuum_and_needs_not_own_the_table(own_place: SyncPlace) -> None:
    write_markers(own_place, 100, "8 days")
    with Session(own_place.engine) as vacuuming:
        vacuuming.execute(text("LOCK oncegate_inbox IN SHARE UPDATE EXCLUSIVE MODE"))
        assert clean(own_place).pruned == 100
    own_place.execute("DROP ROLE IF EXISTS tidy")
    own_place.execute("CREATE ROLE tidy LOGIN")
    own_place.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON oncegate_inbox TO tidy")
    write_markers(own_place, 100, "9 days")
    assert clean(SyncPlace(own_place.url.replace("postgres@", "tidy@"))).pruned == 100


def write_markers(place: SyncPlace, count: int, age: str) -> None:
    """Four in a block, by what is kept with them."""
    place.execute(
        f"INSERT INTO oncegate_inbox SELECT now() - interval '{age}', 'billing', substring(sha256(("
        f"'{age}' || number)\\:\\:bytea) FOR 30), NULL, repeat('.', 1900) FROM generate_series(1, {count}) AS number"
    )
