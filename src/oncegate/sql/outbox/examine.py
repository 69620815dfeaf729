"""What keeps an outbox from being published, as far as its database shows it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

import orjson
from sqlalchemy import Connection, MetaData, func, inspect, or_, select, text

from oncegate.sql.database.access import in_database
from oncegate.sql.database.types import utc
from oncegate.sql.outbox.tables import CHECKPOINTS, MESSAGES, SEQUENCES, checkpoint_table, outbox_table, sequence_table

LONG_SECONDS: Final = 60.0
"""After which a message, or a transaction, has been there for long."""
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


@dataclass(frozen=True, slots=True)
class DatabaseFinding:
    """One line of what was found."""

    area: str
    severity: Literal["good", "advice", "failed"]
    text: str


def examine(database: str, schema: str | None) -> list[DatabaseFinding]:
    """The tables, what the role may, open transactions, what waits. Raises `NotDone` where the database can't be looked at."""

    def look(connection: Connection) -> list[DatabaseFinding]:
        found = _tables(connection, schema)
        if connection.dialect.name == "postgresql":
            found += _transactions(connection)
        if all(each.severity != "failed" for each in found):
            found += [*_waiting(connection, schema), *_sources(connection, schema)]
        return found

    return in_database(database, look)


def _tables(connection: Connection, schema: str | None) -> list[DatabaseFinding]:
    found = []
    option = f" --schema {schema}" if schema else ""
    for make in (outbox_table, sequence_table, checkpoint_table):
        table = make(MetaData(), schema)
        if not inspect(connection).has_table(table.name, schema=schema):
            line = f"{table.fullname} is missing: oncegate outbox create --database URL{option}"
            found.append(DatabaseFinding("table", "failed", line))
            continue
        columns = {each["name"] for each in inspect(connection).get_columns(table.name, schema=schema)}
        if missing := sorted(set(table.c.keys()) - columns):
            line = f"{table.fullname} has no column {', '.join(missing)}: it is of another version"
            found.append(DatabaseFinding("table", "failed", line))
        elif lacking := _lacking(connection, table.fullname, _NEEDED[table.name]):
            line = f"{table.fullname}: this role has no {lacking}; who adds, or relays, needs it"
            found.append(DatabaseFinding("table", "advice", line))
        else:
            found.append(DatabaseFinding("table", "good", f"{table.fullname} is there, and this role may use it"))
    return found


def _lacking(connection: Connection, table: str, needed: str) -> str:
    if connection.dialect.name != "postgresql":
        return ""
    query = text("SELECT has_table_privilege(current_user, CAST(:table AS text), CAST(:privilege AS text))")
    wanted = needed.split(", ")
    return ", ".join(each for each in wanted if not connection.scalar(query, {"table": table, "privilege": each}))


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
