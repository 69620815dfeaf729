"""A cache under test with a hand on its time and on its bytes, so that no test sleeps or depends on a fast machine.

The memory cache is given a clock. In Redis only one key's time matters to a test, and time passing is nothing but its
PTTL getting shorter, so it is shortened; so is a row's end in a database.
"""

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, LiteralString, Protocol

import psycopg

from oncegate import testing
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.sql.store import SqlCache
from oncegate.testing.store import SLACK_MS as SLACK_MS
from testing.groups import ClusterGroup, SentinelGroup
from testing.inside import entries_of
from testing.postgresql import PostgreSQLServer
from testing.servers import RedisServer


class Store(testing.Store, Protocol):
    """A store of records as bytes, which a test meddles with behind the cache's back."""

    def leave(self, milliseconds: int) -> None:
        """Let time pass until the key's record has this much left to live."""

    def plant(self, data: bytes, ttl_ms: int | None) -> None:
        """Put raw bytes where a record should be."""

    def raw(self) -> bytes | None:
        """The bytes of the record."""


class MemoryStore:
    """The memory cache under a clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.cache = MemoryCache(clock=lambda: self.now)
        self.key = f"test:{os.urandom(6).hex()}"

    def pass_time(self, milliseconds: int) -> None:
        self.now = round(self.now * 1000 + milliseconds) / 1000

    def leave(self, milliseconds: int) -> None:
        entry = entries_of(self.cache).get(self.key, int(self.now * 1000))
        assert entry is not None
        self.pass_time(entry.expires_ms - int(self.now * 1000) - milliseconds)

    def plant(self, data: bytes, ttl_ms: int | None) -> None:
        if ttl_ms is not None:
            entries_of(self.cache).put(self.key, data, int(self.now * 1000) + ttl_ms)

    def raw(self) -> bytes | None:
        entry = entries_of(self.cache).get(self.key, int(self.now * 1000))
        return None if entry is None else entry.data


class RedisStore:
    """A Redis cache, and a second connection that ages its record."""

    def __init__(self, server: RedisServer | SentinelGroup | ClusterGroup, cache: RedisCache | None = None) -> None:
        self._server = server
        self.cache = cache or RedisCache.from_url(server.url, timeout=30)
        self.key = server.key("record")

    def pass_time(self, milliseconds: int) -> None:
        left = self._server.command("PTTL", self.key)
        if left >= 0:
            self._server.command("PEXPIRE", self.key, left - milliseconds)

    def leave(self, milliseconds: int) -> None:
        self._server.command("PEXPIRE", self.key, milliseconds)

    def plant(self, data: bytes, ttl_ms: int | None) -> None:
        self._server.command("SET", self.key, data, *(() if ttl_ms is None else ("PX", ttl_ms)))

    def raw(self) -> bytes | None:
        data: bytes | None = self._server.command("GET", self.key)
        return data


class SqliteStore:
    """A file of records, and a second connection that ages its record."""

    def __init__(self, path: Path, cache: SqlCache | None = None) -> None:
        self._path = path
        self.cache = cache or SqlCache.from_url(f"sqlite:///{path}", timeout=30)
        self.key = f"test:{os.urandom(6).hex()}"

    def _execute(self, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as connection:
            return connection.execute(statement, arguments).fetchall()

    def pass_time(self, milliseconds: int) -> None:
        self._execute("UPDATE records SET ends_ms = ends_ms - ? WHERE key = ?", milliseconds, self.key)

    def leave(self, milliseconds: int) -> None:
        ends_ms = time.time_ns() // 1_000_000 + milliseconds
        self._execute("UPDATE records SET ends_ms = ? WHERE key = ?", ends_ms, self.key)

    def plant(self, data: bytes, ttl_ms: int | None) -> None:
        ends_ms = time.time_ns() // 1_000_000 + (0 if ttl_ms is None else ttl_ms)
        self._execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", self.key, data, ends_ms)

    def raw(self) -> bytes | None:
        found = self._execute("SELECT data FROM records WHERE key = ?", self.key)
        return found[0][0] if found else None


class PostgresStore:
    """A table of records, and a second connection that ages its record."""

    def __init__(self, server: PostgreSQLServer, database: str, cache: SqlCache | None = None) -> None:
        address = f"postgresql://postgres@127.0.0.1:{server.port}/{database}"
        self.cache = cache or SqlCache.from_url(address, timeout=30)
        self.key = f"test:{os.urandom(6).hex()}"
        self._address = address

    def _execute(self, statement: LiteralString, *arguments: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._address, autocommit=True) as connection:
            cursor = connection.execute(statement, arguments)
            return cursor.fetchall() if cursor.description else []

    def pass_time(self, milliseconds: int) -> None:
        self._execute("UPDATE oncegate_records SET ends_ms = ends_ms - %s WHERE key = %s", milliseconds, self.key)

    def leave(self, milliseconds: int) -> None:
        ends_ms = time.time_ns() // 1_000_000 + milliseconds
        self._execute("UPDATE oncegate_records SET ends_ms = %s WHERE key = %s", ends_ms, self.key)

    def plant(self, data: bytes, ttl_ms: int | None) -> None:
        ends_ms = time.time_ns() // 1_000_000 + (0 if ttl_ms is None else ttl_ms)
        self._execute(
            "INSERT INTO oncegate_records VALUES (%s, %s, %s)"
            " ON CONFLICT (key) DO UPDATE SET data = excluded.data, ends_ms = excluded.ends_ms",
            self.key,
            data,
            ends_ms,
        )

    def raw(self) -> bytes | None:
        found = self._execute("SELECT data FROM oncegate_records WHERE key = %s", self.key)
        return found[0][0] if found else None
