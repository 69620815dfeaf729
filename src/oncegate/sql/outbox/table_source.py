"""`TableSource`: an append-only table, whose rows can't be marked, as what a relay publishes.

Strategy. Positions are given out before their transactions commit, so a row may appear before one that was passed already. On
PostgreSQL rows are read in the order of their transactions' numbers, and only those of transactions that are older than each open
one: what commits later has a higher number, and is never passed, however long it takes. SQLite has one writer, and its
positions are in the order of commits.

That is not the order of an aggregate's numbers, though: a transaction that is older than an open one may have written number 2,
and one that is not may have committed number 1 before. So a row waits while a lower number of its aggregate is not ready, and
all behind it wait, too; and a lower number that is ready, but stands behind it, goes first. What was published ahead in this
way stands in the checkpoint, which is stored after the broker's confirmation.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from sqlalchemy import (
    BigInteger,
    BindParameter,
    Connection,
    Engine,
    MetaData,
    Row,
    Table,
    bindparam,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from oncegate.cache.backoff import Backoff
from oncegate.sql.outbox.aggregates import check_name
from oncegate.sql.outbox.alone import Alone
from oncegate.sql.outbox.held import HeldConnection
from oncegate.sql.outbox.source import Backlog, OutboxMessage, Refusal
from oncegate.sql.outbox.statements import LIMITS, quoted
from oncegate.sql.outbox.tables import checkpoint_table

MOST_COUNTED: Final = 100_000

_WORDS: Final = {
    "postgresql": {
        "number": "CAST(CAST(t.{transaction} AS text) AS bigint)",
        "ready": "t.{transaction} < pg_snapshot_xmin(pg_current_snapshot())",
        "behind": "(t.{transaction}, t.{position}) > (CAST(CAST(:_transaction AS text) AS xid8), :_position)",
        "order": "t.{transaction}, t.{position}",
    },
    "sqlite": {
        "number": "0",
        "ready": "true",
        "behind": "(0, t.{position}) > (:_transaction, :_position)",
        "order": "t.{position}",
    },
}
_NEXT: Final = """\
SELECT {number} AS _transaction_number, true AS _is_ready, t.* FROM {table} AS t
WHERE {behind} AND {ready} ORDER BY {order} LIMIT :_most
"""
_OF_AGGREGATES: Final = """\
SELECT {number} AS _transaction_number, {ready} AS _is_ready, t.* FROM {table} AS t
WHERE {behind} AND t.{aggregate} IN :_aggregates AND t.{sequence} <= :_highest ORDER BY t.{sequence}
"""
_COUNT: Final = "SELECT count(*) FROM (SELECT 1 FROM {table} AS t WHERE {behind} LIMIT :_most) AS waiting"


@dataclass(frozen=True, slots=True)
class _Place:
    """A row, and where it is."""

    transaction: int
    position: int
    is_ready: bool
    row: Row[Any]


class TableSource:
    """The rows of ``table``, under the checkpoint ``name`` in ``oncegate_checkpoint``; one relay at a time is at work on it.

    ``message`` makes an `OutboxMessage` of a row: its topic, its body, and a key that is the same each time. ``position`` names
    a column of integers that ascend (an identity). With ``aggregate`` and ``sequence``, columns of an id (text) and its number,
    each aggregate is published in the order of its numbers. On PostgreSQL ``transaction`` names a column of type ``xid8`` with
    the default ``pg_current_xact_id()``; an index on it and ``position`` is read, and one on ``aggregate`` and ``sequence``.

    What an open transaction may still write holds up what is behind it: until the oldest one of the database has ended,
    nothing is published that began after it.
    """

    def __init__(
        self,
        engine: AsyncEngine | Engine,
        table: Table,
        message: Callable[[Row[Any]], OutboxMessage],
        *,
        name: str,
        position: str = "position",
        transaction: str = "transaction",
        aggregate: str | None = None,
        sequence: str | None = None,
        schema: str | None = None,
        stall_limit: float = 30.0,
        pauses: Backoff | None = None,
    ) -> None:
        if (aggregate is None) is not (sequence is None):
            raise ValueError("aggregate and sequence are given together: the column of an id, and that of its number")
        self.name = check_name("the name of a source", name)
        self.stall_limit = stall_limit
        self._engine = engine
        self._message = message
        self._position, self._aggregate, self._sequence = position, aggregate, sequence
        self._checkpoint = checkpoint_table(MetaData(), schema)
        self._is_postgresql = engine.dialect.name == "postgresql"
        self._alone = None if self._is_postgresql else Alone(engine.url.database)
        self._pauses = pauses or Backoff(1.0, 60.0, least=0.5)
        self._held: HeldConnection | None = None
        self._scanned: list[_Place] = []
        self._ahead: set[int] = set()
        self._refused: dict[int, int] = {}
        self._not_before = 0.0
        columns = {"transaction": transaction, "position": position, "aggregate": aggregate, "sequence": sequence}
        dialect = engine.dialect.name
        names = {
            what: _quoted(table, name, dialect)
            for what, name in columns.items()
            if name and (what != "transaction" or self._is_postgresql)
        }
        words = {what: word.format(**names) for what, word in _WORDS[dialect].items()}
        words |= names | {"table": quoted(table, dialect)}
        place = [bindparam("_transaction", type_=BigInteger()), bindparam("_position", type_=BigInteger())]
        self._next = text(_NEXT.format(**words)).bindparams(*place)
        self._count = text(_COUNT.format(**words)).bindparams(*place)
        self._lower = None
        if aggregate is not None:
            several: BindParameter[Any] = bindparam("_aggregates", expanding=True)
            self._lower = text(_OF_AGGREGATES.format(**words)).bindparams(*place, several)

    async def take(self, most: int) -> Sequence[OutboxMessage]:
        """See `Source`. After a refusal nothing, until its pause is over."""
        if time.monotonic() < self._not_before or (self._alone is not None and not self._alone.got()):
            return []
        self._held = self._held or await HeldConnection.of(self._engine)
        found = await self._held.run(lambda connection: self._taken(connection, most))
        if not self._is_postgresql:
            await self._held.commit()  # nobody who writes is to wait for a broker
        return found

    def _taken(self, connection: Connection, most: int) -> list[OutboxMessage]:
        checkpoint = self._locked(connection)
        if checkpoint is None:
            return []
        given = {"_transaction": checkpoint.transaction, "_position": checkpoint.position}
        self._ahead = set(orjson.loads(checkpoint.ahead))
        rows = [self._place(row) for row in connection.execute(self._next, given | {"_most": most + len(self._ahead)})]
        return self._ordered(rows, self._lower_numbers(connection, given, rows))

    def _locked(self, connection: Connection) -> Any:
        """The checkpoint; ``None`` where another relay has it."""
        table = self._checkpoint
        query = select(table).where(table.c.source == self.name)
        if self._is_postgresql:
            connection.execute(LIMITS, {"_limit": str(round(self.stall_limit * 1000))})
            query = query.with_for_update(skip_locked=True)
        if (found := connection.execute(query).one_or_none()) is not None:
            return found
        insert = (postgresql if self._is_postgresql else sqlite).insert(table)
        first = insert.values(source=self.name, transaction=0, position=0, ahead="[]").on_conflict_do_nothing()
        return connection.execute(first.returning(*table.c)).one_or_none()

    def _place(self, row: Row[Any]) -> _Place:
        return _Place(row._transaction_number, getattr(row, self._position), bool(row._is_ready), row)

    def _lower_numbers(
        self, connection: Connection, given: dict[str, Any], rows: Sequence[_Place]
    ) -> dict[Any, list[_Place]]:
        """By aggregate, in their order: what is behind the checkpoint, up to the highest number that is looked for."""
        found: defaultdict[Any, list[_Place]] = defaultdict(list)
        of = [each.row for each in rows if self._aggregate and getattr(each.row, self._aggregate) is not None]
        if self._lower is None or self._sequence is None or not of:
            return found
        aggregates = sorted({getattr(row, self._aggregate or "") for row in of})
        highest = max(getattr(row, self._sequence) for row in of)
        for row in connection.execute(self._lower, given | {"_aggregates": aggregates, "_highest": highest}):
            found[getattr(row, self._aggregate or "")].append(self._place(row))
        return found

    def _ordered(self, rows: Sequence[_Place], of_aggregate: dict[Any, list[_Place]]) -> list[OutboxMessage]:
        """Those of ``rows`` that may go now, each behind all lower numbers of its aggregate."""
        self._scanned = []
        chosen: dict[int, OutboxMessage] = {}
        for each in rows:
            if each.position not in self._ahead:
                line = of_aggregate.get(getattr(each.row, self._aggregate), []) if self._aggregate else []
                number = getattr(each.row, self._sequence) if line and self._sequence else 0
                before = [lower for lower in line if getattr(lower.row, self._sequence or "") < number]
                if any(not lower.is_ready for lower in before):
                    break
                for row in (*before, each):
                    if row.position not in self._ahead and row.position not in chosen:
                        chosen[row.position] = self._published(row)
            self._scanned.append(each)
        return list(chosen.values())

    def _published(self, place: _Place) -> OutboxMessage:
        message = replace(
            self._message(place.row), position=place.position, attempts=self._refused.get(place.position, 0)
        )
        if self._aggregate is None or self._sequence is None:
            return message
        aggregate = getattr(place.row, self._aggregate)
        if aggregate is None:
            return message
        return replace(message, aggregate=str(aggregate), sequence=getattr(place.row, self._sequence), line=aggregate)

    async def settle(self, confirmed: Sequence[OutboxMessage], refused: Sequence[Refusal]) -> None:
        """See `Source`. The checkpoint goes up to the first row that isn't confirmed; what is behind it stands there, too."""
        held = self._held
        if held is None:
            raise RuntimeError("nothing is taken")
        ahead = self._ahead | {message.position for message in confirmed}
        reached = None
        for place in self._scanned:
            if place.position not in ahead:
                break
            ahead.discard(place.position)
            reached = place
        table = self._checkpoint
        values: dict[str, Any] = {"ahead": orjson.dumps(sorted(ahead)).decode()}
        if reached is not None:
            values |= {"transaction": reached.transaction, "position": reached.position}
        statement = update(table).where(table.c.source == self.name).values(**values)
        try:
            await held.run(lambda connection: connection.execute(statement))
            await held.commit()
        except BaseException:
            await self.let_go()
            raise
        self._refused = {each.message.position: each.message.attempts + 1 for each in refused}
        if refused:
            self._not_before = time.monotonic() + self._pauses.pause(max(self._refused.values()))

    async def let_go(self) -> None:
        """See `Source`."""
        held, self._held = self._held, None
        if held is not None:
            await held.close()

    async def measure(self) -> Backlog:
        """See `Source`. When a row was added isn't known."""
        held = await HeldConnection.of(self._engine)
        try:
            rows = await held.run(self._waiting)
        finally:
            await held.close()
        return Backlog(rows, None, len(self._refused))

    def _waiting(self, connection: Connection) -> int:
        table = self._checkpoint.c
        query = select(table.transaction, table.position).where(table.source == self.name)
        transaction, position = connection.execute(query).one_or_none() or (0, 0)
        given = {"_transaction": transaction, "_position": position, "_most": MOST_COUNTED}
        return int(connection.scalar(self._count, given) or 0)

    async def close(self) -> None:
        """See `Source`."""
        await self.let_go()
        if self._alone is not None:
            self._alone.close()


def _quoted(table: Table, name: str, dialect: str) -> str:
    """A column's name in a text of SQL. Raises ``ValueError`` where the table has none of that name."""
    if name not in table.c:
        raise ValueError(f"the table {table.fullname} has no column {name}")
    preparer = (postgresql if dialect == "postgresql" else sqlite).dialect().identifier_preparer
    return str(preparer.format_column(table.c[name])).replace(":", "\\:")
