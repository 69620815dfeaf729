"""What a source holds while a relay is at work on it: a connection over several awaits, and on SQLite the whole database."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

log = logging.getLogger("oncegate.relay")

Result = TypeVar("Result")


class HeldConnection:
    """A connection with one transaction after the other. Of an `Engine` it works in threads, which wait for the database."""

    def __init__(self, connection: AsyncConnection | Connection) -> None:
        self._connection = connection

    @classmethod
    async def of(cls, engine: AsyncEngine | Engine) -> Self:
        """A new one. Transactions are those of READ COMMITTED, where there are several levels."""
        options: dict[str, Any] = {"isolation_level": "READ COMMITTED"} if engine.dialect.name == "postgresql" else {}
        if isinstance(engine, AsyncEngine):
            connection = await engine.connect()
            return cls(await connection.execution_options(**options))
        return cls(await asyncio.to_thread(lambda: engine.connect().execution_options(**options)))

    async def run(self, step: Callable[[Connection], Result]) -> Result:
        """The result of ``step``."""
        if isinstance(self._connection, AsyncConnection):
            return await self._connection.run_sync(step)
        return await asyncio.to_thread(step, self._connection)

    async def commit(self) -> None:
        """End the transaction."""
        await self.run(lambda connection: connection.commit())

    async def close(self) -> None:
        """Roll back, and give the connection back. Raises nothing: a server that is gone has rolled back."""
        try:
            if isinstance(self._connection, AsyncConnection):
                await self._connection.close()
            else:
                await asyncio.to_thread(self._connection.close)
        except Exception as error:  # noqa: BLE001  # of the driver, whatever it is
            log.debug("a connection could not be closed: %s", type(error).__name__)


class Alone:
    """That one relay is at work on a database of SQLite: a lock on a file beside it, which ends with the process."""

    def __init__(self, database: str | None) -> None:
        in_memory = not database or database == ":memory:" or database.startswith("file:")
        self._file = "" if in_memory else f"{database}-relay"
        self._lock: sqlite3.Connection | None = None

    def got(self) -> bool:
        """Whether it is this one."""
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

    def close(self) -> None:
        """Another one may go on."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with suppress(sqlite3.Error):
                lock.close()


class DatabaseSource:
    """What the sources have in common: the connection of what is taken, held until that is settled or let go.

    On PostgreSQL its transaction is open meanwhile, with locks of what is taken, until nothing was heard of it for
    ``stall_limit`` (s). On SQLite it is not, and one source is at work on a database.
    """

    def __init__(self, engine: AsyncEngine | Engine, stall_limit: float) -> None:
        if stall_limit <= 0:
            raise ValueError("stall_limit is above 0 seconds")
        self.stall_limit = stall_limit
        self._engine = engine
        self._is_postgresql = engine.dialect.name == "postgresql"
        self._held: HeldConnection | None = None
        self._alone = None if self._is_postgresql else Alone(engine.url.database)

    def _may_take(self) -> bool:
        """Whether no other source is at work on this database of SQLite."""
        return self._alone is None or self._alone.got()

    async def _take(self, step: Callable[[Connection], Result]) -> Result:
        """The result of ``step`` in a transaction that is open, on PostgreSQL, until `_settle` or `let_go`."""
        self._held = self._held or await HeldConnection.of(self._engine)
        result = await self._held.run(step)
        if not self._is_postgresql:
            await self._held.commit()  # nobody who writes is to wait for a broker
        return result

    async def _settle(self, step: Callable[[Connection], object]) -> None:
        """Do ``step`` in the transaction of what was taken, and commit it."""
        if self._held is None:
            raise RuntimeError("nothing is taken")
        try:
            await self._held.run(step)
            await self._held.commit()
        except BaseException:
            await self.let_go()
            raise

    async def _look(self, step: Callable[[Connection], Result]) -> Result:
        """The result of ``step`` on a connection of its own."""
        held = await HeldConnection.of(self._engine)
        try:
            result = await held.run(step)
            await held.commit()
        finally:
            await held.close()
        return result

    async def let_go(self) -> None:
        """See `oncegate.sql.Source`."""
        held, self._held = self._held, None
        if held is not None:
            await held.close()

    async def close(self) -> None:
        """See `oncegate.sql.Source`."""
        await self.let_go()
        if self._alone is not None:
            self._alone.close()
