"""What only the memory cache promises: its bound in bytes, and memory that comes back.

Rules of docs/contract.md: R5.28.
"""

import os
from typing import Any

import pytest

from oncegate.cache.errors import CacheFull
from oncegate.cache.memory.expiry import OVERHEAD_BYTES, STEP, ExpiringBytes
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import ClaimRequest, Record, State, StoredResponse
from testing.records import read

PRINT = b"p" * 16
LEASE: dict[str, Any] = {"fingerprint": PRINT, "lease_ms": 1_000, "retention_ms": 9_000}
RECORD_BYTES = OVERHEAD_BYTES + 2 + 55 + len('{"I":"00000000"}')


class Clock:
    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


async def complete(cache: MemoryCache, key: str, token: bytes, ttl_ms: int = 60_000, body: bytes = b"") -> bool:
    outcome = Record(State.SUCCEEDED, token, PRINT, 1, StoredResponse(200, (), body, 1))
    return await cache.complete(key, outcome, ttl_ms=ttl_ms)


async def test_a_full_cache_refuses_new_keys_and_keeps_every_record() -> None:
    cache = MemoryCache(limit_bytes=3 * RECORD_BYTES, clock=Clock())
    tokens = [os.urandom(16) for _ in range(3)]
    for number, token in enumerate(tokens):
        await cache.claim(f"k{number}", ClaimRequest(token=token, **LEASE))
    with pytest.raises(CacheFull):
        await cache.claim("k3", ClaimRequest(token=os.urandom(16), **LEASE))
    for number, token in enumerate(tokens):
        assert (await read(cache, f"k{number}")).record.token == token


async def test_a_full_cache_still_stores_known_outcomes() -> None:
    cache = MemoryCache(limit_bytes=RECORD_BYTES, clock=Clock())
    token, other = os.urandom(16), os.urandom(16)
    await cache.claim("k0", ClaimRequest(token=token, **LEASE))
    assert await complete(cache, "k0", token, body=b"x" * 10_000)
    assert await complete(cache, "k1", other)
    assert cache.size_bytes > RECORD_BYTES + 10_000
    assert (await read(cache, "k0")).record.state is State.SUCCEEDED


async def test_a_full_cache_still_lets_a_failed_record_be_retried() -> None:
    cache = MemoryCache(limit_bytes=RECORD_BYTES, clock=Clock())
    token = os.urandom(16)
    await cache.claim("k0", ClaimRequest(token=token, **LEASE))
    await cache.complete("k0", Record(State.FAILED, token, PRINT, 1), ttl_ms=60_000)
    again = ClaimRequest(token=os.urandom(16), takeover=frozenset({State.FAILED}), **LEASE)
    assert (await cache.claim("k0", again)).won


async def test_a_full_cache_has_room_as_soon_as_a_record_is_over() -> None:
    clock = Clock()
    cache = MemoryCache(limit_bytes=3 * RECORD_BYTES, clock=clock)
    for number in range(3):
        await cache.claim(f"k{number}", ClaimRequest(token=os.urandom(16), **LEASE))
    clock.now += 11
    for number in range(3, 6):
        assert (await cache.claim(f"k{number}", ClaimRequest(token=os.urandom(16), **LEASE))).won
    assert len(cache) == 3


async def test_time_to_live_is_exact_to_the_millisecond() -> None:
    clock = Clock()
    cache = MemoryCache(clock=clock)
    token = os.urandom(16)
    await cache.claim("k", ClaimRequest(token=token, **LEASE))
    clock.now = 5.0 + 0.999
    held = await read(cache, "k")
    assert (held.record.state, held.remaining_ms) == (State.IN_FLIGHT, 9_001)
    clock.now = 5.0 + 1.0
    held = await read(cache, "k")
    assert (held.record.state, held.remaining_ms) == (State.UNKNOWN, 9_000)
    assert await cache.renew("k", token=token, lease_ms=1_500)  # from now on: a second and a half, and nine more
    clock.now = 6.0 + 10.499
    assert await cache.get("k") is not None
    clock.now = 6.0 + 10.5
    assert await cache.get("k") is None


async def test_writes_give_back_the_memory_of_what_expired_a_little_at_a_time() -> None:
    clock = Clock()
    cache = MemoryCache(clock=clock)
    count = 10 * STEP
    for number in range(count):
        await cache.claim(f"k{number}", ClaimRequest(token=os.urandom(16), **LEASE))
    clock.now += 11
    await cache.claim("new0", ClaimRequest(token=os.urandom(16), **LEASE))
    assert len(cache) == count - STEP + 1
    for number in range(1, 10):
        await cache.claim(f"new{number}", ClaimRequest(token=os.urandom(16), **LEASE))
    assert len(cache) == 10


async def test_a_time_that_is_shortened_again_and_again_leaves_nothing_stale_behind() -> None:
    """A day in flight, a minute as failed, over and over: the index must not grow with it."""
    entries = ExpiringBytes()
    for round_ in range(10_000):
        entries.put("k", b"x", 86_400_000 if round_ % 2 else 60_000)
    assert len(entries._seconds) == 2
    assert len(entries._by_second) == 1
    assert entries.size == OVERHEAD_BYTES + 2
    assert entries.sweep(90_000_000) == 1
    assert (entries.size, len(entries), len(entries._seconds), len(entries._filed)) == (0, 0, 0, 0)


async def test_size_counts_keys_and_records_and_comes_back_to_zero() -> None:
    clock = Clock()
    cache = MemoryCache(clock=clock)
    token = os.urandom(16)
    await cache.claim("kk", ClaimRequest(token=token, **LEASE))
    assert cache.size_bytes == RECORD_BYTES
    await cache.release("kk", token=token)
    assert cache.size_bytes == 0
