"""`Rows` in PostgreSQL, for one event loop: two connections, and a sweep of what is gone."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from oncegate.cache.callbacks import set_reply
from oncegate.cache.errors import CacheUnavailable, CacheUnsupported
from oncegate.cache.sql.postgresql import statements
from oncegate.cache.sql.postgresql.address import PostgresAddress
from oncegate.cache.sql.postgresql.server import NO_TABLE, Sender
from oncegate.cache.sql.rows import Expected, Found, Reply, Row, Step, Swap

Made = TypeVar("Made")

_SWEEP_PAUSE: Final = 5.0
"""Seconds between two sweeps."""
SWEEP_STEP: Final = 1000
"""Rows that one sweep removes at most."""
_SWEEP_ON: Final = 0.1
"""Seconds after one that has found more than it removes at once."""


async def create_table(url: str, *, timeout: float) -> None:
    """Make the table of records, where it is not there yet. Raises `CacheError`, ``ValueError`` for a URL."""
    rows = PostgresRows(PostgresAddress(url), asyncio.get_running_loop(), timeout)

    async def create(connection: Any) -> None:
        await connection.execute(statements.TABLES)

    try:
        await rows.look(create)
    finally:
        await rows.close()


class PostgresRows:
    """See `oncegate.cache.sql.rows.Rows`."""

    def __init__(self, address: PostgresAddress, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self._loop = loop
        self._timeout = timeout
        self._claims = Sender(address, loop, timeout)
        self._others = Sender(address, loop, timeout)
        self._sweeping: asyncio.TimerHandle | None = None
        self._was_primary = False

    def glance(self, key: str) -> Found | None:  # noqa: ARG002 - it is one of `Rows`
        """See `Rows`: nothing is here."""
        return None

    def now_ms(self) -> int:
        """See `Rows`."""
        return self._claims.now_ms or self._others.now_ms

    def put(self, step: Step, then: Callable[[Reply], None]) -> None:
        """See `Rows`."""
        if isinstance(step, Swap) and step.expected is Expected.NOTHING:
            self._claims.put(step, then)
        else:
            self._others.put(step, then)
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(_SWEEP_PAUSE, self._sweep)

    async def read(self, key: str, most: int = 0) -> tuple[Row, int] | None:
        """See `Rows`."""

        async def look(connection: Any) -> tuple[Row, int] | None:
            found = await connection.fetchrow(statements.PART, key, most)
            return None if found is None else (Row(found["data"], found["ends_ms"], found["now_ms"]), found["size"])

        return await self.look(look)

    async def read_all(self, keys: Sequence[str], most: int) -> dict[str, tuple[Row, int]]:
        """See `Rows`."""

        async def look(connection: Any) -> dict[str, tuple[Row, int]]:
            found = await connection.fetch(statements.PARTS, list(keys), most)
            return {row["key"]: (Row(row["data"], row["ends_ms"], row["now_ms"]), row["size"]) for row in found}

        return await self.look(look)

    async def scan(self, after: str, prefix: str, limit: int) -> tuple[list[str], str]:
        """See `Rows`."""

        async def look(connection: Any) -> tuple[list[str], str]:
            found = await connection.fetch(statements.SCAN, after, prefix, prefix + "\U0010ffff", limit)
            keys = [each["key"] for each in found if each["lives"]]
            return keys, found[-1]["key"] if len(found) == limit else ""

        return await self.look(look)

    async def check(self) -> list[str]:
        """See `Rows`. Raises `CacheUnsupported` for a server, a role or a table that can't hold records."""

        async def look(connection: Any) -> tuple[Any, str]:
            found = await connection.fetchrow(statements.LOOK)
            return found, (await connection.fetchval(statements.RIGHTS) or "") if found["is_there"] else ""

        found, missing = await self.look(look)
        if found["version"] < statements.LEAST_VERSION:
            raise CacheUnsupported("records need PostgreSQL 13 or newer")
        if found["is_standby"] and not self._was_primary:
            raise CacheUnsupported("the cache's URL names a standby, which takes no records: name the primary")
        if not found["is_there"]:
            raise CacheUnsupported(NO_TABLE)
        schema = (found["mark"] or "").removeprefix(statements.MARK)
        if schema.isdecimal() and int(schema) > statements.SCHEMA:
            raise CacheUnsupported(
                f"oncegate_records is of a newer oncegate (schema {schema}, this one knows {statements.SCHEMA})"
            )
        if missing:
            raise CacheUnsupported(f"the database's user lacks {missing} on oncegate_records: GRANT it")
        self._was_primary = True
        advice = []
        if found["fsync"] == "off":
            advice.append("PostgreSQL runs with fsync = off: a power cut damages it, or loses what was promised")
        if found["synchronous_commit"] == "off":
            advice.append(
                "synchronous_commit is off: a crash of the server loses the last records, and their commands run again"
            )
        return advice

    async def describe(self) -> dict[str, str | int]:
        """See `Rows`."""

        async def look(connection: Any) -> Any:
            return await connection.fetchrow(statements.SIZES)

        found = await self.look(look)
        return {
            "name": found["name"],
            "used_bytes": found["used"],
            "persistence": f"fsync {found['fsync']}, synchronous_commit {found['synchronous_commit']}",
        }

    def _sweep(self) -> None:
        async def look(connection: Any) -> int:
            done: str = await connection.execute(statements.SWEEP, SWEEP_STEP)
            return int(done.rpartition(" ")[2])

        def swept(reply: Any) -> None:
            pause = _SWEEP_ON if reply == SWEEP_STEP else _SWEEP_PAUSE
            if self._sweeping is not None:
                self._sweeping = self._loop.call_later(pause, self._sweep)

        self._others.put(look, swept)

    async def look(self, look: Callable[[Any], Awaitable[Made]]) -> Made:
        """The result of ``look``, which is called with a connection. Raises `CacheError`."""
        reply: asyncio.Future[Any] = self._loop.create_future()
        self._others.put(look, lambda answer: set_reply(reply, answer))
        try:
            async with asyncio.timeout(2 * self._timeout):
                answer = await reply
        except TimeoutError:
            raise CacheUnavailable("PostgreSQL did not answer in time") from None
        if isinstance(answer, Exception):
            raise answer
        made: Made = answer
        return made

    async def close(self) -> None:
        """See `Rows`."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        await self._claims.close()
        await self._others.close()
