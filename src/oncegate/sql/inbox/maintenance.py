"""An inbox's work beside its deliveries: forgets old markers, measures tables, follows parked messages, notes what came early."""

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from sqlalchemy import Connection, Engine, Table
from sqlalchemy.ext.asyncio import AsyncEngine

from oncegate.sql.database.access import in_transaction
from oncegate.sql.handlers.background import in_background, repeat
from oncegate.sql.handlers.handler import Sweep
from oncegate.sql.inbox.cleanup import Retention, keep_forgetting
from oncegate.sql.inbox.stats import InboxStats, stats
from oncegate.sql.marking.sequence_writer import SequenceWriter
from oncegate.sql.marking.writer import Writer
from oncegate.sql.order.table import ORDER, PARKED

NOTED_EVERY = 5.0
"""Seconds."""


class InboxMaintenance:
    """The work for one ``table``. ``writer`` notifies who watches; ``sequences`` are there where the inbox keeps an order."""

    def __init__(self, table: Table, retention: Retention, writer: Writer, sequences: SequenceWriter | None) -> None:
        self.sweeps: list[Sweep] = []
        """One for each handler whose messages may be parked: it runs those whose turn has come."""
        self._table = table
        self.retention = retention
        self._writer = writer
        self._sequences = sequences

    def measure(self, connection: Connection) -> InboxStats:
        """See `Inbox.measure`."""
        found = stats(connection, self._table)
        oldest = None if found.oldest is None else found.oldest.timestamp()
        self._writer.notify(lambda watch: watch.inbox_measured(found.table, found.rows, oldest))
        if self._sequences is not None:
            self._sequences.measure(connection)
        return found

    @asynccontextmanager
    async def maintained(self, engine: AsyncEngine | Engine, every: float, batch_size: int) -> AsyncIterator[None]:
        """See `Inbox.maintained`."""
        retention = replace(self.retention, batch_size=batch_size)
        forgetting = keep_forgetting(engine, self._table, retention, every, self._on_pruned, self.measure)
        async with in_background(forgetting), in_background(self._keep_noting(engine)), self.following():
            yield

    @asynccontextmanager
    async def following(self, every: float = 5.0) -> AsyncIterator[None]:
        """See `Inbox.following`."""
        async with in_background(repeat(self.sweeps, every, PARKED, "parked messages can't be looked for")):
            yield

    async def _keep_noting(self, engine: AsyncEngine | Engine) -> None:
        """Have operators see what stays with its broker because it came early; handlers with a sweep do it by themselves."""
        sequences = self._sequences
        if sequences is None or not sequences.parks or self.sweeps:
            return

        async def note() -> None:
            for each in sequences.early.take():
                await in_transaction(engine, functools.partial(sequences.early.note, early=each))
            await in_transaction(engine, sequences.early.clear)
            await in_transaction(engine, sequences.measure)

        await repeat([note], NOTED_EVERY, ORDER, "messages that came early can't be noted")

    def _on_pruned(self, rows: int) -> None:
        self._writer.notify(lambda watch: watch.markers_pruned(self._table.fullname, rows))
