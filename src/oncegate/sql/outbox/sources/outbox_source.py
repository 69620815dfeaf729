"""The outbox's table as a source: rows are locked while they are published, and removed one by one as they are confirmed."""

import os
from collections.abc import Sequence
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Engine, MetaData, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from oncegate.cache.backoff import Backoff
from oncegate.sql.database.types import utc
from oncegate.sql.outbox.aggregates import check_name
from oncegate.sql.outbox.sources.held import DatabaseSource
from oncegate.sql.outbox.sources.source import Backlog, OutboxMessage, Refusal
from oncegate.sql.outbox.sources.statements import LIMITS, MOST_TIDIED, RelayStatements
from oncegate.sql.outbox.tables import outbox_table

MOST_COUNTED: Final = 100_000
_LAST: Final = b"\xff" * 33
"""Behind every digest."""
_FEW: Final = 10
"""The share of a batch that one aggregate has at most, while there are others."""


class OutboxSource(DatabaseSource):
    """The messages of ``outboxes`` (of all, if none are named) in the table ``oncegate_outbox`` of ``schema``.

    A message that the broker refuses is tried again after a pause, which grows from 1 s to 60 s, and what is behind it in its
    aggregate waits; after ``attempts`` refusals it is dead, and they wait for an operator. 0: it is never given up. What is
    confirmed is deleted, with ``keep`` (s) that much later. On PostgreSQL the rows that a relay has taken are free again after
    ``stall_limit`` (s) in which nothing was heard of it. On SQLite one relay works at a time: the others wait until it ends,
    by a lock on a file beside the database.
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
        super().__init__(engine, stall_limit)
        if attempts < 0 or keep < 0:
            raise ValueError("attempts and keep are 0 or more")
        self.name = ", ".join(check_name("the name of an outbox", name) for name in outboxes) or "all"
        self._table = outbox_table(MetaData(), schema)
        self._known = RelayStatements(engine.dialect.name, self._table, outboxes)
        self._attempts = attempts
        self._keep = keep
        self._pauses = pauses or Backoff(1.0, 60.0, least=0.5)
        self._after = os.urandom(32)  # so that several relays begin at different aggregates
        self._wide = True
        """Of each aggregate only a few rows are taken."""
        self._lines_first = True

    async def take(self, most: int) -> Sequence[OutboxMessage]:
        """See `Source`."""
        if not self._may_take():
            return []
        taken = self._locked if self._is_postgresql else self._in_order
        return await self._take(lambda connection: taken(connection, most))

    def _in_order(self, connection: Connection, most: int) -> list[OutboxMessage]:
        return [_message(row) for row in connection.execute(self._known.in_order, {"_most": most})]

    def _locked(self, connection: Connection, most: int) -> list[OutboxMessage]:
        """Half of the times those without an aggregate come first, so that neither kind waits for the other."""
        connection.execute(LIMITS, {"_limit": str(round(self.stall_limit * 1000))})
        self._lines_first = not self._lines_first
        kinds = (self._in_line, self._free) if self._lines_first else (self._free, self._in_line)
        found: list[OutboxMessage] = []
        for kind in kinds:
            if len(found) < most:
                found += kind(connection, most - len(found))
        return found

    def _free(self, connection: Connection, most: int) -> list[OutboxMessage]:
        return [_message(row) for row in connection.execute(self._known.free, {"_most": most})]

    def _in_line(self, connection: Connection, most: int) -> list[OutboxMessage]:
        """From the aggregate on that follows the last one, around once: none is served twice while another one waits."""
        found: list[OutboxMessage] = []
        begin = self._after
        for after, until in ((begin, _LAST), (b"", begin)):
            each = max(1, most // _FEW) if self._wide else most
            given = {"_after": after, "_until": until, "_each": each, "_most": most - len(found)}
            found += [_message(row) for row in connection.execute(self._known.in_line, given)]
            if len(found) >= most:
                self._after = bytes(found[-1].line)
                break
        self._wide = len(found) >= most and found[0].line != found[-1].line
        return found

    async def settle(self, confirmed: Sequence[OutboxMessage], refused: Sequence[Refusal]) -> None:
        """See `Source`."""
        await self._settle(lambda connection: self._settled(connection, confirmed, refused))

    def _settled(self, connection: Connection, confirmed: Sequence[OutboxMessage], refused: Sequence[Refusal]) -> None:
        if confirmed:
            ids = orjson.dumps([message.position for message in confirmed]).decode()
            connection.execute(self._known.mark if self._keep else self._known.remove, {"_ids": ids})
        for refusal in refused:
            pause = self._pauses.pause(refusal.message.attempts + 1)
            given = {"_refusal": refusal.reason, "_seconds": pause, "_attempts": self._attempts}
            connection.execute(self._known.refuse, {**given, "_id": refusal.message.position})

    async def measure(self) -> Backlog:
        """See `Source`. What was kept for long enough is deleted."""
        while self._keep and await self._look(self._tidied) == MOST_TIDIED:
            continue
        return await self._look(self._backlog)

    def _tidied(self, connection: Connection) -> int:
        """How many rows were deleted in one transaction."""
        return connection.execute(self._known.tidy, {"_seconds": -self._keep}).rowcount

    def _backlog(self, connection: Connection) -> Backlog:
        table = self._table.c
        waiting = select(table.added_at, table.dead, table.due_at).where(table.published_at.is_(None))
        some = waiting.limit(MOST_COUNTED).subquery()
        is_held = some.c.dead | some.c.due_at.is_not(None)
        query = select(func.count(), func.min(some.c.added_at), func.count().filter(is_held)).select_from(some)
        rows, oldest, held = connection.execute(query).one()
        return Backlog(rows, None if oldest is None else utc(oldest), held)


def _message(row: Any) -> OutboxMessage:
    return OutboxMessage(
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
