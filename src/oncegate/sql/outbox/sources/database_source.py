"""The base of sources in a database: the connection that messages are taken by, its limits, and on SQLite a lock."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from sqlalchemy import Connection, Engine, Table, Text, bindparam, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from oncegate.middleware.consumers.sql_interface import Backoff
from oncegate.sql.database.access import check_there, in_transaction
from oncegate.sql.database.terms import milliseconds
from oncegate.sql.database.types import DIALECTS
from oncegate.sql.outbox.sources.source import OutboxMessage, RefusedMessage
from oncegate.sql.reading.event_reader import PLANNED

log = logging.getLogger("oncegate.relay")

Result = TypeVar("Result")

_LIMITS: Final = text(f"SELECT set_config('idle_in_transaction_session_timeout', :_limit, true), {PLANNED}").bindparams(
    bindparam("_limit", type_=Text())
)
"""For one transaction."""


class RelayLock:
    """Held by the one relay at work on a database of SQLite: a lock on a file beside it, which ends with the process."""

    def __init__(self, database: str | None) -> None:
        in_memory = not database or database == ":memory:" or database.startswith("file:")
        self._file = "" if in_memory else f"{database}-relay"
        self._lock: sqlite3.Connection | None = None

    def acquire(self) -> bool:
        """Whether this source holds it now."""
        if not self._file or self._lock is not None:
            return True
        lock = sqlite3.connect(self._file, isolation_level=None, timeout=0, check_same_thread=False)
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            lock.close()
            return False
        self._lock = lock
        return True

    def release(self) -> None:
        """Let another source have it."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with suppress(sqlite3.Error):
                lock.close()


class DatabaseSource:
    """A `Source` whose place of publication is in ``table``; its statements are those of a subclass.

    On PostgreSQL the transaction of what is taken is open until that is settled or let go, with locks of it, or until nothing
    was heard of it for ``stall_limit`` (s). On SQLite it is not, and one source is at work on a database. Of an `Engine` the
    connection works in threads, which wait for the database.
    """

    def __init__(
        self,
        engine: AsyncEngine | Engine,
        table: Table,
        name: str,
        *,
        stall_limit: float,
        attempts: int,
        pauses: Backoff | None,
    ) -> None:
        dialect = engine.dialect.name
        if dialect not in DIALECTS:
            raise ValueError(f"the database is {dialect}: a relay needs PostgreSQL or SQLite")
        if not stall_limit > 0:
            raise ValueError("stall_limit is above 0 seconds")
        if attempts < 0:
            raise ValueError("attempts is 0 or more")
        self.name = name
        self.stall_limit = stall_limit
        self._is_postgresql = dialect == "postgresql"
        self._engine = engine.execution_options(isolation_level="READ COMMITTED") if self._is_postgresql else engine
        self._table = table
        self._attempts = attempts
        self._pauses = pauses or Backoff(1.0, 60.0, least=0.5)
        self._held: AsyncConnection | Connection | None = None
        self._lock = None if self._is_postgresql else RelayLock(engine.url.database)

    def _taken(self, connection: Connection, most: int) -> list[OutboxMessage]:
        raise NotImplementedError

    def _settled(
        self, connection: Connection, confirmed: Sequence[OutboxMessage], refused: Sequence[RefusedMessage]
    ) -> None:
        raise NotImplementedError

    async def check(self) -> None:
        """Raises `NotDone` where there is no such table, and SQLAlchemy's errors."""
        await in_transaction(self._engine, lambda connection: check_there(connection, self._table, group="outbox"))

    async def take(self, most: int) -> Sequence[OutboxMessage]:
        """See `Source`."""
        if self._lock is not None and not self._lock.acquire():
            return []
        if isinstance(self._engine, AsyncEngine):
            self._held = self._held or await self._engine.connect()
        else:
            self._held = self._held or await asyncio.to_thread(self._engine.connect)

        def take(connection: Connection) -> list[OutboxMessage]:
            if self._is_postgresql:
                connection.execute(_LIMITS, {"_limit": str(milliseconds(self.stall_limit))})
            return self._taken(connection, most)

        messages = await self._run(take)
        if not self._is_postgresql:
            await self._run(Connection.commit)  # nobody who writes is to wait for a broker
        return messages

    async def settle(self, confirmed: Sequence[OutboxMessage], refused: Sequence[RefusedMessage]) -> None:
        """See `Source`."""
        try:
            await self._run(lambda connection: self._settled(connection, confirmed, refused))
            await self._run(Connection.commit)
        except BaseException:
            await self.let_go()
            raise

    async def _run(self, step: Callable[[Connection], Result]) -> Result:
        """The result of ``step`` on the connection of what is taken."""
        if self._held is None:
            raise RuntimeError("nothing is taken")
        if isinstance(self._held, AsyncConnection):
            return await self._held.run_sync(step)
        return await asyncio.to_thread(step, self._held)

    async def let_go(self) -> None:
        """See `Source`. A server that is gone has rolled back."""
        held, self._held = self._held, None
        try:
            if isinstance(held, AsyncConnection):
                await held.close()
            elif held is not None:
                await asyncio.to_thread(held.close)
        except Exception as error:  # noqa: BLE001  # of the driver, whatever it is
            log.debug("a connection could not be closed: %s", type(error).__name__)

    async def close(self) -> None:
        """See `Source`."""
        await self.let_go()
        if self._lock is not None:
            self._lock.release()
