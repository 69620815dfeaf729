"""`TableSource`: an append-only table, whose rows can't be marked, as what a relay publishes.

Strategy. How far it is published stands in a checkpoint, which is stored after the broker's confirmation. Which rows come next
is said by an order: that of transactions (PostgreSQL, exact), or a look-back window.

Neither is the order of an aggregate's numbers: a transaction that is older than an open one may have written number 2, and one
that is not may have committed number 1 before. So a row waits while a lower number of its aggregate is not ready, and all behind
it wait, too; and a lower number that is ready, but stands behind it, goes first.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import orjson
from sqlalchemy import BigInteger, Connection, Engine, MetaData, Row, Table, Text, bindparam, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from oncegate.middleware.consumers.sql_interface import Backoff
from oncegate.sql.database.access import in_transaction
from oncegate.sql.database.types import dialect_of, insert_into, quoted
from oncegate.sql.outbox.misuse import check_name
from oncegate.sql.outbox.sources.checkpoint import Checkpoint, Place, TransactionOrder
from oncegate.sql.outbox.sources.database_source import MOST_COUNTED, DatabaseSource
from oncegate.sql.outbox.sources.source import OutboxBacklog, OutboxMessage, RefusedMessage
from oncegate.sql.outbox.sources.window import Window
from oncegate.sql.outbox.tables import checkpoint_table

log = logging.getLogger("oncegate.relay")

_BY_TRANSACTION: Final = {
    "number": "CAST(CAST(t.{transaction} AS text) AS bigint)",
    "ready": "t.{transaction} < pg_snapshot_xmin(pg_current_snapshot())",
    "behind": "(t.{transaction}, t.{position}) > (CAST(CAST(:_transaction AS text) AS xid8), :_position)",
    "order": "t.{transaction}, t.{position}",
}
_BY_POSITION: Final = {"number": "0", "ready": "true", "behind": "t.{position} > :_position", "order": "t.{position}"}
_NEXT: Final = """\
SELECT {number} AS _transaction_number, true AS _is_ready, t.* FROM {table} AS t
WHERE {behind} AND {ready} ORDER BY {order} LIMIT :_most
"""
_LOWER: Final = """\
SELECT {number} AS _transaction_number, {ready} AS _is_ready, t.* FROM {given}
JOIN {table} AS t ON t.{aggregate} = {id} AND t.{sequence} < {highest} WHERE {behind} ORDER BY t.{sequence}
"""
_GIVEN: Final = {
    "postgresql": {
        "given": "json_to_recordset(CAST(:_numbers AS json)) AS given(id {type}, number bigint)",
        "id": "given.id",
        "highest": "given.number",
    },
    "sqlite": {
        "given": "json_each(:_numbers) AS given",
        "id": "json_extract(given.value, '$.id')",
        "highest": "json_extract(given.value, '$.number')",
    },
}
_COUNT: Final = "SELECT count(*) FROM (SELECT 1 FROM {table} AS t WHERE {behind} LIMIT :_most) AS waiting"


class TableSource(DatabaseSource):
    """The rows of ``table``, under the checkpoint ``name`` in ``oncegate_checkpoint``; one relay at a time is at work on it.

    ``message`` makes an `OutboxMessage` of a row: its topic, its body, and a key that is the same each time. ``position`` names
    a column of integers that ascend (an identity). With ``aggregate`` and ``sequence``, columns of an id (text) and its number,
    each aggregate is published in the order of its numbers; an index on both is read.

    On PostgreSQL ``transaction`` names a column of type ``xid8`` with the default ``pg_current_xact_id()``; an index on it and
    ``position`` is read. What an open transaction may still write holds up what is behind it: until the oldest one of the
    server that has written, or is prepared, has ended, nothing is published that began after it. On SQLite, and with
    ``transaction=None``, rows are read in the order of their positions, and for what appears late those again that were the
    last ones ``look_back`` seconds ago, in pages of ``page`` rows: what commits later than so long after a higher position is
    lost. ``recent`` runs of published positions are remembered, and ``kept`` of them stored; among transactions ``kept`` rows
    are published ahead, at most.

    A message that the broker refuses is tried again after a pause, which grows from 1 s to 60 s, and what is behind it in its
    aggregate waits. After ``attempts`` refusals it is dead: passed, with an error in the log. 0: it is never given up.
    """

    def __init__(
        self,
        engine: AsyncEngine | Engine,
        table: Table,
        message: Callable[[Row[Any]], OutboxMessage],
        *,
        name: str,
        position: str = "position",
        transaction: str | None = "transaction",
        aggregate: str | None = None,
        sequence: str | None = None,
        schema: str | None = None,
        look_back: float = 600.0,
        page: int = 50,
        recent: int = 10_000,
        kept: int = 2000,
        attempts: int = 0,
        stall_limit: float = 30.0,
        pauses: Backoff | None = None,
    ) -> None:
        name = check_name("the name of a source", name)
        checkpoints = checkpoint_table(MetaData(), schema)
        super().__init__(engine, checkpoints, name, stall_limit=stall_limit, attempts=attempts, pauses=pauses)
        if (aggregate is None) is not (sequence is None):
            raise ValueError("aggregate and sequence are given together: the column of an id, and that of its number")
        self._message = message
        self._position, self._aggregate, self._sequence = position, aggregate, sequence
        stored = checkpoints.c
        self._checkpoint = select(stored.transaction, stored.position, stored.ahead).where(stored.source == name)
        self._refused: dict[int, tuple[int, float]] = {}
        """By position: how often, and until when it is left alone."""
        transaction = transaction if self._is_postgresql else None
        columns = {"transaction": transaction, "position": position, "aggregate": aggregate, "sequence": sequence}
        self._statements = _TableStatements(engine.dialect.name, table, **columns)
        self._window = Window(look_back, page, recent, kept)  # refuses what contradicts itself in both orders
        self._order: TransactionOrder | Window = self._window if transaction is None else TransactionOrder(kept)
        self.page = page if transaction is None else None
        """The rows that are read at a time, in a window."""

    def _taken(self, connection: Connection, most: int) -> list[OutboxMessage]:
        checkpoint = self._locked(connection)
        if checkpoint is None:
            return []
        self._order.load(checkpoint)

        def read(transaction: int, position: int, most: int) -> list[Place]:
            given = {"_transaction": transaction, "_position": position, "_most": most}
            return [self._place(row) for row in connection.execute(self._statements.next, given)]

        rows = self._order.rows(read, most + len(self._refused))
        return self._ordered(rows, self._lower_numbers(connection, rows))[:most]

    def _locked(self, connection: Connection) -> Checkpoint | None:
        """The checkpoint; ``None`` where another relay has it."""
        query = self._checkpoint.with_for_update(skip_locked=True) if self._is_postgresql else self._checkpoint
        if (found := connection.execute(query).one_or_none()) is not None:
            return Checkpoint(*found)
        insert = insert_into(self._table, self._engine.dialect.name)
        first = insert.values(source=self.name, transaction=0, position=0, ahead="[]").on_conflict_do_nothing()
        made = connection.execute(first.returning(self._table.c.source)).one_or_none()
        return None if made is None else Checkpoint()

    def _place(self, row: Row[Any]) -> Place:
        return Place(row._transaction_number, getattr(row, self._position), bool(row._is_ready), row)

    def _lower_numbers(self, connection: Connection, rows: Sequence[Place]) -> dict[Any, list[Place]]:
        """By aggregate, in their order: what is behind the checkpoint, up to the highest number among ``rows``."""
        found: defaultdict[Any, list[Place]] = defaultdict(list)
        highest: dict[Any, int] = {}
        for place in rows:
            aggregate, number = self._numbered(place)
            if aggregate is not None:
                highest[aggregate] = max(number, highest.get(aggregate, number))
        if not highest:
            return found
        numbers = orjson.dumps([{"id": aggregate, "number": number} for aggregate, number in highest.items()]).decode()
        transaction, position = self._order.place
        given = {"_transaction": transaction, "_position": position, "_numbers": numbers}
        for row in connection.execute(self._statements.lower, given):
            place = self._place(row)
            found[self._numbered(place)[0]].append(place)
        return found

    def _numbered(self, place: Place) -> tuple[Any, int]:
        """Its aggregate and its number; ``None`` without one."""
        if self._aggregate is None or self._sequence is None:
            return None, 0
        return getattr(place.row, self._aggregate), getattr(place.row, self._sequence)

    def _ordered(self, rows: Sequence[Place], of_aggregate: dict[Any, list[Place]]) -> list[OutboxMessage]:
        """Those of ``rows`` that may go now, each behind all lower numbers of its aggregate."""
        chosen: dict[int, OutboxMessage] = {}
        paused: set[Any] = set()
        now = time.monotonic()
        for each in rows:
            aggregate, number = self._numbered(each)
            before = [lower for lower in of_aggregate.get(aggregate, ()) if self._numbered(lower)[1] < number]
            if any(not lower.is_ready for lower in before):
                break
            for place in (*before, each):
                if place.position in chosen or self._order.is_published(place.position) or aggregate in paused:
                    continue
                if now < self._refused.get(place.position, (0, 0.0))[1]:
                    paused.update([aggregate] if aggregate is not None else [])
                else:
                    chosen[place.position] = self._published(place)
        return list(chosen.values())

    def _published(self, place: Place) -> OutboxMessage:
        attempts = self._refused.get(place.position, (0, 0.0))[0]
        message = replace(self._message(place.row), position=place.position, attempts=attempts)
        aggregate, number = self._numbered(place)
        if aggregate is None:
            return message
        return replace(message, aggregate=str(aggregate), sequence=number, line=aggregate)

    def _settled(
        self, connection: Connection, confirmed: Sequence[OutboxMessage], refused: Sequence[RefusedMessage]
    ) -> None:
        now = time.monotonic()
        passed = [message.position for message in confirmed]
        for refusal in refused:
            message, attempt = refusal.message, refusal.message.attempts + 1
            self._refused[message.position] = (attempt, now + self._pauses.pause(attempt))
            if attempt == self._attempts:
                passed.append(message.position)
                log.error("row %s of %s is given up after %d refusals", message.position, self.name, attempt)
        for position in passed:
            self._refused.pop(position, None)
        stored = asdict(self._order.confirmed(passed))
        connection.execute(update(self._table).where(self._table.c.source == self.name).values(stored))

    async def measure(self) -> OutboxBacklog:
        """See `Source`. When a row was added isn't known."""
        rows = await in_transaction(self._engine, self._waiting)
        if self._window.is_full:
            log.warning("%s is held up: the window has too many runs of positions: give more recent ones", self.name)
        return OutboxBacklog(rows, None, len(self._refused))

    def _waiting(self, connection: Connection) -> int:
        found = connection.execute(self._checkpoint).one_or_none()
        self._order.load(Checkpoint() if found is None else Checkpoint(*found))
        transaction, position = self._order.place
        published = self._order.published
        given = {"_transaction": transaction, "_position": position, "_most": MOST_COUNTED + published}
        return max(0, int(connection.scalar(self._statements.count, given) or 0) - published)


class _TableStatements:
    """Those of one dialect; parameters: ``_transaction`` and ``_position``, behind which rows are looked for.

    Raises ``ValueError`` where the table has no column of a name.
    """

    def __init__(self, dialect: str, table: Table, **columns: str | None) -> None:
        names = {what: _quoted(table, name, dialect) for what, name in columns.items() if name is not None}
        words = _BY_TRANSACTION if "transaction" in names else _BY_POSITION
        words = {what: word.format(**names) for what, word in words.items()}
        words |= names | {"table": quoted(table, dialect)}
        place = [bindparam("_position", type_=BigInteger())]
        if "transaction" in names:
            place.append(bindparam("_transaction", type_=BigInteger()))
        self.next: Any = text(_NEXT.format(**words)).bindparams(*place)
        self.count: Any = text(_COUNT.format(**words)).bindparams(*place)
        self.lower: Any = None
        """With ``_numbers``, JSON of ``id`` and ``number``: the rows of those aggregates with lower numbers, ascending."""
        if "aggregate" in names:
            kind = table.c[columns["aggregate"] or ""].type.compile(dialect=dialect_of(dialect))
            words |= {what: word.format(type=kind) for what, word in _GIVEN[dialect].items()}
            self.lower = text(_LOWER.format(**words)).bindparams(*place, bindparam("_numbers", type_=Text()))


def _quoted(table: Table, name: str, dialect: str) -> str:
    """A column's name in a text of SQL. Raises ``ValueError`` where the table has none of that name."""
    if name not in table.c:
        raise ValueError(f"the table {table.fullname} has no column {name}")
    return str(dialect_of(dialect).identifier_preparer.format_column(table.c[name])).replace(":", "\\:")
