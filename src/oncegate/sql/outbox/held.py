"""A connection that is held over several awaits, of an engine of either kind."""

import asyncio
import logging
from collections.abc import Callable
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
