"""What keeps an outbox from being published, and an order's aggregates waiting, as far as their database shows it."""

from datetime import UTC, datetime
from typing import Final

import orjson
from sqlalchemy import Connection, MetaData, func, inspect, or_, select, text

from oncegate.sql.database.access import in_database
from oncegate.sql.database.findings import LONG_SECONDS, DatabaseFinding, table_findings
from oncegate.sql.database.types import utc
from oncegate.sql.order.examine import order_findings
from oncegate.sql.outbox.tables import CHECKPOINTS, MESSAGES, SEQUENCES, checkpoint_table, outbox_table, sequence_table

_MOST: Final = 100_000
_NEEDED: Final = {
    MESSAGES: "INSERT, SELECT, UPDATE, DELETE",
    SEQUENCES: "INSERT, SELECT, UPDATE",
    CHECKPOINTS: "INSERT, SELECT, UPDATE",
}
_OPEN: Final = text(
    "SELECT count(*), max(extract(epoch FROM clock_timestamp() - xact_start)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND clock_timestamp() - xact_start > make_interval(secs => :seconds)"
)


def examine(database: str, schema: str | None) -> list[DatabaseFinding]:
    """The tables, what the role may, open transactions, what waits: for an order's numbers too, where one is kept, and for
    that alone where there is no outbox.

    Raises `NotDone` where the database can't be looked at.
    """

    def look(connection: Connection) -> list[DatabaseFinding]:
        of_order = order_findings(connection, schema)
        has_outbox = inspect(connection).has_table(MESSAGES, schema=schema)
        found = _tables(connection, schema) if has_outbox or not of_order else []
        if connection.dialect.name == "postgresql":
            found += _transactions(connection)
        if has_outbox and all(each.severity != "failed" for each in found):
            found += [*_waiting(connection, schema), *_sources(connection, schema)]
        return found + of_order

    return in_database(database, look)


def _tables(connection: Connection, schema: str | None) -> list[DatabaseFinding]:
    tables = [make(MetaData(), schema) for make in (outbox_table, sequence_table, checkpoint_table)]
    return table_findings(connection, tables, _NEEDED, group="outbox", users="who adds, or relays, needs it")


def _transactions(connection: Connection) -> list[DatabaseFinding]:
    count, longest = connection.execute(_OPEN, {"seconds": LONG_SECONDS}).one()
    if not count:
        return [DatabaseFinding("transactions", "good", f"none that this role sees is open for {LONG_SECONDS:g} s")]
    line = (
        f"{count} open for more than {LONG_SECONDS:g} s, the oldest for {longest:.0f} s: tables of events are published up to"
        " where it began, and removed rows are not vacuumed"
    )
    return [DatabaseFinding("transactions", "advice", line)]


def _waiting(connection: Connection, schema: str | None) -> list[DatabaseFinding]:
    table = outbox_table(MetaData(), schema).c
    some = select(table.added_at, table.dead, table.due_at).where(table.published_at.is_(None)).limit(_MOST).subquery()
    held = or_(some.c.dead, some.c.due_at.is_not(None))
    query = select(func.count(), func.min(some.c.added_at), func.count().filter(held)).select_from(some)
    rows, oldest, held_up = connection.execute(query).one()
    found = []
    age = 0.0 if oldest is None else (datetime.now(UTC) - utc(oldest)).total_seconds()
    if age > LONG_SECONDS:
        line = f"{rows} rows wait, the oldest for {age:.0f} s: does a relay run? oncegate relay"
        found.append(DatabaseFinding("outbox", "advice", line))
    else:
        found.append(DatabaseFinding("outbox", "good", f"{rows} rows wait, none for long"))
    if held_up:
        line = f"{held_up} rows were refused, and hold up their aggregates: oncegate outbox list --held"
        found.append(DatabaseFinding("outbox", "advice", line))
    return found


def _sources(connection: Connection, schema: str | None) -> list[DatabaseFinding]:
    """How far tables of events are published; what waits there only their relays know."""
    table = checkpoint_table(MetaData(), schema)
    found = []
    for row in connection.execute(select(table).order_by(table.c.source)):
        reached = (
            f"transaction {row.transaction}, position {row.position}" if row.transaction else f"position {row.position}"
        )
        ahead = len(orjson.loads(row.ahead))
        line = f"{row.source} is published up to {reached}, and {ahead} positions, or runs of them, behind that"
        found.append(DatabaseFinding("source", "good", line))
    return found
