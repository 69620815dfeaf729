"""A file of records that is opened while another process holds its lock.

Rules of docs/contract.md: R12.63, R12.64.
"""

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncegate.cache.record import Claim, ClaimRequest, Record, State, StoredResponse
from oncegate.cache.sql.sqlite.file import SqliteFile
from oncegate.cache.sql.sqlite.schema import SqliteAddress, create
from oncegate.cache.sql.store import SqlCache
from testing.waiting import until

PRINT = b"p" * 16
RESPONSE = StoredResponse(201, ((b"content-type", b"text/plain"),), b"done", 1_700_000_000_000)
MANY_MS = 600_000


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/records.db"


@pytest.fixture
def other(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Another process's connection."""
    with closing(sqlite3.connect(tmp_path / "records.db", isolation_level=None)) as connection:
        yield connection


async def claim(cache: SqlCache, key: str) -> Claim:
    return await cache.claim(key, ClaimRequest(os.urandom(16), PRINT, MANY_MS, MANY_MS))


async def test_who_opens_a_file_while_its_lock_is_held_answers_replays(url: str, other: sqlite3.Connection) -> None:
    earlier = SqlCache.from_url(url)
    won = await claim(earlier, "a:key")
    await earlier.complete("a:key", Record(State.SUCCEEDED, won.record.token, PRINT, 1, RESPONSE), ttl_ms=MANY_MS)
    other.execute("BEGIN IMMEDIATE")
    cache = SqlCache.from_url(url, timeout=60)
    new = asyncio.ensure_future(claim(cache, "b:key"))
    replay = await claim(cache, "a:key")
    assert (replay.won, replay.record.response) == (False, RESPONSE)
    await cache.check()
    assert not new.done()
    other.execute("ROLLBACK")
    assert (await new).won
    await cache.close()
    await earlier.close()


async def test_tables_that_another_process_makes_meanwhile_are_found(
    url: str, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    locked = SqliteFile._locked

    def noted(self: SqliteFile, connection: sqlite3.Connection, statement: str, ends: float) -> Any:
        taken.append(statement)
        return locked(self, connection, statement, ends)

    monkeypatch.setattr(SqliteFile, "_locked", noted)
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("BEGIN IMMEDIATE")
    cache = SqlCache.from_url(url, timeout=60)
    opening = asyncio.ensure_future(claim(cache, "a:key"))
    await until(lambda: "BEGIN IMMEDIATE" in taken, "it to wait for the lock, having seen no tables")
    create(other, SqliteAddress(url))
    other.execute("COMMIT")
    assert (await opening).won
    await cache.close()
