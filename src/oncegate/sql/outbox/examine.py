"""Obstacles to an outbox's publication and to waiting aggregates, as far as their database shows them to a role."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from sqlalchemy import Connection, MetaData, Row, inspect, select, text

from oncegate.sql.database.access import command_line, in_database
from oncegate.sql.database.findings import LONG_SECONDS, DatabaseFinding, table_findings, unreadable
from oncegate.sql.marking.table import TABLE as INBOX
from oncegate.sql.marking.table import inbox_table
from oncegate.sql.order.waiting import order_findings
from oncegate.sql.outbox.sources.outbox_source import backlog
from oncegate.sql.outbox.tables import (
    CHECKPOINTS,
    MESSAGES,
    SEQUENCES,
    TO_ADD,
    all_tables,
    checkpoint_table,
    outbox_table,
)
from oncegate.sql.projections.operators import projection_findings

_TASKS: Final = {
    "add messages": TO_ADD,
    "number aggregates": {SEQUENCES: TO_ADD[SEQUENCES]},
    "relay messages": {MESSAGES: "SELECT, UPDATE, DELETE"},
    "relay tables of events": {CHECKPOINTS: "SELECT, INSERT, UPDATE"},
    "see what waits": {MESSAGES: "SELECT"},
}
_OF_INBOX: Final = {
    "consume": {INBOX: "SELECT, INSERT, UPDATE"},
    "forget markers": {INBOX: "SELECT, INSERT, UPDATE, DELETE"},
    "look": {INBOX: "SELECT"},
}
_OPEN: Final = text(
    "SELECT CAST(datname AS text) AS database, pid, is_here, writes,"
    " extract(epoch FROM clock_timestamp() - began) AS seconds FROM ("
    "SELECT datname, pid, datname = current_database() AS is_here, backend_xid IS NOT NULL AS writes, xact_start AS began"
    " FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND (backend_xid IS NOT NULL OR"
    " datname = current_database() AND (xact_start IS NOT NULL OR backend_xmin IS NOT NULL))"
    " UNION ALL SELECT database, NULL, database = current_database(), true, prepared FROM pg_prepared_xacts) AS t"
    " WHERE began IS NULL OR clock_timestamp() - began > make_interval(secs => :seconds) ORDER BY began"
)
"""Those of the whole server that have written, prepared ones too, since a table of events is published up to the oldest of
them; of this database also those that only read, since they keep its removed rows. When another role's began is ``NULL`` to
who may not read that."""


def examine(database: str, schema: str | None, *, long: float = LONG_SECONDS) -> list[DatabaseFinding]:
    """Findings about an outbox: the tables, what the role may, open transactions, what waits.

    The same of an inbox, an order, and projections, where there are such; an outbox need not be there then. A transaction
    counts that is open for ``long`` (s). Raises `NotDone` where the database can't be looked at.
    """

    def examined(connection: Connection) -> list[DatabaseFinding]:
        others = [
            *_inbox(connection, schema),
            *order_findings(connection, schema),
            *projection_findings(connection, schema),
        ]
        has_outbox = inspect(connection).has_table(MESSAGES, schema=schema)
        found: list[DatabaseFinding] = []
        if has_outbox or not others:
            found += table_findings(connection, all_tables(schema), _TASKS, group="outbox")
        if connection.dialect.name == "postgresql":
            found += _transactions(connection, long)
        if has_outbox and all(each.severity != "failed" for each in found):
            found += [*_waiting(connection, schema), *_sources(connection, schema)]
        return found + others

    return in_database(database, examined)


def _inbox(connection: Connection, schema: str | None) -> list[DatabaseFinding]:
    table = inbox_table(MetaData(), schema)
    if not inspect(connection).has_table(table.name, schema=schema):
        return []
    return table_findings(connection, [table], _OF_INBOX, group="inbox")


def _transactions(connection: Connection, long: float) -> list[DatabaseFinding]:
    found = connection.execute(_OPEN, {"seconds": long}).all()
    dated = [each for each in found if each.seconds is not None]
    lines = []
    if writing := [each for each in dated if each.writes]:
        lines.append(f"{_oldest(writing, long)}: tables of events are published up to where it began")
    if here := [each for each in dated if each.is_here]:
        lines.append(f"{_oldest(here, long)}: rows that were removed in this database are not vacuumed")
    if hidden := len(found) - len(dated):
        lines.append(
            f"{hidden} of other roles are open, and this role may not see since when: GRANT pg_read_all_stats TO it, or"
            " look by another one"
        )
    if not lines:
        line = f"none is open for {long:g} s, neither in this database nor, of those that write, on the server"
        return [DatabaseFinding("transactions", "good", line)]
    return [DatabaseFinding("transactions", "advice", line) for line in lines]


def _oldest(found: Sequence[Row[Any]], long: float) -> str:
    first = found[0]
    where = "prepared" if first.pid is None else f"process {first.pid}"
    return f"{len(found)} open for more than {long:g} s, the oldest for {first.seconds:.0f} s in {first.database} ({where})"


def _waiting(connection: Connection, schema: str | None) -> list[DatabaseFinding]:
    table = outbox_table(MetaData(), schema)
    if closed := unreadable(connection, "outbox", "what waits", table):
        return closed
    waiting = backlog(connection, table)
    age = 0.0 if waiting.oldest is None else (datetime.now(UTC) - waiting.oldest).total_seconds()
    if age > LONG_SECONDS:
        line = f"{waiting.rows} rows wait, the oldest for {age:.0f} s: does a relay run? oncegate relay"
        found = [DatabaseFinding("outbox", "advice", line)]
    else:
        found = [DatabaseFinding("outbox", "good", f"{waiting.rows} rows wait, none for long")]
    if waiting.held:
        line = f"{waiting.held} rows were refused, and hold up their aggregates: {command_line('outbox list --held', schema)}"
        found.append(DatabaseFinding("outbox", "advice", line))
    return found


def _sources(connection: Connection, schema: str | None) -> list[DatabaseFinding]:
    """How far tables of events are published; what waits there only their relays know."""
    table = checkpoint_table(MetaData(), schema)
    found = unreadable(connection, "source", "how far tables of events are published", table)
    if found:
        return found
    for row in connection.execute(select(table).order_by(table.c.source)):
        transaction = f"transaction {row.transaction}, " if row.transaction else ""
        ahead = len(orjson.loads(row.ahead))
        reached = f"{transaction}position {row.position}"
        line = f"{row.source} is published up to {reached}, and {ahead} positions, or runs of them, behind that"
        found.append(DatabaseFinding("source", "good", line))
    return found
