"""The cache goes away between an attempt's steps; a real redis-server that is paused, stopped and started again.

Rules of docs/contract.md: R5.26, R5.29.
"""

import os
from collections.abc import AsyncIterator

import pytest

from oncegate.cache.record import ClaimRequest, State
from oncegate.cache.redis.store import RedisCache
from testing.servers import RedisServer
from testing.waiting import until
from tests.cache.inside import timed
from tests.middleware.door import PATIENCE, Answering, Door


@pytest.fixture
async def cache(server: RedisServer) -> AsyncIterator[RedisCache]:
    cache = RedisCache.from_url(server.url, timeout=PATIENCE)
    yield cache
    await cache.close()


async def test_outcome_that_can_t_be_recorded_at_once_is_recorded_later(server: RedisServer, cache: RedisCache) -> None:
    """The client gets its response all the same, and the retry its replay: never unknown, never executed again."""
    there = Door(app := Answering(201, held=True), cache, "n")
    call = there.begin()
    await app.arrivals()
    server.stop()
    with timed(cache):
        app.release()
        assert ((await call.answered()).status, call.body) == (201, b"answer 1")
    assert (await there.send()).code == "cache-unavailable"
    server.start()
    assert await there.middleware.drain(PATIENCE) == 0
    assert (await there.send()).replayed
    assert app.calls == 1


async def test_outcome_whose_record_is_anothers_by_the_time_it_can_be_recorded_is_given_up(
    server: RedisServer, cache: RedisCache, caplog: pytest.LogCaptureFixture
) -> None:
    there = Door(app := Answering(201, held=True), cache, "n")
    successor = ClaimRequest(os.urandom(16), b"p" * 16, 60_000, 60_000)
    await cache.claim("another", successor)
    call = there.begin()
    await app.arrivals()
    server.command("ACL", "SETUSER", "default", "-evalsha")
    with timed(cache):
        app.release()
        await call.answered()
    server.command("COPY", "another", there.look_up_key(), "REPLACE")
    server.command("ACL", "SETUSER", "default", "+evalsha")
    assert await there.middleware.drain(PATIENCE) == 0
    assert (await there.record()).token == successor.token
    assert caplog.text.count("its outcome is not recorded") == 1


async def test_outcome_is_recorded_although_the_record_was_lost_meanwhile(
    server: RedisServer, cache: RedisCache
) -> None:
    there = Door(app := Answering(201, held=True), cache, "n")
    call = there.begin()
    await app.arrivals()
    server.command("FLUSHALL")
    app.release()
    await call.answered()
    assert (await there.send()).replayed
    assert app.calls == 1


async def test_lease_that_could_not_be_renewed_for_a_while_is_renewed_again(
    server: RedisServer, cache: RedisCache
) -> None:
    there = Door(app := Answering(201, held=True), cache, "n", lease=3, ttl=60)
    call = there.begin()
    await app.arrivals()
    server.stop()
    attempt = next(iter(there.middleware.admissions.in_flight._attempts.values()))
    before = attempt.lease.held_since
    server.start()
    await until(lambda: attempt.lease.held_since > before)
    await there.becomes(State.IN_FLIGHT)
    app.release()
    assert (await call.answered()).status == 201
    assert (await there.send()).replayed


async def test_claim_whose_answer_is_late_is_withdrawn(server: RedisServer, cache: RedisCache) -> None:
    there = Door(app := Answering(201), cache, "n")
    await there.send(key="warm-up")
    server.pause()
    with timed(cache):
        assert (await there.send()).code == "cache-unavailable"
    server.resume()
    await there.becomes(State.ABSENT)
    assert (await there.send()).status == 201
    assert app.lines("idempotency-attempt") == ["1"]
    assert app.calls == 2


async def test_claim_whose_answer_is_late_is_adopted_under_fail_open(server: RedisServer, cache: RedisCache) -> None:
    """The command ran without a record; once the cache answers, there is one, so that its retry meets the result."""
    there = Door(app := Answering(201, held=True), cache, "n", on_cache_down="fail_open")
    app.release()
    await there.send(key="warm-up")
    server.pause()
    with timed(cache):
        call = await there.send()
    assert (call.status, call.value("cache-status")) == (201, "oncegate; fwd=bypass")
    assert app.lines("idempotency-attempt") == []
    server.resume()
    await there.becomes(State.SUCCEEDED)
    retry = await there.send()
    assert (retry.body, retry.replayed) == (b"answer 2", True)
    assert app.calls == 2


async def test_takeover_that_is_adopted_late_keeps_its_number(server: RedisServer, cache: RedisCache) -> None:
    there = Door(Answering(500, 500, 201), cache, "n", on_cache_down="fail_open")
    await there.send(key="warm-up")
    await there.send()
    server.pause()
    with timed(cache):
        assert (await there.send()).status == 201
    server.resume()
    await there.becomes(State.SUCCEEDED)
    record = await there.record()
    assert record.attempt == 2


async def test_outcome_of_a_poisoned_record_is_given_up(server: RedisServer, cache: RedisCache) -> None:
    """Under the key is no string any more: no number of tries would record anything, so the stop must not wait for it."""
    there = Door(app := Answering(201, held=True), cache, "n")
    call = there.begin()
    await app.arrivals()
    server.command("DEL", there.look_up_key())
    server.command("LPUSH", there.look_up_key(), "x")
    app.release()
    assert (await call.answered()).status == 201
    assert await there.middleware.drain(PATIENCE) == 0
    assert not there.middleware.admissions.in_flight.shared.background


async def test_replays_go_on_while_redis_refuses_writes(server: RedisServer, cache: RedisCache) -> None:
    there = Door(app := Answering(201), cache, "n")
    await there.send()
    server.command("CONFIG", "SET", "min-replicas-to-write", "1")
    assert (await there.send()).replayed
    refused = await there.send(key="k-2")
    assert (refused.code, app.calls) == ("cache-unavailable", 1)
