"""Applies the events of a table to a read model: a batch is one transaction, which has the row of the position locked.

Strategy. The row is locked, events are read, the handler is called for each, the position is stored, and all of it is committed
at once, or nothing. Another runner of the same name does not get the row meanwhile; it looks again, and goes on from what stands
there when this one has died. Where the handler raises, the same events are applied one by one, and the one that fails is tried
after growing pauses, for ever: only an operator skips it.

Written once, for a synchronous session: with asyncio it runs in SQLAlchemy's greenlet. Between two batches nothing is open.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import Connection, Engine, Row, Table
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import greenlet_spawn

from oncegate.middleware.consumers.sql_interface import Backoff, notify
from oncegate.sql.database.errors import InboxBusy, InboxUnavailable, is_unsettled, meaning
from oncegate.sql.database.misuse import check_not_aborted, hold, let_go, marked, watch
from oncegate.sql.database.types import DIALECTS, utc
from oncegate.sql.handlers.handler import Handler, Sessions
from oncegate.sql.projections.position import MOST_REASON, PositionRow, entered, events_as_json
from oncegate.sql.reading.checkpoint import Checkpoint, Place, TransactionOrder
from oncegate.sql.reading.event_reader import EventColumns, EventReader

log = logging.getLogger("oncegate.projection")

Result = TypeVar("Result")

_KEPT: Final = 2000
"""Rows that are applied ahead of one that can't be yet, at most."""
_IDLE: Final = Backoff(0.02, 1.0, least=0.5)
"""Pauses while there is nothing to apply, or another runner is at work."""
_TROUBLE: Final = Backoff(0.1, 5.0, least=0.5)
"""While the database can't be used."""
_FAILING: Final = Backoff(1.0, 60.0, least=0.5)
"""Between two tries of an event whose handler fails."""


class ProjectionWatch(Protocol):
    """Notified of what a runner does; must be quick. What it raises is logged and goes no further.
    `oncegate.prometheus.ProjectionMetrics` is one.
    """

    def events_applied(self, projection: str, count: int) -> None:
        """So many events were applied, and are committed. Called in the runner's event loop."""

    def projection_measured(
        self, projection: str, behind: int, stuck_at: int | None, stuck_since: float | None
    ) -> None:
        """So many rows are to be applied; the one at position ``stuck_at`` has failed since ``stuck_since``, Unix time."""


@dataclass(frozen=True, slots=True)
class ProjectionWork:
    """A runner's work: `oncegate.sql.Projection` says what its members mean."""

    name: str
    positions: Table
    events: Table
    columns: EventColumns
    handler: Handler
    of_list: bool
    batch: int
    batch_seconds: float
    stall_limit: float


class _HandlerFailed(Exception):
    """A handler has raised ``error`` at one of ``places``, or what it wrote can't be committed."""

    def __init__(self, places: Sequence[Place], error: Exception) -> None:
        super().__init__(places, error)  # both: what it is made of travels with it
        self.places = places
        self.error = error


class ProjectionRunner:
    """Does ``work`` in the database of ``engine``, in which events, read model and position are.

    Raises ``TypeError`` for an engine that the handler is not for, ``ValueError`` for a database or columns that can't be.
    """

    def __init__(
        self, work: ProjectionWork, engine: AsyncEngine | Engine, watch: ProjectionWatch | None, log_every: float
    ) -> None:
        dialect = engine.dialect.name
        if dialect not in DIALECTS:
            raise ValueError(f"the database is {dialect}: a projection needs PostgreSQL or SQLite")
        columns = work.columns.on(dialect)
        is_postgresql = dialect == "postgresql"
        if is_postgresql and columns.transaction is None:
            raise ValueError("transaction names a column on PostgreSQL: by positions alone what commits late is lost")
        engine = engine.execution_options(isolation_level="READ COMMITTED") if is_postgresql else engine
        maker: Any = async_sessionmaker(engine) if isinstance(engine, AsyncEngine) else sessionmaker(engine)
        self._sessions = Sessions(maker)
        self._work = work
        self._watch = watch
        self._log_every = log_every
        self._order = TransactionOrder(_KEPT)
        self._reader = EventReader(dialect, work.events, columns, self._order)
        events = events_as_json(work.events, columns)
        self._row = PositionRow(work.positions, work.name, events, dialect, work.stall_limit)
        self._most = work.batch
        self._alone = 0
        """So many events are applied one by one, since they were in a batch that has failed."""
        self._paused_until = 0.0
        """By `time.monotonic`: until then an event that has failed here is left alone."""
        self._applied = 0
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Have `run` return once the batch under way has ended."""
        self._stopping.set()

    async def run(self) -> None:
        """Apply events until `stop`. A database that is away is waited for. Raises `ProjectionMisused`."""
        name, loop = self._work.name, asyncio.get_running_loop()
        idle = trouble = 0
        is_begun = False
        next_report = 0.0
        while not self._stopping.is_set():
            try:
                if not is_begun:
                    await self._within(self._begin)
                    is_begun = True
                    log.info("projection %s has begun", name)
                if loop.time() >= next_report:
                    next_report = loop.time() + self._log_every
                    await self._report()
                found = None if idle and not await self._within(self._look) else await self._within(self._apply_batch)
                trouble = 0
            except _HandlerFailed as failed:
                await self._fail(failed)
                idle = 1
                continue
            except InboxUnavailable as error:
                level = logging.DEBUG if isinstance(error, InboxBusy) else logging.WARNING
                log.log(level, "projection %s: %s", name, error)
                trouble += 1
                await self._pause(_TROUBLE.pause(trouble))
                continue
            if found:
                self._note_applied(found)
            idle = 0 if found else idle + 1
            if idle:
                await self._pause(_IDLE.pause(idle))
        log.info("projection %s has stopped", name)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _note_applied(self, count: int) -> None:
        self._applied += count
        if self._watch is not None:
            notify(self._watch.events_applied, self._work.name, count)

    async def _within(self, step: Callable[[Session, Any], Result]) -> Result:
        """The result of ``step`` in a session of its own, whose transaction ends with it."""
        work: Callable[[], Result] = functools.partial(self._sessions.within, step)
        return await (greenlet_spawn(work) if self._sessions.of_asyncio else asyncio.to_thread(work))

    def _entered(self, session: Session, step: Callable[[Connection], Result]) -> Result:
        return entered(session, self._work.positions.fullname, step)

    # -- a transaction each -------------------------------------------------------------------------------------------

    def _begin(self, session: Session, _: Any) -> None:
        self._entered(session, self._row.begin)
        session.commit()

    def _look(self, session: Session, _: Any) -> bool:
        """Whether there is something to apply now; without a lock, since most of the time there is not."""

        def look(connection: Connection) -> bool:
            if (row := self._row.read(connection)) is None:
                self._row.begin(connection)
                session.commit()
                return True
            if row.attempts and time.monotonic() < self._paused_until:
                return False  # else an operator has skipped it, or another runner has applied it
            return bool(self._read(connection, row, None, 1))

        return self._entered(session, look)

    def _read(self, connection: Connection, row: Row[Any], settings: Row[Any] | None, most: int) -> list[Place]:
        """Up to so many events behind the position of ``row``."""
        self._order.load(Checkpoint(row.transaction, row.position, row.ahead))
        return self._row.planned(connection, settings, lambda: self._reader.next(connection, most))

    def _apply_batch(self, session: Session, given: Any) -> int | None:
        """How many events were applied; ``None`` where another runner is at work. ``given`` is the handler's session.

        Raises `_HandlerFailed` and `InboxUnavailable`; nothing is committed then.
        """
        watch(session)
        began = time.monotonic()

        def take(connection: Connection) -> list[Place] | None:
            row = self._row.locked(connection)
            if row is None:
                return None
            return self._read(connection, row, row, 1 if row.attempts or self._alone else self._most)

        places = self._entered(session, take)
        if not places:
            return None if places is None else 0
        try:
            applied = self._handled(session, given, places, began)
            self._row.store(session.connection(), self._order.confirmed([place.position for place in applied]))
            session.commit()
        except Exception as error:  # whatever a handler raises
            found = meaning(error, self._work.positions.fullname)
            if isinstance(found, InboxUnavailable):
                raise found from error
            if isinstance(error, SQLAlchemyError | OSError) and is_unsettled(error):
                raise InboxUnavailable("the connection broke: the position will show what came of it") from error
            raise _HandlerFailed(places, error) from error
        self._alone = max(0, self._alone - len(applied))
        self._resize(len(places), time.monotonic() - began)
        return len(applied)

    def _handled(self, session: Session, given: Any, places: Sequence[Place], began: float) -> Sequence[Place]:
        """Those of ``places`` that the handler was called for, within the transaction that it can't end."""
        marked(session, strict=True)
        transaction = hold(session)
        handler, applied = self._work.handler, places
        if self._work.of_list:
            self._sessions.call(handler, [place.row for place in places], given)
        else:
            for number, place in enumerate(places, 1):
                self._sessions.call(handler, place.row, given)
                if time.monotonic() - began >= self._work.batch_seconds:
                    applied = places[:number]
                    break
        let_go(session, transaction, is_marked=True)
        session.flush()
        check_not_aborted(session)
        return applied

    def _resize(self, count: int, seconds: float) -> None:
        """A list is not cut off: the next one is as long as fits into the time."""
        if self._work.of_list and count == self._most:
            fitting = int(count * self._work.batch_seconds / max(seconds, 1e-3))
            self._most = min(self._work.batch, 2 * count, max(1, fitting))

    # -- what fails ---------------------------------------------------------------------------------------------------

    async def _fail(self, failed: _HandlerFailed) -> None:
        """Have the events of a batch applied one by one; keep which one fails, and pause before it is tried again."""
        name, error = self._work.name, failed.error
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:MOST_REASON]
        log.debug("projection %s: the handler has failed", name, exc_info=error)
        if len(failed.places) > 1:
            self._alone = len(failed.places)
            log.warning("projection %s: a batch of %d is applied one by one: %s", name, self._alone, reason)
            return
        position = failed.places[0].position

        def note(session: Session, _: Any) -> tuple[int, datetime] | None:
            noted = self._entered(session, lambda connection: self._row.note(connection, position, reason))
            session.commit()
            return None if noted is None else (noted.attempts, utc(noted.failed_at))

        try:
            noted = await self._within(note)
        except InboxUnavailable as unavailable:
            log.warning("projection %s: %s", name, unavailable)
            noted = None
        attempts = noted[0] if noted else 1
        since = noted[1].isoformat(timespec="seconds") if noted else "-"
        pause = _FAILING.pause(attempts)
        self._paused_until = time.monotonic() + pause
        log.error(
            "projection %s stands at position %d since %s, attempt %d, tried again in %.0f s: %s",
            name,
            position,
            since,
            attempts,
            pause,
            reason,
        )
        await self._report()

    async def _report(self) -> None:
        def measure(session: Session, _: Any) -> tuple[int, Row[Any]] | None:
            def measured(connection: Connection) -> tuple[int, Row[Any]] | None:
                row = self._row.read(connection)
                if row is None:
                    return None
                self._order.load(Checkpoint(row.transaction, row.position, row.ahead))
                return self._row.planned(connection, None, lambda: self._reader.count(connection)), row

            return self._entered(session, measured)

        try:
            found = await self._within(measure)
        except InboxUnavailable as error:
            log.warning("projection %s: %s", self._work.name, error)
            return
        if found is None:
            return
        behind, row = found
        since = None if row.failed_at is None else utc(row.failed_at)
        stuck = "" if since is None else f", stands at position {row.failed_position} since {since:%Y-%m-%dT%H:%M:%S}Z"
        log.info("projection %s: %d rows behind, %d applied%s", self._work.name, behind, self._applied, stuck)
        if self._watch is not None:
            stands = (None, None) if since is None else (row.failed_position, since.timestamp())
            notify(self._watch.projection_measured, self._work.name, behind, *stands)
