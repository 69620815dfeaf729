"""What keeps an outbox from being published, and an order's aggregates waiting, as far as their database shows it."""

from datetime import UTC, datetime
from typing import Final

import orjson
from sqlalchemy import Connection, MetaData, inspect, select, text

from oncegate.sql.database.access import in_database
from oncegate.sql.database.findings import LONG_SECONDS, DatabaseFinding, table_findings
from oncegate.sql.order.waiting import order_findings
from oncegate.sql.outbox.sources.outbox_source import backlog
from oncegate.sql.outbox.tables import CHECKPOINTS, MESSAGES, SEQUENCES, all_tables, checkpoint_table, outbox_table
from oncegate.sql.projections.operators import projection_findings

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
    """Of an outbox: the tables, what the role may, open transactions, what waits. The same of an order, where one
    is kept, and of projections; an outbox need not be there then.

    Raises `NotDone` where the database can't be looked at.
    """

    def examined(connection: Connection) -> list[DatabaseFinding]:
        of_order = order_findings(connection, schema)
        of_projections = projection_findings(connection, schema)
        has_outbox = inspect(connection).has_table(MESSAGES, schema=schema)
        found: list[DatabaseFinding] = []
        if has_outbox or not (of_order or of_projections):
            users = "who adds, or relays, needs it"
            found += table_findings(connection, all_tables(schema), _NEEDED, group="outbox", users=users)
        if connection.dialect.name == "postgresql":
            found += _transactions(connection)
        if has_outbox and all(each.severity != "failed" for each in found):
            found += [*_waiting(connection, schema), *_sources(connection, schema)]
        return found + of_order + of_projections

    return in_database(database, examined)


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
    waiting = backlog(connection, outbox_table(MetaData(), schema))
    age = 0.0 if waiting.oldest is None else (datetime.now(UTC) - waiting.oldest).total_seconds()
    if age > LONG_SECONDS:
        line = f"{waiting.rows} rows wait, the oldest for {age:.0f} s: does a relay run? oncegate relay"
        found = [DatabaseFinding("outbox", "advice", line)]
    else:
        found = [DatabaseFinding("outbox", "good", f"{waiting.rows} rows wait, none for long")]
    if waiting.held:
        line = f"{waiting.held} rows were refused, and hold up their aggregates: oncegate outbox list --held"
        found.append(DatabaseFinding("outbox", "advice", line))
    return found


def _sources(connection: Connection, schema: str | None) -> list[DatabaseFinding]:
    """How far tables of events are published; what waits there only their relays know."""
    table = checkpoint_table(MetaData(), schema)
    found = []
    for row in connection.execute(select(table).order_by(table.c.source)):
        transaction = f"transaction {row.transaction}, " if row.transaction else ""
        ahead = len(orjson.loads(row.ahead))
        reached = f"{transaction}position {row.position}"
        line = f"{row.source} is published up to {reached}, and {ahead} positions, or runs of them, behind that"
        found.append(DatabaseFinding("source", "good", line))
    return found
