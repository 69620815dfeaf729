"""A dict of bytes in which each entry expires at its own instant: the storage of `oncegate.cache.memory.store`.

Strategy: reading checks the exact instant, so nothing outlives its time by a millisecond. Memory is freed by a sweep
with each write: keys are grouped by the second in which they expire, and a heap of those seconds says which
are over. Grouping by second, instead of pushing every expiry onto a heap, means that a key whose time changes (a day in
flight, then a minute as failed) leaves nothing stale behind. The entries are in many small dicts, each of which a listing goes
through in one piece: one dict of a million could be listed neither in pieces, since it changes, nor at once.
"""
# Compiled: docs/decisions/0012-compiled.md

import heapq
from collections.abc import Collection, Iterator
from itertools import chain
from typing import Final, NamedTuple

OVERHEAD_BYTES: Final = 600
"""The most that one entry costs besides its key and its value: 590 measured with one per second, 265 with many (CPython 3.11)."""

PARTS: Final = 1024
"""A power of two."""
_PART: Final = PARTS - 1
STEP: Final = 32
"""Expired entries that one write clears away at most, so that no single call pays for a burst of expiries."""


class _Expiring(NamedTuple):
    """A value and the instant, in ms on the owner's clock, from which on it is gone."""

    data: bytes
    expires_ms: int


class ExpiringBytes:
    """A dict of bytes that knows its size, and forgets what has expired. Every instant is passed in."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[dict[str, _Expiring]] = [{} for _ in range(PARTS)]
        self._by_second: dict[int, set[str]] = {}
        self._seconds: list[int] = []
        self._filed: set[int] = set()

    def __len__(self) -> int:
        return sum([len(part) for part in self._parts])

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._parts)

    def part(self, number: int) -> Collection[str]:
        """The keys in one of `PARTS` parts, in which each of them stays; those that have expired, too."""
        return self._parts[number].keys()

    def get(self, key: str, now_ms: int) -> _Expiring | None:
        """The entry of ``key``, or ``None`` where there is none or it has expired."""
        entry = self._parts[hash(key) & _PART].get(key)
        return entry if entry is not None and entry.expires_ms > now_ms else None

    def put(self, key: str, data: bytes, expires_ms: int) -> None:
        """Keep ``data`` under ``key`` until ``expires_ms``, in place of what was there."""
        part = self._parts[hash(key) & _PART]
        held = part.get(key)
        if held is not None:
            self._unfile(key, held)
        part[key] = _Expiring(data, expires_ms)
        self.size += cost(key, data)
        second = expires_ms // 1000
        self._by_second.setdefault(second, set()).add(key)
        if second not in self._filed:
            self._filed.add(second)
            heapq.heappush(self._seconds, second)

    def prolong(self, key: str, expires_ms: int) -> None:
        """Keep what is under ``key`` until ``expires_ms``, as it is."""
        self.put(key, self._parts[hash(key) & _PART][key].data, expires_ms)

    def drop(self, key: str) -> None:
        """Forget ``key``, if it is there."""
        entry = self._parts[hash(key) & _PART].pop(key, None)
        if entry is not None:
            self._unfile(key, entry)

    def _unfile(self, key: str, entry: _Expiring) -> None:
        self.size -= cost(key, entry.data)
        second = entry.expires_ms // 1000
        bucket = self._by_second[second]
        bucket.discard(key)
        if not bucket:
            del self._by_second[second]

    def sweep(self, now_ms: int, most: int = STEP) -> int:
        """Free up to ``most`` entries whose second is over; returns how many."""
        swept = 0
        while self._seconds and self._seconds[0] < now_ms // 1000:
            bucket = self._by_second.get(self._seconds[0])
            while bucket:
                if swept == most:
                    return swept
                self.drop(bucket.pop())  # pop, since a set finds its next member fast only by itself
                swept += 1
            self._filed.discard(heapq.heappop(self._seconds))
        return swept


def cost(key: str, data: bytes) -> int:
    """An entry's size as counted against a limit, in bytes."""
    return len(key) + len(data) + OVERHEAD_BYTES
