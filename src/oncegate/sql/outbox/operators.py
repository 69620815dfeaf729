"""What operators see of an outbox, and do to what is in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Connection, Engine, MetaData, Table, delete, inspect, or_, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.schema import CreateIndex, CreateTable

from oncegate.sql.database.access import NotDone, database_url, in_database, in_transaction
from oncegate.sql.database.types import utc
from oncegate.sql.outbox.tables import checkpoint_table, outbox_table, sequence_table


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A message that is in the table."""

    id: int
    outbox: str
    topic: str
    key: str
    aggregate: str | None
    sequence: int | None
    added_at: datetime
    published_at: datetime | None
    due_at: datetime | None
    attempts: int
    dead: bool
    refusal: str | None
    correlation: str
    headers: dict[str, str]
    body: bytes

    @property
    def state(self) -> str:
        """``waiting``, ``refused`` (and tried again), ``dead`` or ``published`` (and kept)."""
        if self.published_at is not None:
            return "published"
        return "dead" if self.dead else "refused" if self.due_at is not None else "waiting"

    def as_json(self) -> dict[str, Any]:
        """Its members, but the body."""
        return {
            "id": self.id,
            "state": self.state,
            "outbox": self.outbox,
            "topic": self.topic,
            "key": self.key,
            "aggregate": self.aggregate,
            "sequence": self.sequence,
            "added_at": self.added_at.isoformat(),
            "published_at": None if self.published_at is None else self.published_at.isoformat(),
            "attempts": self.attempts,
            "refusal": self.refusal,
            "correlation": self.correlation,
            "headers": self.headers,
            "body_bytes": len(self.body),
        }


def definition(database: str, schema: str | None) -> str:
    """The statements that create the tables, for a migration of your own. Raises `NotDone`."""
    dialect = database_url(database).get_dialect()()
    statements: list[CreateTable | CreateIndex] = []
    for table in _tables(schema):
        statements += [CreateTable(table), *map(CreateIndex, sorted(table.indexes, key=lambda each: str(each.name)))]
    texts = [str(statement.compile(dialect=dialect)).strip().splitlines() for statement in statements]
    return "\n".join("\n".join(line.replace("\t", "    ").rstrip() for line in lines) + ";" for lines in texts)


def create(database: str, schema: str | None) -> bool:
    """Create the tables; whether one of them was not there. Raises `NotDone`."""

    def create_in(connection: Connection) -> bool:
        missing = [each for each in _tables(schema) if not inspect(connection).has_table(each.name, schema=schema)]
        for table in missing:
            table.create(connection)
        return bool(missing)

    return in_database(database, create_in, makes=True)


def rows(
    database: str, schema: str | None, *, outbox: str | None, aggregate: str | None, held: bool, most: int
) -> list[OutboxRow]:
    """The oldest messages that are not published; with ``held``, those that were refused or are dead. Raises `NotDone`."""
    table = outbox_table(MetaData(), schema)
    query = select(table).where(table.c.published_at.is_(None)).order_by(table.c.id).limit(most)
    if outbox is not None:
        query = query.where(table.c.outbox == outbox)
    if aggregate is not None:
        query = query.where(table.c.aggregate_id == aggregate)
    if held:
        query = query.where(or_(table.c.dead, table.c.due_at.is_not(None)))

    def read(connection: Connection) -> list[OutboxRow]:
        check_there(connection, table)
        return [_row(row) for row in connection.execute(query)]

    return in_database(database, read)


def find(database: str, schema: str | None, number: int) -> OutboxRow | None:
    """The message with this id. Raises `NotDone`."""
    table = outbox_table(MetaData(), schema)

    def read(connection: Connection) -> OutboxRow | None:
        check_there(connection, table)
        found = connection.execute(select(table).where(table.c.id == number)).one_or_none()
        return None if found is None else _row(found)

    return in_database(database, read)


def retry(database: str, schema: str | None, numbers: Sequence[int]) -> int:
    """Have messages tried at once, and with as many attempts as a new one; all that are dead, if none are named. How many.

    Raises `NotDone`.
    """
    table = outbox_table(MetaData(), schema)
    chosen = table.c.id.in_(numbers) if numbers else table.c.dead
    statement = update(table).where(table.c.published_at.is_(None), chosen)

    def change(connection: Connection) -> int:
        check_there(connection, table)
        return connection.execute(statement.values(dead=False, due_at=None, attempts=0)).rowcount

    return in_database(database, change)


def discard(database: str, schema: str | None, number: int) -> OutboxRow | None:
    """Delete a message that is not published: what is behind it in its aggregate goes on. What it was. Raises `NotDone`."""
    table = outbox_table(MetaData(), schema)
    chosen = (table.c.id == number, table.c.published_at.is_(None))

    def change(connection: Connection) -> OutboxRow | None:
        check_there(connection, table)
        found = connection.execute(delete(table).where(*chosen).returning(*table.c)).one_or_none()
        return None if found is None else _row(found)

    return in_database(database, change)


async def check_tables(engine: AsyncEngine | Engine, schema: str | None) -> None:
    """Raises `NotDone` where a relay would find no table, and SQLAlchemy's errors."""
    table = outbox_table(MetaData(), schema)
    await in_transaction(engine, lambda connection: check_there(connection, table))


def check_there(connection: Connection, table: Table) -> None:
    """Raises `NotDone`, with the command that makes it, where there is no such table."""
    if not inspect(connection).has_table(table.name, schema=table.schema):
        schema = f" --schema {table.schema}" if table.schema else ""
        raise NotDone(f"there is no table {table.fullname}: oncegate outbox create --database URL{schema}")


def _tables(schema: str | None) -> tuple[Table, ...]:
    return tuple(make(MetaData(), schema) for make in (outbox_table, sequence_table, checkpoint_table))


def _row(row: Any) -> OutboxRow:
    return OutboxRow(
        id=row.id,
        outbox=row.outbox,
        topic=row.topic,
        key=row.key,
        aggregate=row.aggregate_id,
        sequence=row.sequence,
        added_at=utc(row.added_at),
        published_at=None if row.published_at is None else utc(row.published_at),
        due_at=None if row.due_at is None else utc(row.due_at),
        attempts=row.attempts,
        dead=row.dead,
        refusal=row.refusal,
        correlation=row.correlation,
        headers=orjson.loads(row.headers) if row.headers else {},
        body=bytes(row.body),
    )
