"""A heap of rows that are over goes in bounded steps, while claims go on (contract R12.65)."""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import quantiles

import pytest

from oncegate.cache.record import ClaimRequest
from oncegate.cache.sql.postgresql import rows, statements
from oncegate.cache.sql.sqlite import file
from oncegate.cache.sql.store import SqlCache
from testing.postgresql import PostgreSQLServer
from testing.waiting import until

CLAIMS = 300
SLACK = 0.1
"""Seconds more, on a machine that is busy with other things."""


class Heap:
    """A database with rows that are over."""

    def __init__(self, url: str, left: Callable[[], int], most: int) -> None:
        self.url = url
        self.left = left
        self.most = most
        """Rows that go at once."""


@pytest.fixture(params=[20_000, pytest.param(1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def count(request: pytest.FixtureRequest) -> int:
    return int(request.param)


async def in_sqlite(folder: Path, count: int) -> Heap:
    path = folder / "records.db"
    cache = SqlCache.from_url(f"sqlite:///{path}", timeout=30)
    await cache.check()
    await cache.close()
    with closing(sqlite3.connect(path)) as connection:
        old = ((f"old:{number:032x}", b"x" * 200, number) for number in range(count))
        connection.executemany("INSERT INTO records VALUES (?, ?, ?)", old)
        connection.commit()

    def left() -> int:
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            found: int = connection.execute("SELECT count(*) FROM records WHERE ends_ms < 10000000").fetchone()[0]
            return found

    return Heap(f"sqlite:///{path}", left, file.IDLE_STEP)


async def in_postgresql(server: PostgreSQLServer, count: int) -> Heap:
    name = server.database()
    server.execute(statements.TABLES, name)
    made = "SELECT 'old:' || md5(n::text), repeat('x', 200)::bytea, n FROM generate_series(1, {}) AS n"
    server.execute(f"INSERT INTO oncegate_records {made.format(count)}", name)
    server.execute("ANALYZE oncegate_records", name)
    query = "SELECT count(*) FROM oncegate_records WHERE ends_ms < 10000000"
    address = f"postgresql://postgres@127.0.0.1:{server.port}/{name}"
    return Heap(address, lambda: int(server.execute(query, name)[0][0]), rows.SWEEP_STEP)


async def p99(cache: SqlCache) -> float:
    """Of claims by eight callers, in seconds."""
    took: list[float] = []

    async def call() -> None:
        for _ in range(CLAIMS // 8):
            began = time.perf_counter()
            claim = ClaimRequest(os.urandom(16), b"p" * 16, 600_000, 600_000)
            assert (await cache.claim(f"a:{os.urandom(8).hex()}", claim)).won
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(call() for _ in range(8)))
    return quantiles(took, n=100)[98]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_claims_go_on_while_many_rows_are_swept(
    kind: str, tmp_path: Path, records_server: PostgreSQLServer, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(rows, "_SWEEP_PAUSE", 0.2)
    quiet = await (in_sqlite(tmp_path, 0) if kind == "sqlite" else in_postgresql(records_server, 0))
    cache = SqlCache.from_url(quiet.url, timeout=60)
    usual = await p99(cache)
    await cache.close()
    (tmp_path / "records.db").unlink(missing_ok=True)
    heap = await (in_sqlite(tmp_path, count) if kind == "sqlite" else in_postgresql(records_server, count))
    cache = SqlCache.from_url(heap.url, timeout=60)
    assert heap.left() == count
    slowest, counts = 0.0, [count]
    while counts[-1] and len(counts) < 20:
        slowest = max(slowest, await p99(cache))
        counts.append(heap.left())
    assert counts[1] > 0, "they went in one step"
    assert slowest <= 3 * usual + SLACK
    await until(lambda: heap.left() == 0, "all of them are swept", within=600)
    await cache.close()
