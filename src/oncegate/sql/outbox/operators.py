"""The operators' view of an outbox, and their actions on its messages. All raise `NotDone`."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import orjson
from sqlalchemy import ColumnElement, Connection, MetaData, Row, Select, Table, delete, func, or_, select, update

from oncegate.sql.database.access import Database, check_there, in_database
from oncegate.sql.database.types import utc
from oncegate.sql.outbox.tables import outbox_table

Result = TypeVar("Result")


OutboxRow = dict[str, Any]
"""A message as JSON, but for its body: ``waiting``, ``refused`` (and tried again), ``dead`` or ``published`` (and kept)."""


def rows(
    database: Database,
    schema: str | None,
    *,
    outbox: str | None = None,
    aggregate: str | None = None,
    held: bool = False,
    most: int,
    after: int = 0,
) -> list[OutboxRow]:
    """The oldest messages that are not published, behind that of the id ``after``; with ``held``, those that were refused or
    are dead.
    """

    def read(connection: Connection, table: Table) -> list[OutboxRow]:
        query = _described(table).where(table.c.published_at.is_(None)).order_by(table.c.id).limit(most)
        if after:
            query = query.where(table.c.id > after)
        if outbox is not None:
            query = query.where(table.c.outbox == outbox)
        if aggregate is not None:
            query = query.where(table.c.aggregate_id == aggregate)
        if held:
            query = query.where(or_(table.c.dead, table.c.due_at.is_not(None)))
        return [_message(row) for row in connection.execute(query)]

    return _in_outbox(database, schema, read)


def find(database: Database, schema: str | None, number: int) -> tuple[OutboxRow, bytes] | None:
    """The message with this id, and its body."""

    def read(connection: Connection, table: Table) -> tuple[OutboxRow, bytes] | None:
        found = connection.execute(_described(table, table.c.body).where(table.c.id == number)).one_or_none()
        return None if found is None else (_message(found), bytes(found.body))

    return _in_outbox(database, schema, read)


def retry(database: Database, schema: str | None, numbers: Sequence[int]) -> int:
    """Have messages tried at once, and with as many attempts as a new one; all that are dead, if none are named. How many."""

    def change(connection: Connection, table: Table) -> int:
        chosen = table.c.id.in_(numbers) if numbers else table.c.dead
        statement = update(table).where(table.c.published_at.is_(None), chosen)
        return connection.execute(statement.values(dead=False, due_at=None, attempts=0)).rowcount

    return _in_outbox(database, schema, change)


def discard(database: Database, schema: str | None, number: int) -> OutboxRow | None:
    """Delete a message that is not published: what is behind it in its aggregate goes on. What it was."""

    def change(connection: Connection, table: Table) -> OutboxRow | None:
        chosen = (table.c.id == number, table.c.published_at.is_(None))
        gone = delete(table).where(*chosen).returning(*_columns(table))
        return next(map(_message, connection.execute(gone)), None)

    return _in_outbox(database, schema, change)


def _in_outbox(database: Database, schema: str | None, step: Callable[[Connection, Table], Result]) -> Result:
    """The result of ``step`` in a transaction of its own."""
    table = outbox_table(MetaData(), schema)

    def run(connection: Connection) -> Result:
        check_there(connection, table, group="outbox")
        return step(connection, table)

    return in_database(database, run)


def _described(table: Table, *more: ColumnElement[Any]) -> Select[Any]:
    return select(*_columns(table), *more)


def _columns(table: Table) -> list[ColumnElement[Any]]:
    """All but the body, of which a list needs the size alone."""
    return [*(column for column in table.c if column.name != "body"), func.length(table.c.body).label("body_bytes")]


def _message(row: Row[Any]) -> OutboxRow:
    state = "dead" if row.dead else "refused" if row.due_at is not None else "waiting"
    return {
        "id": row.id,
        "state": state if row.published_at is None else "published",
        "outbox": row.outbox,
        "topic": row.topic,
        "key": row.key,
        "aggregate": row.aggregate_id,
        "sequence": row.sequence,
        "added_at": utc(row.added_at).isoformat(),
        "published_at": None if row.published_at is None else utc(row.published_at).isoformat(),
        "attempts": row.attempts,
        "refusal": row.refusal,
        "correlation": row.correlation,
        "headers": orjson.loads(row.headers) if row.headers else {},
        "body_bytes": row.body_bytes,
    }
