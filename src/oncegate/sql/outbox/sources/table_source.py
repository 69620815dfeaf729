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
from dataclasses import replace
from typing import Any

import orjson
from sqlalchemy import Connection, Engine, MetaData, Row, Table, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from oncegate.cache.backoff import Backoff
from oncegate.sql.outbox.aggregates import check_name
from oncegate.sql.outbox.sources.checkpoint import Checkpoint, Order, Place, TransactionOrder
from oncegate.sql.outbox.sources.held import DatabaseSource
from oncegate.sql.outbox.sources.outbox_source import MOST_COUNTED
from oncegate.sql.outbox.sources.source import Backlog, OutboxMessage, Refusal
from oncegate.sql.outbox.sources.statements import LIMITS
from oncegate.sql.outbox.sources.table_statements import TableStatements
from oncegate.sql.outbox.sources.window import Window
from oncegate.sql.outbox.tables import checkpoint_table

log = logging.getLogger("oncegate.relay")


class TableSource(DatabaseSource):
    """The rows of ``table``, under the checkpoint ``name`` in ``oncegate_checkpoint``; one relay at a time is at work on it.

    ``message`` makes an `OutboxMessage` of a row: its topic, its body, and a key that is the same each time. ``position`` names
    a column of integers that ascend (an identity). With ``aggregate`` and ``sequence``, columns of an id (text) and its number,
    each aggregate is published in the order of its numbers; an index on both is read.

    On PostgreSQL ``transaction`` names a column of type ``xid8`` with the default ``pg_current_xact_id()``; an index on it and
    ``position`` is read. What an open transaction may still write holds up what is behind it: until the oldest one of the
    database has ended, nothing is published that began after it. On SQLite, and with ``transaction=None``, rows are read in the
    order of their positions, and for what appears late those again that were the last ones ``look_back`` seconds ago, in
    pages of ``page`` rows: what commits later than so long after a higher position is lost. ``recent`` runs of published
    positions are remembered, and ``kept`` of them stored; among transactions ``kept`` rows are published ahead, at most.

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
        super().__init__(engine, stall_limit)
        if (aggregate is None) is not (sequence is None):
            raise ValueError("aggregate and sequence are given together: the column of an id, and that of its number")
        if attempts < 0:
            raise ValueError("attempts is 0 or more")
        self.name = check_name("the name of a source", name)
        self._message = message
        self._position, self._aggregate, self._sequence = position, aggregate, sequence
        self._checkpoint = checkpoint_table(MetaData(), schema)
        self._attempts = attempts
        self._pauses = pauses or Backoff(1.0, 60.0, least=0.5)
        self._refused: dict[int, tuple[int, float]] = {}
        """By position: how often, and until when it is left alone."""
        transaction = transaction if self._is_postgresql else None
        columns = {"transaction": transaction, "position": position, "aggregate": aggregate, "sequence": sequence}
        self._known = TableStatements(engine.dialect.name, table, **columns)
        self._window = Window(look_back, page, recent, kept)  # refuses what contradicts itself in both orders
        self._order: Order = self._window if transaction is None else TransactionOrder(kept)
        self.page = page if transaction is None else None
        """The rows that are read at a time, in a window."""

    async def take(self, most: int) -> Sequence[OutboxMessage]:
        """See `Source`."""
        if not self._may_take():
            return []
        return await self._take(lambda connection: self._taken(connection, most))

    def _taken(self, connection: Connection, most: int) -> list[OutboxMessage]:
        checkpoint = self._locked(connection)
        if checkpoint is None:
            return []
        self._order.load(checkpoint)

        def read(transaction: int, position: int, most: int) -> list[Place]:
            given = {"_transaction": transaction, "_position": position, "_most": most}
            return [self._place(row) for row in connection.execute(self._known.next, given)]

        rows = self._order.rows(read, most + len(self._refused))
        return self._ordered(rows, self._lower_numbers(connection, rows))[:most]

    def _locked(self, connection: Connection) -> Checkpoint | None:
        """The checkpoint; ``None`` where another relay has it."""
        table = self._checkpoint
        query = select(table.c.transaction, table.c.position, table.c.ahead).where(table.c.source == self.name)
        if self._is_postgresql:
            connection.execute(LIMITS, {"_limit": str(round(self.stall_limit * 1000))})
            query = query.with_for_update(skip_locked=True)
        if (found := connection.execute(query).one_or_none()) is not None:
            return Checkpoint(*found)
        insert = (postgresql if self._is_postgresql else sqlite).insert(table)
        first = insert.values(source=self.name, transaction=0, position=0, ahead="[]").on_conflict_do_nothing()
        made = connection.execute(first.returning(table.c.source)).one_or_none()
        return None if made is None else Checkpoint(0, 0, "[]")

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
        for row in connection.execute(self._known.lower, given):
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

    async def settle(self, confirmed: Sequence[OutboxMessage], refused: Sequence[Refusal]) -> None:
        """See `Source`."""
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
        checkpoint = self._order.confirmed(passed)
        table = self._checkpoint
        statement = update(table).where(table.c.source == self.name)
        stored = {"transaction": checkpoint.transaction, "position": checkpoint.position, "ahead": checkpoint.ahead}
        await self._settle(lambda connection: connection.execute(statement.values(**stored)))

    async def measure(self) -> Backlog:
        """See `Source`. When a row was added isn't known."""
        rows = await self._look(self._waiting)
        if self._window.is_full:
            log.warning("%s is held up: the window has too many runs of positions: give more recent ones", self.name)
        return Backlog(rows, None, len(self._refused))

    def _waiting(self, connection: Connection) -> int:
        table = self._checkpoint.c
        query = select(table.transaction, table.position, table.ahead).where(table.source == self.name)
        found = connection.execute(query).one_or_none()
        self._order.load(Checkpoint(0, 0, "[]") if found is None else Checkpoint(*found))
        transaction, position = self._order.place
        published = self._order.published
        given = {"_transaction": transaction, "_position": position, "_most": MOST_COUNTED + published}
        return max(0, int(connection.scalar(self._known.count, given) or 0) - published)
