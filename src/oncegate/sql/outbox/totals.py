"""Counts of what waits in a database, for an overview: aggregates, messages of outboxes, projections that stand still."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, MetaData, Table, func, inspect, or_, select

from oncegate.sql.database.access import Database, in_database
from oncegate.sql.database.findings import privileges
from oncegate.sql.order.table import order_table, parked_table
from oncegate.sql.order.waiting import waiting_totals
from oncegate.sql.outbox.tables import outbox_table
from oncegate.sql.projections.table import projection_table
from oncegate.sql.reading.event_reader import MOST_COUNTED


@dataclass(frozen=True, slots=True)
class AggregateTotals:
    """``waiting`` aggregates, the messages that are ``parked`` behind them, and since when the ``oldest`` waits."""

    waiting: int
    parked: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True)
class OutboxTotals:
    """Messages that are not published, 100,000 for more: those that are ``held`` were refused, or are ``dead``."""

    waiting: int
    held: int
    dead: int


@dataclass(frozen=True, slots=True)
class ProjectionTotals:
    """Projections ``there`` are, and those that are ``stuck`` at an event."""

    there: int
    stuck: int


@dataclass(frozen=True, slots=True)
class DatabaseTotals:
    """The totals of what is there, and of what this role may read; ``None`` else."""

    aggregates: AggregateTotals | None
    outbox: OutboxTotals | None
    projections: ProjectionTotals | None

    def as_json(self) -> dict[str, Any]:
        """Its members."""
        members = asdict(self)
        if self.aggregates is not None and self.aggregates.oldest is not None:
            members["aggregates"]["oldest"] = self.aggregates.oldest.isoformat()
        return members


def database_totals(database: Database, schema: str | None) -> DatabaseTotals:
    """Those of a database. Raises `NotDone`."""

    def read(connection: Connection) -> DatabaseTotals:
        order, parked = order_table(MetaData(), schema), parked_table(MetaData(), schema)
        outbox, projections = outbox_table(MetaData(), schema), projection_table(MetaData(), schema)
        return DatabaseTotals(
            _aggregates(connection, order, parked) if _is_read(connection, order, parked) else None,
            _outbox(connection, outbox) if _is_read(connection, outbox) else None,
            _projections(connection, projections) if _is_read(connection, projections) else None,
        )

    return in_database(database, read)


def _is_read(connection: Connection, *tables: Table) -> bool:
    return all(
        inspect(connection).has_table(table.name, schema=table.schema) and "SELECT" in privileges(connection, table)
        for table in tables
    )


def _aggregates(connection: Connection, order: Table, parked: Table) -> AggregateTotals:
    found = waiting_totals(connection, order, parked)
    oldest = min((each.oldest for each in found), default=None)
    return AggregateTotals(sum(each.aggregates for each in found), sum(each.messages for each in found), oldest)


def _outbox(connection: Connection, table: Table) -> OutboxTotals:
    some = select(table.c.dead, table.c.due_at).where(table.c.published_at.is_(None)).limit(MOST_COUNTED).subquery()
    is_held = or_(some.c.dead, some.c.due_at.is_not(None))
    query = select(func.count(), func.count().filter(is_held), func.count().filter(some.c.dead)).select_from(some)
    return OutboxTotals(*connection.execute(query).one())


def _projections(connection: Connection, table: Table) -> ProjectionTotals:
    query = select(func.count(), func.count(table.c.failed_position))
    return ProjectionTotals(*connection.execute(query).one())
