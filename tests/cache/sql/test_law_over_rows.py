"""The law over rows that compare and swap: random histories are fed to the functions of `oncegate.cache.transitions` and to
`SqlCache` on a real SQLite and a real PostgreSQL, and each answer, each stored byte and each time to live is compared.

Time is given to the databases, so that both sides stand at the same millisecond.

Rules of docs/contract.md: R12.60.
"""

import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings

from oncegate.cache import transitions
from oncegate.cache.record import ClaimRequest, Record
from oncegate.cache.sql.postgresql import server as postgresql
from oncegate.cache.sql.postgresql import statements
from oncegate.cache.sql.sqlite.clock import SteadyClock
from oncegate.cache.sql.sqlite.file import SqliteFile
from oncegate.cache.sql.sqlite.rows import SqliteRows
from oncegate.cache.sql.sqlite.schema import SqliteAddress
from oncegate.cache.sql.store import SqlCache
from testing.postgresql import PostgreSQLServer
from tests.cache.test_law import HISTORIES, WALKS, Functions, Step

BEGIN_MS = 1_000_000
KEPT = ("claim", "renew", "complete", "release", "resolve", "purge", "time_passes")


class Side:
    """A record in a database, moved by `SqlCache`, at an instant that the test sets."""

    def __init__(self, cache: SqlCache, key: str) -> None:
        self.cache = cache
        self.key = key
        self.now_ms = BEGIN_MS

    async def raw(self) -> tuple[bytes, int] | None:
        """The bytes and what they have left."""
        raise NotImplementedError

    async def set_clock(self, now_ms: int) -> None:
        self.now_ms = now_ms

    async def step(self, name: str, arguments: dict[str, Any]) -> Any:
        answer: Any = None
        if name == "time_passes":
            await self.set_clock(self.now_ms + arguments["milliseconds"])
        elif name == "claim":
            request: ClaimRequest = arguments["request"]
            claim = await self.cache.claim(self.key, request)
            answer = claim.won, claim.record, claim.remaining_ms
        elif name == "renew":
            answer = await self.cache.renew(self.key, **arguments)
        elif name == "complete":
            answer = await self.cache.complete(self.key, arguments["outcome"], ttl_ms=arguments["ttl_ms"])
        elif name == "resolve":
            answer = await self.cache.resolve(self.key, arguments["request"])
        elif name == "purge":
            seen: Record = arguments["seen"]
            answer = await self.cache.purge(self.key, seen, force=arguments["force"])
        else:
            answer = await self.cache.release(self.key, **arguments)
        return answer


class InSqlite(Side):
    def __init__(self, path: Path, key: str) -> None:
        clock = SteadyClock(lambda: (self.now_ms + 0.5) / 1000, lambda: 0.0)  # half: floats are cut off
        file = SqliteFile(SqliteAddress(f"sqlite:///{path}"), 30, clock)
        super().__init__(SqlCache(lambda loop: SqliteRows(file, loop, 30), timeout=30, closed=file.close), key)
        self._path = path

    async def raw(self) -> tuple[bytes, int] | None:
        with closing(sqlite3.connect(self._path)) as connection:
            statement = "SELECT data, ends_ms - ? FROM records WHERE key = ? AND ends_ms > ?"
            found: tuple[bytes, int] | None = connection.execute(
                statement, (self.now_ms, self.key, self.now_ms)
            ).fetchone()
            return found


class InPostgres(Side):
    def __init__(self, address: str, key: str, connection: Any) -> None:
        super().__init__(SqlCache.from_url(address, timeout=30), key)
        self._connection = connection

    async def raw(self) -> tuple[bytes, int] | None:
        statement = "SELECT data, ends_ms - $1 FROM oncegate_records WHERE key = $2 AND ends_ms > $1"
        found = await self._connection.fetchrow(statement, self.now_ms, self.key)
        return None if found is None else (found[0], found[1])

    async def set_clock(self, now_ms: int) -> None:
        await super().set_clock(now_ms)
        await self._connection.execute("UPDATE test_clock SET ms = $1", now_ms)


class Sealed(Functions):
    """What a release gives back is sealed here: it is no script that writes it."""

    def release(self, token: bytes) -> Any:
        return self._carry_out(self._law.release(self.held(), token))


async def both(side: Side, history: list[Step]) -> None:
    """Feed the history to both. Raises what the first difference raises."""
    functions = Sealed(transitions)
    for name, arguments in history:
        if name in KEPT:
            assert await side.step(name, arguments) == getattr(functions, name)(**arguments)
            raw = await side.raw()
            assert raw == (None if functions.data is None else (functions.data, functions.left))


async def compare(opened: Callable[[str], Coroutine[Any, Any, Side]], examples: int) -> None:
    """The walks, then what chance finds."""
    number = 0

    async def one(history: list[Step]) -> None:
        nonlocal number
        number += 1
        side = await opened(f"test:law:{number}")
        await side.set_clock(BEGIN_MS + number * 1000)
        await both(side, history)

    for walk in WALKS:
        await one(walk)
    drawn: list[list[Step]] = []

    def draw(history: list[Step]) -> None:
        drawn.append(history)

    settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))(
        given(HISTORIES)(draw)
    )()
    for history in drawn:
        await one(history)


async def test_the_law_holds_over_rows_of_sqlite(tmp_path: Path) -> None:
    side = InSqlite(tmp_path / "records.db", "")

    async def opened(key: str) -> Side:
        side.key = key
        return side

    try:
        await compare(opened, 120)
    finally:
        await side.cache.close()


async def test_the_law_holds_over_rows_of_postgresql(
    records_server: PostgreSQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"postgresql://postgres@127.0.0.1:{records_server.port}/{records_server.database()}"
    for kind, statement in postgresql.STATEMENTS.items():
        monkeypatch.setitem(
            postgresql.STATEMENTS, kind, statement.replace(statements.NOW, "(SELECT ms FROM test_clock)")
        )
    monkeypatch.setattr(statements, "SWEEP", statements.SWEEP.replace(statements.NOW, "(SELECT ms FROM test_clock)"))
    connection = await asyncpg.connect(address)
    await connection.execute(
        f"{statements.TABLES}; CREATE TABLE test_clock (ms bigint); INSERT INTO test_clock VALUES (0)"
    )
    side = InPostgres(address, "", connection)

    async def opened(key: str) -> Side:
        side.key = key
        return side

    try:
        await compare(opened, 120)
    finally:
        await side.cache.close()
        await connection.close()
