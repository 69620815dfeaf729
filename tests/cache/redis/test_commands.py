"""What is sent to Redis, and what still works while Redis refuses writes.

Rules of docs/contract.md: R5.20, R5.28, R5.29, R5.31.
"""

import asyncio
import os
from importlib import resources
from typing import Any

import pytest

from oncegate.cache.callbacks import callbacks
from oncegate.cache.codec import decode, encode, encode_claim
from oncegate.cache.errors import CacheFull, CacheUnavailable, RecordUnreadable
from oncegate.cache.record import Claim, ClaimRequest, Record, State, StoredResponse, Trace
from oncegate.cache.redis.connection.send import LARGE_BYTES
from oncegate.cache.redis.store import RedisCache
from testing.servers import RedisServer
from testing.waiting import until
from tests.cache.inside import cached, session_of
from tests.cache.stores import SLACK_MS

PRINT = b"p" * 16
LEASE: dict[str, Any] = {"fingerprint": PRINT, "lease_ms": 30_000, "retention_ms": 86_400_000}
RESPONSE = StoredResponse(201, ((b"content-type", b"application/json"),), b"x" * 150, 1_700_000_000_000)


async def complete(cache: RedisCache, key: str, token: bytes, body: bytes | None = None) -> bool:
    response = RESPONSE if body is None else StoredResponse(200, (), body, 1)
    return await cache.complete(
        key,
        Record(
            token=token,
            fingerprint=PRINT,
            attempt=1,
            state=State.SUCCEEDED,
            response=response,
            trace=Trace("payments-7d4b9c6f5-x2x8z/4711", 1_700_000_000_000, 123),
        ),
        ttl_ms=86_400_000,
    )


async def test_a_first_request_costs_two_commands_and_a_replay_one(
    redis_server: RedisServer, redis_cache: RedisCache
) -> None:
    key, token = redis_server.key("cost"), os.urandom(16)
    await redis_cache.get(key)
    with redis_server.monitored() as first:
        await redis_cache.claim(key, ClaimRequest(token=token, **LEASE))
        await complete(redis_cache, key, token)
    with redis_server.monitored() as replay:
        assert not (await redis_cache.claim(key, ClaimRequest(token=os.urandom(16), **LEASE))).won
    assert [command.split()[0] for command in first] == ["EVALSHA", "EVALSHA"]
    assert [command.split()[0] for command in replay] == ["EVALSHA"]


async def test_a_record_of_300_bytes_takes_at_most_620(redis_server: RedisServer, redis_cache: RedisCache) -> None:
    key, token = f"{redis_server.key('size')}:{'d' * 40}:{'s' * 16}", os.urandom(16)
    await redis_cache.claim(key, ClaimRequest(token=token, **LEASE))
    await complete(redis_cache, key, token)
    assert 250 <= redis_server.command("STRLEN", key) <= 330
    assert redis_server.command("MEMORY", "USAGE", key) <= 620


async def test_the_record_of_a_300_byte_response_takes_at_most_620(
    redis_server: RedisServer, redis_cache: RedisCache
) -> None:
    """As `scripts/bench gateway` makes it, with an upstream that says what it is."""
    key, token = f"{redis_server.key('size')}"[:49].ljust(49, "."), os.urandom(16)
    lines = (b"server", b"nginx"), (b"content-type", b"application/json"), (b"content-length", b"300")
    response = StoredResponse(201, lines, b"x" * 300, 1_700_000_000_000)
    trace = Trace("vm/4711", 1_700_000_000_000, 123, method="POST", route="*")
    lasts: dict[str, Any] = {"fingerprint": PRINT, "attempt": 1, "state": State.SUCCEEDED}
    assert await redis_cache.complete(
        key, Record(token=token, response=response, trace=trace, **lasts), ttl_ms=86_400_000
    )
    assert redis_server.command("MEMORY", "USAGE", key) <= 620


async def test_flushed_scripts_are_loaded_again(redis_server: RedisServer, redis_cache: RedisCache) -> None:
    key, token = redis_server.key("flushed"), os.urandom(16)
    await redis_cache.get(key)
    for _ in range(2):
        redis_server.command("SCRIPT", "FLUSH")
        assert (await redis_cache.claim(key, ClaimRequest(token=token, **LEASE))).won
        assert await redis_cache.renew(key, token=token, lease_ms=60_000)
    redis_server.command("SCRIPT", "FLUSH")
    assert await complete(redis_cache, key, token)


async def test_a_large_outcome_goes_over_a_connection_of_its_own(
    redis_server: RedisServer, redis_cache: RedisCache
) -> None:
    key, token = redis_server.key("large"), os.urandom(16)
    await redis_cache.claim(key, ClaimRequest(token=token, **LEASE))
    before = redis_server.connections()
    assert await complete(redis_cache, key, token, os.urandom(LARGE_BYTES + 1))
    assert redis_server.connections() == before + 1
    held = await redis_cache.get(key)
    assert held is not None
    assert held.record.response is not None
    assert held.record.response.body is not None
    assert len(held.record.response.body) == LARGE_BYTES + 1


async def test_a_scan_never_blocks_redis_with_keys(redis_server: RedisServer, redis_cache: RedisCache) -> None:
    with redis_server.monitored() as seen:
        await redis_cache.scan("anything", "digest", limit=7)
    names = [command.split()[0] for command in seen]  # a new connection loads its scripts first
    assert [name for name in names if name in ("SCAN", "KEYS")] == ["SCAN"]
    assert seen[-1].endswith("COUNT 7")
    with pytest.raises(ValueError, match="cursor"):
        await redis_cache.scan("anything", cursor="0 MATCH *")


async def test_somebody_elses_key_does_not_end_a_scan(redis_server: RedisServer, redis_cache: RedisCache) -> None:
    redis_server.command("SET", b"odd:\xff\xfe", b"x", "EX", 600)
    redis_server.command("SET", "odd:k:s", b"x", "EX", 600)
    page = await redis_cache.scan("odd", limit=100_000)
    assert page.keys == ("odd:k:s",)


async def test_another_type_under_the_key_is_an_unreadable_record(
    redis_server: RedisServer, redis_cache: RedisCache
) -> None:
    key = redis_server.key("list")
    redis_server.command("RPUSH", key, "x")
    with pytest.raises(RecordUnreadable):
        await redis_cache.claim(key, ClaimRequest(token=os.urandom(16), **LEASE))
    with pytest.raises(RecordUnreadable):
        await redis_cache.get(key)
    with pytest.raises(RecordUnreadable):
        await complete(redis_cache, key, os.urandom(16))


@pytest.mark.parametrize(("left", "won"), [(60_000, 1), (60_000 + SLACK_MS, 0)])
def test_the_script_and_the_codec_agree_on_when_a_lease_is_over(redis_server: RedisServer, left: int, won: int) -> None:
    """Within one transaction next to no time passes, so that the very millisecond is nearly always hit."""
    key = redis_server.key("edge")
    held = encode(Record(State.IN_FLIGHT, b"a" * 16, PRINT, 1, retention_ms=60_000))
    fresh = encode_claim(ClaimRequest(b"b" * 16, PRINT, 0, 90_000))
    client = redis_server.client()
    digest = client.script_load(resources.files("oncegate.cache.redis").joinpath("lua", "claim.lua").read_text())
    with client.pipeline(transaction=True) as transaction:
        transaction.set(key, held, px=left)
        transaction.evalsha(digest, 1, key, fresh, 100_000, b"U")
        answer = transaction.execute()[1]
    assert answer[0] == won
    assert (decode(held, left).state is State.UNKNOWN) == bool(won)


@pytest.mark.parametrize("empty", [False, True])
async def test_a_record_without_expiry_is_damaged_and_never_taken_over(
    redis_server: RedisServer, redis_cache: RedisCache, empty: bool
) -> None:
    key, token = redis_server.key("persistent"), os.urandom(16)
    await redis_cache.claim(key, ClaimRequest(token=token, **LEASE))
    redis_server.command("PERSIST", key)
    if empty:
        redis_server.command("SET", key, b"")
    before = redis_server.command("GET", key)
    with pytest.raises(RecordUnreadable):
        await redis_cache.claim(
            key, ClaimRequest(token=os.urandom(16), takeover=frozenset({State.UNKNOWN, State.FAILED}), **LEASE)
        )
    with pytest.raises(RecordUnreadable):
        await redis_cache.get(key)
    assert not await complete(redis_cache, key, os.urandom(16))
    assert redis_server.command("GET", key) == before


async def test_on_a_full_server_new_keys_are_refused_and_all_else_goes_on() -> None:
    async with cached(config={"maxmemory-policy": "noeviction"}) as (server, cache):
        done, running, undone = (os.urandom(16) for _ in range(3))
        await cache.claim("done", ClaimRequest(token=done, **LEASE))
        await complete(cache, "done", done)
        await cache.claim("running", ClaimRequest(token=running, **LEASE))
        await cache.claim("undone", ClaimRequest(token=undone, **LEASE))
        server.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(CacheFull, match="OOM"):
            await cache.claim("new", ClaimRequest(token=os.urandom(16), **LEASE))
        assert (await cache.claim("done", ClaimRequest(token=os.urandom(16), **LEASE))).record.response == RESPONSE
        assert await cache.get("done") is not None
        assert await cache.renew("running", token=running, lease_ms=60_000)
        assert await complete(cache, "running", running, b"y" * 100_000)
        assert await cache.release("undone", token=undone)
        server.command("CONFIG", "SET", "maxmemory", "0")
        assert (await cache.claim("new", ClaimRequest(token=os.urandom(16), **LEASE))).won


async def test_a_cache_that_may_go_past_maxmemory_claims_there_by_either_call() -> None:
    async with cached(config={"maxmemory-policy": "noeviction"}) as (server, cache):
        cache.past_maxmemory = True
        await cache.check()
        server.command("CONFIG", "SET", "maxmemory", "1")
        assert (await cache.claim("coroutine", ClaimRequest(token=os.urandom(16), **LEASE))).won
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        request = ClaimRequest(token=os.urandom(16), **LEASE)
        callbacks(cache).start_claim("callback", request, loop=loop, adopt=None, then=answer.set_result)
        found = await answer
        assert isinstance(found, Claim), found
        assert found.won


async def test_replays_go_on_while_redis_lacks_replicas() -> None:
    async with cached() as (server, cache):
        done, running = os.urandom(16), os.urandom(16)
        await cache.claim("done", ClaimRequest(token=done, **LEASE))
        await complete(cache, "done", done)
        await cache.claim("running", ClaimRequest(token=running, **LEASE))
        server.command("CONFIG", "SET", "min-replicas-to-write", "1")
        assert (await cache.claim("done", ClaimRequest(token=os.urandom(16), **LEASE))).record.response == RESPONSE
        assert await cache.get("done") is not None
        with pytest.raises(CacheUnavailable, match="NOREPLICAS"):
            await cache.claim("new", ClaimRequest(token=os.urandom(16), **LEASE))
        with pytest.raises(CacheUnavailable, match="NOREPLICAS"):
            await complete(cache, "running", running)


async def test_replays_go_on_while_redis_can_not_save() -> None:
    async with cached(config={"dbfilename": "dump.rdb", "save": "3600 1000000"}) as (server, cache):
        done = os.urandom(16)
        await cache.claim("done", ClaimRequest(token=done, **LEASE))
        await complete(cache, "done", done)
        server.break_saving()
        await until(lambda: server.command("INFO", "persistence")["rdb_last_bgsave_status"] == "err")
        assert (await cache.claim("done", ClaimRequest(token=os.urandom(16), **LEASE))).record.response == RESPONSE
        with pytest.raises(CacheUnavailable, match="MISCONF"):
            await cache.claim("new", ClaimRequest(token=os.urandom(16), **LEASE))


async def test_a_replica_refuses_claims_and_is_looked_up_anew() -> None:
    async with cached() as (server, cache):
        await cache.get("nothing")
        session = session_of(cache)
        pipeline = session.claims.pipeline
        server.command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(CacheUnavailable, match=r"READONLY|MASTERDOWN"):
            await cache.claim("new", ClaimRequest(token=os.urandom(16), **LEASE))
        assert session.claims.pipeline is not pipeline
        assert "this Redis is a replica: it takes no claims; use the primary's address" in await cache.check()
        server.command("REPLICAOF", "NO", "ONE")
        assert (await cache.claim("new", ClaimRequest(token=os.urandom(16), **LEASE))).won
