"""The outbox's table as a source: rows are locked while they are published, and removed one by one as they are confirmed.

Strategy (PostgreSQL). What is published next of an aggregate is its head: the waiting row with the lowest number. The index has
them in order of aggregates and numbers, so each head is one step in it from the one before, however many rows are behind (a loose
index scan, as a recursive query). The head's row is locked, and with it its aggregate: a relay that can't lock the head, for
another one has it, leaves the aggregate alone, and never goes on to the second row, as SKIP LOCKED by itself would. Whoever has
the head takes rows behind it along. Numbers are committed in their order, so none that is lower can appear later.

A head is looked up by its id once more where it is locked: if another relay has published it meanwhile it is gone, or marked, and
PostgreSQL looks at the newest version of a row that it locks.

SQLite has one relay at a time, which reads rows in the order of their ids: that of their commits, since it has one writer.
"""

import os
from collections.abc import Sequence
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Engine, MetaData, Table, bindparam, column, func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.types import BigInteger, Float, Integer, LargeBinary, Text, TypeEngine

from oncegate.middleware.consumers.sql_interface import Backoff
from oncegate.sql.database.access import in_transaction
from oncegate.sql.database.names import check_name
from oncegate.sql.database.terms import CLOCK, LONGEST_KEPT
from oncegate.sql.database.types import quoted, utc
from oncegate.sql.outbox.sources.database_source import DatabaseSource
from oncegate.sql.outbox.sources.source import OutboxBacklog, OutboxMessage, RefusedMessage
from oncegate.sql.outbox.tables import outbox_table
from oncegate.sql.reading.event_reader import MOST_COUNTED

_LAST: Final = b"\xff" * 33
"""Behind every digest."""
_FEW: Final = 10
"""The share of a batch that one aggregate has at most, while there are others."""

_COLUMNS: Final = [
    "id",
    "sequence",
    "topic",
    "key",
    "aggregate",
    "aggregate_id",
    "correlation",
    "headers",
    "body",
    "attempts",
]

_IN_LINE: Final = """\
WITH RECURSIVE heads AS (
    (SELECT id, aggregate FROM {table} WHERE published_at IS NULL AND aggregate > :_after AND aggregate <= :_until
        ORDER BY aggregate, sequence LIMIT 1)
    UNION ALL
    SELECT following.id, following.aggregate FROM heads CROSS JOIN LATERAL (
        SELECT id, aggregate FROM {table}
            WHERE published_at IS NULL AND aggregate > heads.aggregate AND aggregate <= :_until
            ORDER BY aggregate, sequence LIMIT 1) AS following
), taken AS MATERIALIZED (
    SELECT head.aggregate, head.sequence FROM heads CROSS JOIN LATERAL (
        SELECT aggregate, sequence FROM {table} WHERE id = heads.id AND published_at IS NULL AND {ready}
            FOR UPDATE SKIP LOCKED) AS head
)
SELECT {rows} FROM taken CROSS JOIN LATERAL (
    SELECT {columns} FROM {table} WHERE published_at IS NULL AND aggregate = taken.aggregate
        AND sequence >= taken.sequence ORDER BY sequence LIMIT :_each) AS message
LIMIT :_most
"""
"""Each part is evaluated as far as the next one needs it: no more heads are locked than give ``_most`` rows."""

_FREE: Final = """\
SELECT {columns} FROM {table} WHERE published_at IS NULL AND aggregate IS NULL AND {ready}
ORDER BY id LIMIT :_most FOR UPDATE SKIP LOCKED
"""

_SQLITE: Final = """\
SELECT {columns} FROM {table} AS message WHERE published_at IS NULL AND {ready} AND (aggregate IS NULL OR (
    SELECT {ready} FROM {table} AS head WHERE head.published_at IS NULL AND head.aggregate = message.aggregate
        ORDER BY head.sequence LIMIT 1))
ORDER BY id LIMIT :_most
"""

_GIVEN: Final = {
    "postgresql": "id = ANY(ARRAY(SELECT CAST(json_array_elements_text(CAST(:_ids AS json)) AS bigint)))",
    "sqlite": "id IN (SELECT value FROM json_each(:_ids))",
}

_REMOVE: Final = "DELETE FROM {table} WHERE {given}"
_MARK: Final = "UPDATE {table} SET published_at = {now}, due_at = NULL WHERE {given}"
_REFUSE: Final = """\
UPDATE {table} SET attempts = attempts + 1, refusal = :_refusal, due_at = {after},
    dead = :_attempts > 0 AND attempts + 1 >= :_attempts
WHERE id = :_id
"""
_MOST_TIDIED: Final = 5000
_TIDY: Final = "DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE published_at < {after} LIMIT :_limit)"


class OutboxSource(DatabaseSource):
    """The messages of ``outboxes`` (of all, if none are named) in the table ``oncegate_outbox``.

    - ``schema``: where the table is, if the connection doesn't look there by itself.
    - ``attempts``: refusals after which a message is dead, and an operator decides; 0: it is never given up. Until then it is
      tried again after pauses that grow from 1 s to 60 s, and what is behind it in its aggregate waits.
    - ``keep``: seconds after its confirmation until a message is deleted.
    - ``stall_limit``: seconds of silence after which PostgreSQL frees the rows that a relay has taken.
    - ``pauses``: other pauses than these.

    On SQLite one relay works at a time, by a lock on a file beside the database: the others wait until it ends.
    """

    def __init__(
        self,
        engine: AsyncEngine | Engine,
        *outboxes: str,
        schema: str | None = None,
        attempts: int = 0,
        keep: float = 0.0,
        stall_limit: float = 30.0,
        pauses: Backoff | None = None,
    ) -> None:
        name = ", ".join(check_name("the name of an outbox", name) for name in outboxes) or "all"
        table = outbox_table(MetaData(), schema)
        super().__init__(engine, table, name, stall_limit=stall_limit, attempts=attempts, pauses=pauses)
        if not 0 <= keep <= LONGEST_KEPT:
            raise ValueError("keep is 0 or more, and no more than 100 years")
        self._statements = _OutboxStatements(engine.dialect.name, table, outboxes)
        self._keep = keep
        self._after = os.urandom(32)  # so that several relays begin at different aggregates
        self._wide = True
        """Whether the next batch has only a few rows of each aggregate."""
        self._lines_first = True

    def _taken(self, connection: Connection, most: int) -> list[OutboxMessage]:
        """Half of the times those without an aggregate come first, so that neither kind waits for the other."""
        if not self._is_postgresql:
            return _messages(connection, self._statements.in_order, _most=most)
        self._lines_first = not self._lines_first
        found = self._in_line(connection, most) if self._lines_first else []
        if len(found) < most:
            found += _messages(connection, self._statements.free, _most=most - len(found))
        if len(found) < most and not self._lines_first:
            found += self._in_line(connection, most - len(found))
        return found

    def _in_line(self, connection: Connection, most: int) -> list[OutboxMessage]:
        """From the aggregate on that follows the last one, around once: none is served twice while another one waits."""
        found: list[OutboxMessage] = []
        begin = self._after
        each = max(1, most // _FEW) if self._wide else most
        for after, until in ((begin, _LAST), (b"", begin)):
            given = {"_after": after, "_until": until, "_each": each, "_most": most - len(found)}
            found += _messages(connection, self._statements.in_line, **given)
            if len(found) >= most:
                self._after = bytes(found[-1].line)
                break
        self._wide = len(found) >= most and found[0].line != found[-1].line
        return found

    def _settled(
        self, connection: Connection, confirmed: Sequence[OutboxMessage], refused: Sequence[RefusedMessage]
    ) -> None:
        if confirmed:
            ids = orjson.dumps([message.position for message in confirmed]).decode()
            connection.execute(self._statements.mark if self._keep else self._statements.remove, {"_ids": ids})
        for refusal in refused:
            pause = self._pauses.pause(refusal.message.attempts + 1)
            given = {"_refusal": refusal.reason, "_seconds": pause, "_attempts": self._attempts}
            connection.execute(self._statements.refuse, {**given, "_id": refusal.message.position})

    async def measure(self) -> OutboxBacklog:
        """See `Source`. What was kept for long enough is deleted."""
        while self._keep and await in_transaction(self._engine, self._tidied) == _MOST_TIDIED:
            continue
        return await in_transaction(self._engine, lambda connection: backlog(connection, self._table))

    def _tidied(self, connection: Connection) -> int:
        """How many rows were deleted in one transaction."""
        return connection.execute(self._statements.tidy, {"_seconds": -self._keep, "_limit": _MOST_TIDIED}).rowcount


def backlog(connection: Connection, table: Table) -> OutboxBacklog:
    """The backlog of all outboxes in ``table``."""
    waiting = select(table.c.added_at, table.c.dead, table.c.due_at).where(table.c.published_at.is_(None))
    some = waiting.limit(MOST_COUNTED).subquery()
    is_held = some.c.dead | some.c.due_at.is_not(None)
    query = select(func.count(), func.min(some.c.added_at), func.count().filter(is_held)).select_from(some)
    rows, oldest, held = connection.execute(query).one()
    return OutboxBacklog(rows, None if oldest is None else utc(oldest), held)


def _messages(connection: Connection, statement: Any, **given: Any) -> list[OutboxMessage]:
    return [
        OutboxMessage(
            position=row.id,
            topic=row.topic,
            key=row.key,
            body=bytes(row.body),
            headers=orjson.loads(row.headers) if row.headers else {},
            correlation=row.correlation,
            aggregate=row.aggregate_id or "",
            sequence=row.sequence,
            line=row.aggregate,
            attempts=row.attempts,
        )
        for row in connection.execute(statement, given)
    ]


class _OutboxStatements:
    """The statements of one dialect. Instants are the database's; ``outboxes`` are those that are wanted, none for all."""

    def __init__(self, dialect: str, table: Table, outboxes: tuple[str, ...]) -> None:
        now = CLOCK[dialect].format(0)
        ready = f"NOT dead AND (due_at IS NULL OR due_at <= {now})"
        if outboxes:
            names = ", ".join(f"'{name}'" for name in outboxes)  # of letters, digits, '.', '_' and '-'
            ready += f" AND outbox IN ({names})"
        words = {
            "table": quoted(table, dialect),
            "ready": ready,
            "columns": ", ".join(_COLUMNS),
            "rows": ", ".join(f"message.{name}" for name in _COLUMNS),
            "given": _GIVEN[dialect],
            "now": now,
            "after": CLOCK[dialect].format(":_seconds"),
        }

        def statement(text_of: str, **types: TypeEngine[Any]) -> Any:
            return text(text_of.format(**words)).bindparams(*[bindparam(name, type_=types[name]) for name in types])

        digests = {"_after": LargeBinary(), "_until": LargeBinary()}
        self.in_line = statement(_IN_LINE, _each=Integer(), _most=Integer(), **digests).columns(*map(column, _COLUMNS))
        self.free = statement(_FREE, _most=Integer()).columns(*map(column, _COLUMNS))
        self.in_order = statement(_SQLITE, _most=Integer()).columns(*map(column, _COLUMNS))
        self.remove = statement(_REMOVE, _ids=Text())
        self.mark = statement(_MARK, _ids=Text())
        self.refuse = statement(_REFUSE, _refusal=Text(), _seconds=Float(), _attempts=Integer(), _id=BigInteger())
        self.tidy = statement(_TIDY, _seconds=Float(), _limit=Integer())
