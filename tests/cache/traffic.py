"""Claims and completions as a gateway makes them, with the books kept: who won what, and what was recorded."""

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.record import Claim, ClaimRequest, Record, State, StoredResponse
from oncegate.cache.redis.store import RedisCache
from testing.waiting import until

PRINT = b"p" * 16
LEASE_MS = 120_000
T = TypeVar("T")


async def claim(cache: RedisCache, key: str, token: bytes | None = None) -> Claim:
    return await cache.claim(key, ClaimRequest(token or os.urandom(16), PRINT, LEASE_MS, LEASE_MS))


async def complete(cache: RedisCache, key: str, token: bytes, body: bytes = b"done") -> bool:
    outcome = Record(State.SUCCEEDED, token, PRINT, 1, StoredResponse(200, (), body, 1))
    return await cache.complete(key, outcome, ttl_ms=LEASE_MS)


async def until_completed(cache: RedisCache, key: str, token: bytes, body: bytes = b"done") -> bool:
    """Complete, trying again as a gateway does while the cache is away."""

    async def completed() -> tuple[bool] | None:
        try:
            return (await complete(cache, key, token, body),)
        except CacheUnavailable:
            return None

    return bool((await until(completed))[0])


async def until_claimed(cache: RedisCache, key: str) -> Claim:
    """Claim, as a client does that comes again after each 503: with a fresh token, since the last one is withdrawn.

    One of ours that is still to be withdrawn, since a slow machine missed its time-out, is waited for.
    """
    given_up: list[bytes] = []

    async def claimed() -> Claim | None:
        token = os.urandom(16)
        try:
            answer = await claim(cache, key, token)
        except CacheUnavailable:
            given_up.append(token)
            return None
        return answer if answer.won or answer.record.token not in given_up else None

    found: Claim = await until(claimed)
    return found


async def in_time(operation: Callable[[], Awaitable[T]]) -> T:
    """What ``operation`` gives or raises, asked again where a slow machine missed a short time-out."""

    async def given() -> tuple[T] | None:
        try:
            return (await operation(),)
        except CacheUnavailable as error:
            if "in time" not in str(error):
                raise
            return None

    found: tuple[T] = await until(given)
    return found[0]


async def state(cache: RedisCache, key: str) -> State:
    held = await cache.get(key)
    return State.ABSENT if held is None else held.record.state


@dataclass
class Books:
    """What a run of traffic came to. ``winners`` are the tokens that won each key, ``recorded`` who completed it."""

    winners: defaultdict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    recorded: dict[str, bytes] = field(default_factory=dict)
    refused: int = 0
    slowest: float = 0.0


async def contend(caches: list[RedisCache], keys: list[str], books: Books, stop: asyncio.Event | None = None) -> None:
    """Each key is claimed over every cache at the same time; whoever wins completes it. Ends with the keys, or with ``stop``."""
    for key in keys:
        if stop is not None and stop.is_set():
            return
        await asyncio.gather(*(_once(cache, key, books) for cache in caches))


async def _once(cache: RedisCache, key: str, books: Books) -> None:
    token = os.urandom(16)
    began = time.monotonic()
    try:
        answer = await claim(cache, key, token)
    except CacheUnavailable:
        books.refused += 1
        return
    finally:
        books.slowest = max(books.slowest, time.monotonic() - began)
    if answer.won:
        books.winners[key].append(token)
        if await until_completed(cache, key, token):
            books.recorded[key] = token
