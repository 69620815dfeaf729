"""A cache under test with a hand on its time and on its bytes, so that no test sleeps or depends on a fast machine.

The memory cache is given a clock. In Redis only one key's time matters to a test, and time passing is nothing but its
PTTL getting shorter, so it is shortened.
"""

import os
from typing import Protocol

from oncegate import testing
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.redis.store import RedisCache
from oncegate.testing.store import SLACK_MS as SLACK_MS
from testing.groups import ClusterGroup, SentinelGroup
from testing.servers import RedisServer
from tests.cache.inside import entries_of


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
