"""What an order's statements read of a PostgreSQL: the rows of their own aggregate, however many others wait.

By a plan, too, that was made before there were statistics of the tables: see test_plans.py.
"""

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, text

from oncegate.sql import Inbox
from oncegate.sql.marking.sequence_writer import SequenceWriter
from oncegate.sql.order.numbers import Numbered, digest
from oncegate.sql.order.parked import Storable
from tests.sql.places import SyncPlace, planned_once

AGGREGATES = 3000
_READ = text(
    "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables"
    " WHERE relname IN ('oncegate_order', 'oncegate_parked')"
)
"""Rows that this transaction has read."""


@pytest.fixture
def connection(own_place: SyncPlace) -> Iterator[Connection]:
    """Plans each statement once, for tables with rows and without statistics: number 2 of each aggregate waits for 1."""
    for table in ("order", "parked"):
        own_place.execute(f"ALTER TABLE oncegate_{table} SET (autovacuum_enabled = off)")
    each = f"FROM generate_series(1, {AGGREGATES}) AS number"
    hashed = "substring(sha256(number\\:\\:text\\:\\:bytea) FOR 20)"
    own_place.execute(
        "INSERT INTO oncegate_order (applied_at, sequence, parked, consumer, aggregate)"
        f" SELECT now(), 0, 1, 'ledger', {hashed} {each}"
    )
    own_place.execute(
        "INSERT INTO oncegate_parked (parked_at, due_at, sequence, attempts, dead, applied, consumer, aggregate, aggregate_id,"
        f" arguments, submitted) SELECT now(), now(), 2, 0, false, false, 'ledger', {hashed}, number, '[]', false {each}"
    )
    with planned_once(own_place.url) as connection:
        yield connection


def rows_read(connection: Connection, work: Callable[[], object]) -> int:
    before = connection.scalar(_READ) or 0
    work()
    return int((connection.scalar(_READ) or 0) - before)


@pytest.mark.parametrize("aliases", [(), ("book",)])
def test_only_rows_of_the_aggregate_are_read(connection: Connection, aliases: tuple[str, ...]) -> None:
    inbox = Inbox("ledger", order="contiguous", aliases=aliases)
    writer = inbox._sequences
    assert isinstance(writer, SequenceWriter)
    parked, mine = writer.parked, digest("mine")

    def park() -> None:
        parked.park(connection, Storable(Numbered(mine, 2), "mine", "[]", False))

    parked.park(
        connection, Storable(Numbered(digest("counted"), 2), "counted", "[]", False)
    )  # how many there are, now and then

    def apply() -> None:
        assert writer.decide(connection, Numbered(mine, 1)).first

    def follow() -> None:
        row = parked.next(connection, mine)
        assert row is not None
        parked.begin(connection, row)
        assert parked.lock(connection, row)
        parked.owe(connection, row, "[]")
        (row,) = parked.owed(connection, mine)
        parked.recorded(connection, row)

    read = {work.__name__: rows_read(connection, work) for work in (park, apply, follow)}
    assert all(rows <= 30 for rows in read.values()), read
    assert (
        rows_read(connection, lambda: parked.note(connection, Storable(Numbered(mine, 5), "mine", "[]", False), 1, "x"))
        <= 30
    )
