"""A swap is made where the row is as it expects, to the byte and the millisecond, and in time; else nothing changes.

Rules of docs/contract.md: R12.60.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest

from oncegate.cache.sql.postgresql import statements
from oncegate.cache.sql.postgresql.address import PostgresAddress
from oncegate.cache.sql.postgresql.rows import PostgresRows
from oncegate.cache.sql.rows import HEAD_BYTES, Expected, Found, Reply, Rows, Step, Swap
from oncegate.cache.sql.sqlite.clock import SteadyClock
from oncegate.cache.sql.sqlite.file import SqliteFile
from oncegate.cache.sql.sqlite.rows import SqliteRows
from oncegate.cache.sql.sqlite.schema import SqliteAddress
from testing.postgresql import PostgreSQLServer

HEAD = bytes(range(HEAD_BYTES))
HELD = HEAD + b" and the rest"
OTHER = HEAD + b" and no more!"
"""Of the same size and head."""
NEW = b"\xff" * 30
LATER_MS = 600_000
LIVES = 4_102_444_800_000
"""The year 2100: however long the tests before these take."""
OVER = 1_000_000


class Table:
    """The rows of one database, and a hand on them."""

    def __init__(self, rows: Rows, table: str, execute: Callable[[str], list[tuple[bytes, int]]]) -> None:
        self.rows = rows
        self._table = table
        self._execute = execute

    def put(self, data: bytes, ends_ms: int) -> None:
        literal = f"decode('{data.hex()}', 'hex')" if self._table != "records" else f"x'{data.hex()}'"
        self._execute(f"INSERT INTO {self._table} VALUES ('a:key', {literal}, {ends_ms})")

    def held(self) -> list[tuple[bytes, int]]:
        return [(bytes(data), ends_ms) for data, ends_ms in self._execute(f"SELECT data, ends_ms FROM {self._table}")]

    async def make(self, step: Step) -> Found:
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.rows.put(step, reply.set_result)
        answer = await reply
        assert isinstance(answer, Found), answer
        return answer


@pytest.fixture(params=["sqlite", "postgresql"])
async def table(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Table]:
    loop = asyncio.get_running_loop()
    if request.param == "sqlite":
        path = tmp_path / "records.db"
        file = SqliteFile(SqliteAddress(f"sqlite:///{path}"), 30, SteadyClock())

        def execute(statement: str) -> list[tuple[bytes, int]]:
            with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
                return connection.execute(statement).fetchall()

        in_file = SqliteRows(file, loop, 30)
        await in_file.check()
        yield Table(in_file, "records", execute)
        await in_file.close()
        file.close()
        return
    server: PostgreSQLServer = request.getfixturevalue("records_server")
    database = server.database()
    server.execute(statements.TABLES, database)
    in_server = PostgresRows(PostgresAddress(f"postgresql://postgres@127.0.0.1:{server.port}/{database}"), loop, 30)
    yield Table(in_server, "oncegate_records", lambda statement: server.execute(statement, database))
    await in_server.close()


AS_EXPECTED = [
    (None, Expected.NOTHING, b"", 0),
    ((HELD, LIVES), Expected.HEAD, HEAD, 0),
    ((HELD, LIVES), Expected.WHOLE, HELD, LIVES),
    ((HELD, OVER), Expected.GONE, HELD, OVER),
]
NOT_AS_EXPECTED = {
    "a row where none is": ((HELD, LIVES), Expected.NOTHING, b"", 0),
    "another token": ((HELD, LIVES), Expected.HEAD, HEAD[:-1] + b"!", 0),
    "its own token, and over": ((HELD, OVER), Expected.HEAD, HEAD, 0),
    "other bytes of the same end": ((OTHER, LIVES), Expected.WHOLE, HELD, LIVES),
    "the same bytes of a later end": ((HELD, LIVES), Expected.WHOLE, HELD, LIVES - 1),
    "the same bytes, and over": ((HELD, OVER), Expected.WHOLE, HELD, OVER),
    "one that lives": ((HELD, LIVES), Expected.GONE, HELD, LIVES),
    "nothing where its own was": (None, Expected.HEAD, HEAD, 0),
    "nothing where a whole one was": (None, Expected.WHOLE, HELD, LIVES),
}
Case = tuple[tuple[bytes, int] | None, Expected, bytes, int]


def swap(case: Case, data: bytes | None = NEW, ttl_ms: int = LATER_MS, until_ms: int = 0) -> Swap:
    _, expected, held, ends_ms = case
    return Swap("a:key", expected, held, ends_ms, data, ttl_ms, until_ms)


@pytest.mark.parametrize("case", AS_EXPECTED, ids=lambda case: case[1].name)
async def test_what_is_as_expected_is_swapped(table: Table, case: Case) -> None:
    if case[0] is not None:
        table.put(*case[0])
    found = await table.make(swap(case))
    assert found.swapped
    ((data, ends_ms),) = table.held()
    assert data == NEW
    assert found.now_ms <= ends_ms <= found.now_ms + LATER_MS


@pytest.mark.parametrize("case", NOT_AS_EXPECTED.values(), ids=NOT_AS_EXPECTED)
async def test_what_is_not_as_expected_stays_and_is_what_the_reply_has(table: Table, case: Case) -> None:
    if case[0] is not None:
        table.put(*case[0])
    found = await table.make(swap(case))
    assert not found.swapped
    row = None if found.row is None else (bytes(found.row.data), found.row.ends_ms)
    assert row == case[0]
    left = table.held()
    assert left in ([] if case[0] is None else [case[0]], [])  # what is over may have been swept
    assert left or case[0] is None or case[0][1] == OVER


@pytest.mark.parametrize("case", AS_EXPECTED, ids=lambda case: case[1].name)
async def test_what_comes_after_its_instant_is_not_made(table: Table, case: Case) -> None:
    if case[0] is not None:
        table.put(*case[0])
    found = await table.make(swap(case, until_ms=OVER + 1))
    assert not found.swapped
    assert NEW not in [data for data, _ in table.held()]


async def test_a_renewal_leaves_the_bytes_and_a_release_nothing(table: Table) -> None:
    table.put(HELD, LIVES)
    case = AS_EXPECTED[1]
    found = await table.make(swap(case, data=None))
    assert found.swapped
    ((data, ends_ms),) = table.held()
    assert data == HELD
    assert found.now_ms <= ends_ms <= found.now_ms + LATER_MS < LIVES
    assert (await table.make(swap(case, data=None, ttl_ms=0))).swapped
    assert table.held() == []
