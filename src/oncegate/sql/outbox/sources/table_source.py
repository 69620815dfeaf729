"""`TableSource`: an append-only table, whose rows can't be marked, as what a relay publishes.

Strategy. How far it is published stands in a checkpoint, which is stored after the broker's confirmation. Which rows come next
is said by an order (oncegate.sql.reading): that of transactions (PostgreSQL, exact), or a look-back window.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection, Engine, MetaData, Row, Table, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from oncegate.middleware.consumers.sql_interface import Backoff
from oncegate.sql.database.access import in_transaction
from oncegate.sql.database.names import check_name
from oncegate.sql.database.types import insert_into
from oncegate.sql.outbox.sources.database_source import DatabaseSource
from oncegate.sql.outbox.sources.source import OutboxBacklog, OutboxMessage, RefusedMessage
from oncegate.sql.outbox.tables import checkpoint_table
from oncegate.sql.reading.checkpoint import Checkpoint, Place, TransactionOrder
from oncegate.sql.reading.event_reader import EventColumns, EventReader
from oncegate.sql.reading.window import Window

log = logging.getLogger("oncegate.relay")


class TableSource(DatabaseSource):
    """The rows of an append-only table of yours, as messages; one relay at a time is at work on it.

    - ``table``: the table, whose rows are never changed.
    - ``message``: a function that makes an `OutboxMessage` of a row: its topic, its body, and a key that is the same each time.
    - ``name``: of the checkpoint in ``oncegate_checkpoint``; ``schema`` is where that table is.
    - ``position``: a column of integers that ascend (an identity).
    - ``transaction``: on PostgreSQL, a column of type ``xid8`` with the default ``pg_current_xact_id()``; give it and
      ``position`` an index. ``None``, and SQLite: rows are read by their positions alone, in a window of time.
    - ``aggregate``, ``sequence``: columns of an id (text) and its number: each aggregate is published in the order of its
      numbers; give both an index.
    - ``look_back``: seconds, in a window. Rows that were the last ones so long ago are read again for those that appear late:
      what commits later than that after a higher position is lost.
    - ``page``: rows that are read at a time, in a window.
    - ``recent``: published positions (as runs of them) that are remembered in a window; ``kept`` of them are stored.
    - ``kept``: by transactions, rows that are published ahead of an open one at most.
    - ``attempts``: refusals after which a message is dead: passed, with an error in the log. 0: it is never given up.
    - ``stall_limit``, ``pauses``: as for `OutboxSource`.

    By transactions, nothing is published that began after the server's oldest open transaction that has written, or is
    prepared: it may still write what goes before. A message that the broker refuses is tried again after a pause, which grows
    from 1 s to 60 s, and what is behind it in its aggregate waits.
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
        columns = EventColumns(position, transaction, aggregate, sequence).on(engine.dialect.name)
        self._message = message
        stored = checkpoints.c
        self._checkpoint = select(stored.transaction, stored.position, stored.ahead).where(stored.source == name)
        self._refused: dict[int, tuple[int, float]] = {}
        """Refusals by position: how often, and until when it is left alone."""
        self._window = Window(look_back, page, recent, kept)  # refuses what contradicts itself in both orders
        self._order: TransactionOrder | Window = self._window if columns.transaction is None else TransactionOrder(kept)
        self._reader = EventReader(engine.dialect.name, table, columns, self._order)
        self.page = page if columns.transaction is None else None
        """The rows that are read at a time, in a window."""

    def _taken(self, connection: Connection, most: int) -> list[OutboxMessage]:
        checkpoint = self._locked(connection)
        if checkpoint is None:
            return []
        self._order.load(checkpoint)
        now = time.monotonic()

        def is_paused(position: int) -> bool:
            return now < self._refused.get(position, (0, 0.0))[1]

        return [self._published(place) for place in self._reader.next(connection, most, len(self._refused), is_paused)]

    def _locked(self, connection: Connection) -> Checkpoint | None:
        """The checkpoint; ``None`` where another relay has it."""
        query = self._checkpoint.with_for_update(skip_locked=True) if self._is_postgresql else self._checkpoint
        if (found := connection.execute(query).one_or_none()) is not None:
            return Checkpoint(*found)
        insert = insert_into(self._table, self._engine.dialect.name)
        first = insert.values(source=self.name, transaction=0, position=0, ahead="[]").on_conflict_do_nothing()
        made = connection.execute(first.returning(self._table.c.source)).one_or_none()
        return None if made is None else Checkpoint()

    def _published(self, place: Place) -> OutboxMessage:
        attempts = self._refused.get(place.position, (0, 0.0))[0]
        message = replace(self._message(place.row), position=place.position, attempts=attempts)
        aggregate, number = self._reader.numbered(place)
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
        return self._reader.count(connection)
