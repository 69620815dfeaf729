"""`Projection`: a read model that is made of the events of a table, each applied once, in the order of its aggregate."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar, overload

from sqlalchemy import Connection, Engine, MetaData, Row, Table
from sqlalchemy.ext.asyncio import AsyncEngine

from oncegate.middleware.consumers.sql_interface import is_async
from oncegate.sql.database.names import check_name
from oncegate.sql.database.sessions import AnyAsync, AnySync, in_session
from oncegate.sql.handlers.handler import Handler, session_parameter
from oncegate.sql.projections.position import PositionRow, entered, events_as_json
from oncegate.sql.projections.runner import ProjectionRunner, ProjectionWatch, ProjectionWork
from oncegate.sql.projections.table import projection_table
from oncegate.sql.reading.event_reader import EventColumns

OneEvent = TypeVar("OneEvent", bound=Callable[[Row[Any], Any], Any])
Events = TypeVar("Events", bound=Callable[[Any, Any], Any])


class Projection:
    """The read model ``name``, made of the rows of ``events``, an append-only table in the same database.

    `apply` decorates what applies an event; `running`, or the command ``oncegate project``, calls it for each row once, batch by
    batch. How far that is stands in ``oncegate_projection``, and is committed with what was applied: both, or neither.

    ``position``, ``transaction``, ``aggregate`` and ``sequence`` name columns as for a `TableSource`; on PostgreSQL there has to
    be a ``transaction``, of type ``xid8`` with the default ``pg_current_xact_id()``. Rows are applied in the order of their
    transactions, in which positions do not ascend; on SQLite in that of their positions. With ``aggregate`` and ``sequence``
    each aggregate goes in the order of its numbers.

    A batch is one transaction, of ``batch`` events at most, and ends after ``batch_seconds``. On PostgreSQL a runner of which the
    server has heard nothing for ``stall_limit`` (s) loses its batch, and another one takes over. ``wait_timeout`` (s) is for how
    long `reset` waits. ``schema`` is where ``oncegate_projection`` is.
    """

    def __init__(
        self,
        name: str,
        events: Table,
        *,
        position: str = "position",
        transaction: str | None = "transaction",
        aggregate: str | None = None,
        sequence: str | None = None,
        schema: str | None = None,
        batch: int = 200,
        batch_seconds: float = 0.5,
        stall_limit: float = 30.0,
        wait_timeout: float = 5.0,
    ) -> None:
        if not isinstance(events, Table):
            raise TypeError(f"events is a {type(events).__name__}: give a Table of SQLAlchemy's")
        if batch < 1 or not (batch_seconds > 0 and stall_limit > 0 and wait_timeout > 0):
            raise ValueError("batch is 1 or more; batch_seconds, stall_limit and wait_timeout are above 0 seconds")
        self.name = check_name("the name of a projection", name)
        self.schema = schema
        self._events = events
        self._columns = EventColumns(position, transaction, aggregate, sequence)
        for column in (position, aggregate, sequence):
            if column is not None and column not in events.c:
                raise ValueError(f"the table {events.fullname} has no column {column}")
        self._batch, self._batch_seconds = batch, batch_seconds
        self._stall_limit, self._wait_timeout = stall_limit, wait_timeout
        self._positions = projection_table(MetaData(), schema)
        self._handler: Handler | None = None
        self._of_list = False

    def table(self, metadata: MetaData) -> Table:
        """The table of positions as a part of ``metadata``, for your own migrations; one for all projections of a schema."""
        return projection_table(metadata, self.schema)

    @overload
    def apply(self, handler: OneEvent, /) -> OneEvent: ...

    @overload
    def apply(self, handler: None = None, /, *, batch: bool = False) -> Callable[[Events], Events]: ...

    def apply(self, handler: Any = None, /, *, batch: bool = False) -> Any:
        """Decorates a handler of an event, a row, and a session: a coroutine function of an ``AsyncSession``, or a plain one.

        It writes the read model in that session, and does not commit: it returns, or raises. With ``batch=True`` it gets a list
        of rows in their order, for statements over all of them. What it does elsewhere is done again where a batch is.
        """

        def decorated(handler: Any) -> Any:
            if self._handler is not None:
                raise ValueError(
                    f"projection {self.name} has a handler: a second read model is a projection of its own"
                )
            session_parameter(handler)
            self._handler, self._of_list = handler, batch
            return handler

        return decorated if handler is None else decorated(handler)

    @asynccontextmanager
    async def running(
        self, engine: AsyncEngine | Engine, *, watch: ProjectionWatch | None = None, log_every: float = 30.0
    ) -> AsyncIterator[None]:
        """While it is entered events are applied, in this event loop, or for an `Engine` in threads; it ends after the batch.

        Any number of processes may do it: one of them is at work, the others take over when that ends, dies or stands still. A
        line in the log every ``log_every`` seconds says how it goes; ``watch`` is notified, too. Raises ``TypeError`` and
        ``ValueError`` for an engine that can't be, and `ProjectionMisused` at the end where it could not begin.
        """
        runner = self.runner(engine, watch=watch, log_every=log_every)
        task = asyncio.create_task(runner.run())
        try:
            yield
        finally:
            runner.stop()
            await task

    def runner(
        self, engine: AsyncEngine | Engine, *, watch: ProjectionWatch | None = None, log_every: float = 30.0
    ) -> ProjectionRunner:
        """The runner that `running` runs."""
        if self._handler is None:
            raise ValueError(f"projection {self.name} has no handler: decorate one with its apply")
        if is_async(self._handler) is not isinstance(engine, AsyncEngine):
            raise TypeError(
                f"projection {self.name}: an AsyncEngine is for a coroutine function, an Engine for a plain one"
            )
        if not log_every > 0:
            raise ValueError("log_every is above 0 seconds")
        work = ProjectionWork(
            self.name,
            self._positions,
            self._events,
            self._columns,
            self._handler,
            self._of_list,
            self._batch,
            self._batch_seconds,
            self._stall_limit,
        )
        return ProjectionRunner(work, engine, watch, log_every)

    @overload
    def reset(self, session: AnyAsync) -> Coroutine[Any, Any, None]: ...

    @overload
    def reset(self, session: AnySync) -> None: ...

    def reset(self, session: AnyAsync | AnySync) -> Coroutine[Any, Any, None] | None:
        """Have all events applied again, from the transaction's commit on. Awaited, where the session is.

        First in the transaction that then empties the read model: it waits for the batch under way, ``wait_timeout`` seconds at
        most on PostgreSQL, and none is applied until the transaction ends. Raises `InboxBusy` where that was too short, and
        `ProjectionMisused` where something was written before.
        """

        def reset(sync: AnySync) -> None:
            entered(sync, self._positions.fullname, self._set_back)

        return in_session(session, reset)

    def _set_back(self, connection: Connection) -> None:
        dialect = connection.dialect.name
        events = events_as_json(self._events, self._columns.on(dialect))
        PositionRow(self._positions, self.name, events, dialect, self._stall_limit).reset(
            connection, self._wait_timeout
        )
