"""Encryption at rest: what is kept can be read by its keys alone, where it was written. Rule of docs/contract.md: R6.23."""

import base64
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
import redis.asyncio

from oncegate.cache import codec
from oncegate.cache.encryption import Encryption
from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.open import open_cache
from oncegate.cache.record import ClaimRequest, Record, State, StoredResponse
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.transitions import ResolveRequest
from testing.records import read

OLD, NEW = (f"{name}:{base64.b64encode(os.urandom(32)).decode()}" for name in ("2025", "2026"))
RESPONSE = StoredResponse(201, ((b"x-card", b"4242 \xe9"),), b"secret body", 5)
TOKEN, PRINT = bytes(range(16)), bytes(range(16, 32))
OUTCOME = Record(State.SUCCEEDED, TOKEN, PRINT, 1, RESPONSE)
ADDRESS = b"n:k:s"


@pytest.fixture
def key() -> str:
    return f"{uuid4().hex}:k:s"


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[Any]:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        yield client


async def completed(cache: RedisCache, key: str, outcome: Record = OUTCOME) -> None:
    await cache.claim(key, ClaimRequest(outcome.token, outcome.fingerprint, 60_000, 1000))
    assert await cache.complete(key, outcome, ttl_ms=60_000)


def cache_of(url: str, *keys: str) -> RedisCache:
    return RedisCache.from_url(url, timeout=30, encryption_keys=keys)


async def test_nothing_of_a_response_is_in_redis_and_all_of_it_comes_back(redis_url: str, raw: Any, key: str) -> None:
    cache = cache_of(redis_url, NEW)
    await completed(cache, key)
    held = await raw.get(key)
    for part in (b"4242", b"x-card", b"secret", b'"s":201'):
        assert part not in held
    again = ClaimRequest(os.urandom(16), PRINT, 60_000, 1000)
    for found in (await read(cache, key), await cache.claim(key, again)):
        assert found.record.response == RESPONSE
    peeked = await cache.peek(key)
    assert peeked
    assert peeked.record.response
    assert peeked.record.response[:2] == RESPONSE[:2]
    await cache.close()


async def test_a_response_without_a_body_and_an_operators_are_encrypted_too(redis_url: str, raw: Any, key: str) -> None:
    cache = cache_of(redis_url, NEW)
    await completed(cache, key, Record(State.UNKNOWN, TOKEN, PRINT, 1, RESPONSE._replace(body=None)))
    assert b"4242" not in await raw.get(key)
    assert (await read(cache, key)).record.response == RESPONSE._replace(body=None)
    await cache.resolve(key, ResolveRequest(State.SUCCEEDED, ttl_ms=60_000, response=RESPONSE))
    assert b"4242" not in await raw.get(key)
    assert (await read(cache, key)).record.response == RESPONSE
    await cache.close()


@pytest.mark.parametrize("keys", [(), (OLD,)], ids=["none", "another"])
async def test_what_can_t_be_opened_is_unreadable_and_never_a_miss(redis_url: str, key: str, keys: tuple[str]) -> None:
    writing, reading = cache_of(redis_url, NEW), cache_of(redis_url, *keys)
    await completed(writing, key)
    again = ClaimRequest(os.urandom(16), PRINT, 60_000, 1000, frozenset({State.FAILED, State.UNKNOWN}))
    reads: list[Callable[[], Awaitable[object]]] = [
        lambda: reading.get(key),
        lambda: reading.peek(key),
        lambda: reading.claim(key, again),
    ]
    for operation in reads:
        with pytest.raises(RecordUnreadable, match="encrypt"):
            await operation()
    await writing.close()
    await reading.close()


async def test_a_record_that_was_moved_to_another_key_doesn_t_open(redis_url: str, raw: Any, key: str) -> None:
    cache, elsewhere = cache_of(redis_url, NEW), f"{key}x"
    await completed(cache, key)
    await raw.copy(key, elsewhere)
    await raw.pexpire(elsewhere, 60_000)
    with pytest.raises(RecordUnreadable):
        await cache.get(elsewhere)
    with pytest.raises(RecordUnreadable):
        await cache.peek(elsewhere)
    await cache.close()


def test_head_and_body_are_of_one_attempt() -> None:
    """Who can write to Redis can't put one attempt's status before another's body, even where the seal is made anew."""
    encryption = Encryption([NEW])
    encrypted = encryption.encrypt(b"body", b"body", ADDRESS, TOKEN)
    assert encryption.decrypt(encrypted, b"body", ADDRESS, TOKEN) == b"body"
    for other in (
        (b"head", ADDRESS, TOKEN),
        (b"body", b"n:k:t", TOKEN),
        (b"body", ADDRESS, PRINT),
        (b"bodyn", b":k:s"),
    ):
        with pytest.raises(RecordUnreadable):
            encryption.decrypt(encrypted, *other)


def test_no_nonce_comes_twice() -> None:
    """Two messages under one nonce give their difference away, and with it the key of all tags."""
    encryption, nonces = Encryption([NEW]), set()
    for _ in range(2000):
        data = codec.encode(OUTCOME, encryption, ADDRESS)
        head = base64.b64decode(data.partition(b'"e":"')[2].partition(b'"')[0])
        body = data[-len(b"secret body") - 16 - 12 :]
        nonces |= {head[6:18], body[:12]}
    assert len(nonces) == 4000


@pytest.mark.parametrize("at", [0, 1, 2, 8, 20, -1])
def test_any_change_is_found(at: int) -> None:
    encryption = Encryption([NEW])
    damaged = bytearray(encryption.encrypt(b"body", ADDRESS))
    damaged[at] ^= 1
    for wrong in (bytes(damaged), bytes(damaged)[:10], b"", b"\1"):
        with pytest.raises(RecordUnreadable):
            encryption.decrypt(wrong, ADDRESS)


async def test_keys_are_replaced_without_a_record_that_can_t_be_read(redis_url: str, key: str) -> None:
    """Processes of neighbouring steps read each other's records: introduced, then replaced."""
    steps = [(), ("none", OLD), (OLD,), (OLD, NEW), (NEW, OLD)]
    caches = [cache_of(redis_url, *keys) for keys in steps]
    for number, cache in enumerate(caches):
        await completed(cache, f"{key}{number}")
        for neighbour in caches[max(0, number - 1) : number + 2]:
            assert (await read(neighbour, f"{key}{number}")).record.response == RESPONSE
    for cache in caches:
        await cache.close()


def test_versions_that_can_t_decrypt_say_that_they_can_t_read_it() -> None:
    """They look for members that are not there, and replay no ciphertext."""
    data = codec.encode(OUTCOME, Encryption([NEW]), ADDRESS)
    assert b'"h":' not in data
    assert b'"s":' not in data


@pytest.mark.parametrize(
    "keys", [["none"], ["x"], ["a:AAAA"], [NEW, NEW], [f"a b:{NEW[5:]}"], [NEW, "none"], [f"{NEW}!"]]
)
def test_keys_that_are_none_are_refused_and_not_quoted(keys: list[str]) -> None:
    with pytest.raises(ValueError, match="encryption_keys") as refusal:
        open_cache("redis://127.0.0.1:1", encryption_keys=keys)
    assert NEW[5:20] not in str(refusal.value)


def test_keys_are_a_list() -> None:
    with pytest.raises(TypeError, match="encryption_keys"):
        open_cache("redis://127.0.0.1:1", encryption_keys=NEW)
