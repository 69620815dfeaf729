"""Projections for operators, and what they do about an event whose handler fails. All that takes a URL raises `NotDone`."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import orjson
from sqlalchemy import BigInteger, Column, Connection, MetaData, Row, Table, inspect, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from oncegate.sql.database.access import Database, NotDone, NotInDatabase, check_there, command_line, in_database
from oncegate.sql.database.findings import LONG_SECONDS, DatabaseFinding, table_findings, unreadable
from oncegate.sql.database.terms import wait_limit
from oncegate.sql.database.types import utc
from oncegate.sql.projections.table import PROJECTIONS, projection_table
from oncegate.sql.reading.checkpoint import Checkpoint, TransactionOrder
from oncegate.sql.reading.event_reader import EventColumns, EventReader

Result = TypeVar("Result")

_TASKS: Final = {"apply events": {PROJECTIONS: "SELECT, INSERT, UPDATE"}, "see how far": {PROJECTIONS: "SELECT"}}
_WAIT: Final = 10.0
"""Seconds for the batch under way, behind which an event is skipped."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Of a projection: ``behind`` rows of ``events`` are to be applied; 100,000 stands for more, ``None`` where this role can't
    count them. ``stuck_at`` is the position of the event whose handler fails, since ``stuck_since``.
    """

    name: str
    events: str
    behind: int | None
    transaction: int
    position: int
    moved_at: datetime | None
    stuck_at: int | None
    stuck_since: datetime | None
    attempts: int
    reason: str | None

    def as_json(self) -> dict[str, Any]:
        """Its members."""
        instants = {"moved_at": self.moved_at, "stuck_since": self.stuck_since}
        return asdict(self) | {name: None if at is None else at.isoformat() for name, at in instants.items()}

    def finding(self, schema: str | None) -> DatabaseFinding:
        """A line for operators."""
        line = f"{self.name}: {'an unknown number of' if self.behind is None else self.behind} rows behind"
        if self.stuck_since is not None:
            line += f", stands at position {self.stuck_at} since {self.stuck_since:%Y-%m-%d %H:%M:%S} UTC"
            return DatabaseFinding(
                "projection", "advice", f"{line}: {command_line(f'projections show {self.name}', schema)}"
            )
        age = LONG_SECONDS + 1 if self.moved_at is None else (datetime.now(UTC) - self.moved_at).total_seconds()
        if self.behind and age > LONG_SECONDS:
            since = "nothing was applied yet" if self.moved_at is None else f"nothing was applied for {age:.0f} s"
            return DatabaseFinding("projection", "advice", f"{line}, and {since}: does it run? oncegate project")
        return DatabaseFinding("projection", "good", line)


def standings(database: Database, schema: str | None) -> list[Standing]:
    """Those of all projections, by name."""
    return _in_projections(database, schema, _standings)


def find(database: Database, schema: str | None, name: str) -> Standing:
    """That of one."""
    found = [each for each in standings(database, schema) if each.name == name]
    if not found:
        raise NotInDatabase(f"there is no projection {name}: it has never run here")
    return found[0]


def skip(database: Database, schema: str | None, name: str, position: int) -> None:
    """Have the event at ``position``, at which the projection stands, passed without being applied."""

    def change(connection: Connection, table: Table) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT {wait_limit(_WAIT)}"))
        its = table.c.name == name
        # A write first, and so a lock: the runner may be trying it just now.
        locked = update(table).where(its).values(name=table.c.name).returning(table.c.failed_position, table.c.ahead)
        row = connection.execute(locked).one_or_none()
        if row is None:
            raise NotInDatabase(f"there is no projection {name}: it has never run here")
        if row.failed_position != position:
            at = "at no event" if row.failed_position is None else f"at position {row.failed_position}"
            raise NotDone(f"{name} stands {at}: only the event at which it stands can be skipped")
        ahead = orjson.dumps(sorted({*orjson.loads(row.ahead), position})).decode()
        healthy = {"failed_at": None, "failed_position": None, "attempts": 0, "reason": None}
        connection.execute(update(table).where(its).values(ahead=ahead, **healthy))

    _in_projections(database, schema, change)


def projection_findings(connection: Connection, schema: str | None) -> list[DatabaseFinding]:
    """The table, what the role may, and for each projection how far behind it is; nothing where there are none."""
    if not inspect(connection).has_table(PROJECTIONS, schema=schema):
        return []
    table = projection_table(MetaData(), schema)
    found = table_findings(connection, [table], _TASKS, group="projections")
    if any(each.severity == "failed" for each in found):
        return found
    if closed := unreadable(connection, "projection", "how far projections are", table):
        return found + closed
    return found + [each.finding(schema) for each in _standings(connection, table)]


def _in_projections(database: Database, schema: str | None, step: Callable[[Connection, Table], Result]) -> Result:
    """The result of ``step`` in a transaction of its own."""
    table = projection_table(MetaData(), schema)

    def run(connection: Connection) -> Result:
        check_there(connection, table, group="projections")
        return step(connection, table)

    return in_database(database, run)


def _standings(connection: Connection, table: Table) -> list[Standing]:
    return [_standing(connection, row) for row in connection.execute(select(table).order_by(table.c.name)).all()]


def _standing(connection: Connection, row: Row[Any]) -> Standing:
    events = orjson.loads(row.events)
    name = events["table"] if events["schema"] is None else f"{events['schema']}.{events['table']}"
    moved, failed = [None if at is None else utc(at) for at in (row.moved_at, row.failed_at)]
    return Standing(
        row.name,
        name,
        _behind(connection, row, events),
        row.transaction,
        row.position,
        moved,
        row.failed_position,
        failed,
        row.attempts,
        row.reason,
    )


def _behind(connection: Connection, row: Row[Any], events: dict[str, Any]) -> int | None:
    """How many rows are to be applied; ``None`` where this role can't count them."""
    columns = EventColumns(events["position"], events["transaction"])
    names = [name for name in (columns.position, columns.transaction) if name is not None]
    table = Table(events["table"], MetaData(), *[Column(name, BigInteger) for name in names], schema=events["schema"])
    order = TransactionOrder(1)
    order.load(Checkpoint(row.transaction, row.position, row.ahead))
    try:
        with connection.begin_nested():
            return EventReader(connection.dialect.name, table, columns, order).count(connection)
    except SQLAlchemyError:
        return None
