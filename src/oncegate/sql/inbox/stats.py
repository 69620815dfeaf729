"""An inbox's table in numbers: how many rows, since when, of which consumers.

Strategy. A table of markers may have hundreds of millions of rows, and no database is to read them all for a number. So only a
small table is counted. A large one is estimated: by PostgreSQL's planner and its statistics (`ANALYZE`), by SQLite's row ids,
which ascend. The consumers are few: each is found by one step in the primary key, from the one before.
"""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import orjson
from sqlalchemy import Connection, MetaData, Select, Table, func, literal_column, select, text

from oncegate.sql.database.access import check_there, in_database
from oncegate.sql.database.types import spelled, utc
from oncegate.sql.marking.table import ALL_CONSUMERS, NO_MESSAGE, inbox_table

MOST_COUNTED: Final = 100_000
"""Rows of a table that is counted, on SQLite."""
MOST_COUNTED_BYTES: Final = 16 * 1024 * 1024
"""The largest table that is counted, on PostgreSQL."""
_ROW_ID: Final[Any] = literal_column("rowid")


@dataclass(frozen=True, slots=True)
class InboxStats:
    """``rows`` of ``table``, by consumer too, ``None`` where that isn't known; ``oldest`` is when the oldest was written.

    ``estimated``: the table is too large to be counted.
    """

    table: str
    rows: int
    estimated: bool
    oldest: datetime | None
    consumers: dict[str, int | None]

    def as_json(self) -> dict[str, Any]:
        """The members of the statistics."""
        return asdict(self) | {"oldest": None if self.oldest is None else self.oldest.isoformat()}


def of_database(database: str, schema: str | None) -> InboxStats:
    """`stats` of the inbox in the database of a URL. Raises `NotDone`."""
    table = inbox_table(MetaData(), schema)

    def read(connection: Connection) -> InboxStats:
        check_there(connection, table)
        return stats(connection, table)

    return in_database(database, read)


def stats(connection: Connection, table: Table) -> InboxStats:
    """The inbox's numbers, without reading all of a large table."""
    if connection.dialect.name == "postgresql":
        name = spelled(table, "postgresql")
        size = connection.scalar(text("SELECT pg_relation_size(CAST(:name AS regclass))"), {"name": name})
        is_small = int(size or 0) <= MOST_COUNTED_BYTES
        return _counted(connection, table) if is_small else _estimated_postgresql(connection, table)
    # Two queries: for one with both SQLite reads all rows.
    first, last = (connection.scalar(select(end(_ROW_ID)).select_from(table)) or 0 for end in (func.min, func.max))
    rows = last - first + 1
    return _counted(connection, table) if rows <= MOST_COUNTED else _estimated_sqlite(connection, table, rows)


def consumers(connection: Connection, table: Table) -> list[str]:
    """The names that have markers, in order; one step in the index for each."""
    step = select(func.min(table.c.consumer).label("name")).cte("step", recursive=True)
    after = select(func.min(table.c.consumer)).where(table.c.consumer > step.c.name).scalar_subquery()
    step = step.union_all(select(after).where(step.c.name.is_not(None)))
    return list(connection.scalars(select(step.c.name).where(step.c.name > ALL_CONSUMERS)))


def _counted(connection: Connection, table: Table) -> InboxStats:
    by_consumer = select(table.c.consumer, func.count(), func.min(table.c.received_at))
    of_messages = by_consumer.where(table.c.message != NO_MESSAGE).group_by(table.c.consumer)
    rows = connection.execute(of_messages.order_by(table.c.consumer)).all()
    counts: dict[str, int | None] = {name: count for name, count, _ in rows}
    oldest = min((oldest for *_, oldest in rows), default=None)
    total = sum(count for _, count, _ in rows)
    return InboxStats(table.fullname, total, False, None if oldest is None else utc(oldest), counts)


def _estimated_postgresql(connection: Connection, table: Table) -> InboxStats:
    bounds = text(
        "SELECT (CAST(CAST(histogram_bounds AS text) AS timestamptz[]))[1] FROM pg_stats"
        " WHERE schemaname = COALESCE(:schema, current_schema()) AND tablename = :name AND attname = 'received_at'"
    )
    oldest: datetime | None = connection.scalar(bounds, {"schema": table.schema, "name": table.name})
    every = select(table.c.message)
    by_consumer: dict[str, int | None] = {
        name: _planned(connection, every.where(table.c.consumer == name)) for name in consumers(connection, table)
    }
    rows = _planned(connection, every)
    return InboxStats(table.fullname, rows, True, None if oldest is None else utc(oldest), by_consumer)


def _planned(connection: Connection, query: Select[Any]) -> int:
    """How many rows the planner expects, by the statistics and the table's size."""
    statement = query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
    plan = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}").scalar_one()
    if isinstance(plan, str):  # asyncpg leaves it to its user to read JSON
        plan = orjson.loads(plan)
    return int(plan[0]["Plan"]["Plan Rows"])


def _estimated_sqlite(connection: Connection, table: Table, rows: int) -> InboxStats:
    oldest = connection.scalar(select(table.c.received_at).order_by(_ROW_ID).limit(1))
    names: dict[str, int | None] = dict.fromkeys(consumers(connection, table))
    return InboxStats(table.fullname, rows, True, None if oldest is None else utc(oldest), names)
