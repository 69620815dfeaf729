"""The fast path while Redis fails: nothing is executed twice, nothing that was done is lost, and nobody waits for ever."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

import pytest

from oncegate.app.gateway.gateway import Gateway
from oncegate.cache.record import State
from oncegate.cache.transitions import Resolution, ResolveRequest
from oncegate.middleware.admission.in_flight import InFlight
from testing.inside import attempts_of, cache_of, redis_cache_of
from testing.servers import RedisServer
from testing.upstreams import Upstream
from testing.waiting import until
from tests.app.fast_path import CREATED, Slow, Talk, answered, door_of, gateway_at, in_flight_of, keyed, tasks_made
from tests.cache.inside import timed

# What goes by the fast path is to stay there until the test says otherwise.
pytestmark = pytest.mark.usefixtures("unhurried")

GIVEN_UP = 0.3
"""The cache's time-out, where one is to be over."""
SLOW = keyed("k", path="/slow")
REPLAYED = b"idempotent-replayed: true"


@asynccontextmanager
async def ready(
    redis: RedisServer, slow: Slow, **rules: object
) -> AsyncIterator[tuple[Talk, Gateway, InFlight, Upstream, int]]:
    """A gateway whose connections are warm."""
    async with (
        Upstream(slow) as upstream,
        gateway_at(upstream.url, redis.url, idempotency=rules) as (talk, gateway, port),
    ):
        assert b" 201 " in await talk.exchange(keyed("warm"))
        in_flight = in_flight_of(gateway)
        yield talk, gateway, in_flight, upstream, port
        await until(lambda: in_flight.slots.taken == len(attempts_of(in_flight)) == 0, "no slot is taken")


def kill_connections(redis: RedisServer) -> None:
    """Those of gateways, from the other side."""
    for line in redis.command("CLIENT", "LIST", "TYPE", "normal").decode().splitlines():
        if "cmd=client" not in line:
            redis.command("CLIENT", "KILL", "ID", line.split()[0].removeprefix("id="))


def impatient(gateway: Gateway) -> AbstractContextManager[None]:
    """What the cache is asked within is given up on after `GIVEN_UP`; else a machine that stands still is waited for."""
    return timed(redis_cache_of(gateway), GIVEN_UP)


async def test_scripts_that_are_gone_are_loaded_again(redis: RedisServer) -> None:
    async with ready(redis, slow := Slow()) as (talk, _, _, upstream, _):
        redis.command("SCRIPT", "FLUSH")
        assert b" 201 " in await talk.exchange(keyed("a"))
        redis.command("SCRIPT", "FLUSH")
        assert REPLAYED in await talk.exchange(keyed("a"))
        talk.writer.write(SLOW)
        await upstream.received(3)
        redis.command("SCRIPT", "FLUSH")
        slow.go_on.set()
        assert b" 201 " in await talk.answer()
        with tasks_made() as made:
            assert REPLAYED in await talk.exchange(SLOW)
        assert made == []
        assert upstream.arrivals == 3


@pytest.mark.parametrize("fault", ["killed", "stalled", "stopped", "stopped with the outcome on its way"])
async def test_an_outcome_that_cannot_be_recorded_at_once_is_recorded_later(redis: RedisServer, fault: str) -> None:
    async with ready(redis, slow := Slow()) as (talk, gateway, in_flight, upstream, _):
        talk.writer.write(SLOW)
        await upstream.received(2)
        if fault == "killed":
            kill_connections(redis)
        elif fault == "stopped":
            redis.stop()
        else:
            redis.pause()
        began = time.monotonic()
        with impatient(gateway):
            slow.go_on.set()
            first = await talk.answer()
        assert first.startswith(b"HTTP/1.1 201 ")
        if fault.startswith("stopped"):
            redis.stop()
            redis.start()
        elif fault == "stalled":
            assert time.monotonic() - began > GIVEN_UP - 0.02  # the record comes first, while there is hope
            redis.resume()
        await until(lambda: not in_flight.owed.by_key, "the outcome is recorded")
        replay = await answered(talk, SLOW)
        assert REPLAYED in replay
        assert replay.endswith(b"\r\n\r\n{}")
        assert upstream.arrivals == 2


@pytest.mark.parametrize("fault", ["stalled", "stopped"])
async def test_a_claim_that_is_not_answered_runs_nothing_and_is_given_back(redis: RedisServer, fault: str) -> None:
    async with ready(redis, Slow()) as (talk, gateway, _, upstream, _):
        if fault == "stalled":
            redis.pause()
        else:
            redis.stop()
        began = time.monotonic()
        with tasks_made() as made, impatient(gateway):
            assert b'"cache-unavailable"' in await talk.exchange(keyed("a"))
        if fault == "stalled":
            assert made == []
            assert time.monotonic() - began > GIVEN_UP - 0.02
            redis.resume()
        else:
            redis.start()
        assert upstream.arrivals == 1
        first = await answered(talk, keyed("a"))  # in flight until it is withdrawn
        assert first.startswith(b"HTTP/1.1 201 ")
        assert REPLAYED not in first
        assert upstream.requests[1].value("idempotency-attempt") == "1"
        assert REPLAYED in await talk.exchange(keyed("a"))
        assert upstream.arrivals == 2


async def test_a_takeover_that_is_not_answered_is_given_back_too(redis: RedisServer) -> None:
    failed = b"HTTP/1.1 500 Failed\r\ncontent-length: 0\r\n\r\n"
    async with ready(redis, slow := Slow(failed)) as (talk, gateway, _, upstream, _):
        slow.go_on.set()
        assert b" 500 " in await talk.exchange(SLOW)
        slow.answer = CREATED
        redis.pause()
        with impatient(gateway):
            assert b'"cache-unavailable"' in await talk.exchange(SLOW)
        redis.resume()
        assert b" 201 " in await answered(talk, SLOW)
        assert [request.value("idempotency-attempt") for request in upstream.requests] == ["1", "1", "2"]


@pytest.mark.parametrize("answers", ["before", "behind"])
async def test_a_claim_that_is_won_late_is_adopted_where_the_policy_is_to_run_anyway(
    redis: RedisServer, answers: str
) -> None:
    async with ready(redis, slow := Slow(), on_cache_down="fail_open") as (talk, gateway, in_flight, upstream, _):
        redis.pause()
        with impatient(gateway):
            talk.writer.write(SLOW)
            await upstream.received(2)  # the time-out is over
        if answers == "before":
            slow.go_on.set()
            first = await talk.answer()
            redis.resume()
        else:
            redis.resume()
            await until(lambda: all(attempt.number for attempt in attempts_of(in_flight).values()), "it was adopted")
            slow.go_on.set()
            first = await talk.answer()
        assert first.startswith(b"HTTP/1.1 201 ")
        await until(lambda: not in_flight.owed.by_key, "the outcome is recorded")
        assert REPLAYED in await answered(talk, SLOW)
        assert upstream.arrivals == 2


async def test_without_redis_it_runs_anyway_where_that_is_the_policy(redis: RedisServer) -> None:
    async with ready(redis, Slow(), on_cache_down="fail_open") as (talk, _, _, upstream, _):
        redis.stop()
        try:
            for _ in range(3):
                answer = await talk.exchange(keyed("a"))
                assert answer.startswith(b"HTTP/1.1 201 ")
                assert b"fwd=bypass" in answer
        finally:
            redis.start()
        assert upstream.arrivals == 4


async def test_what_ran_without_a_record_leaves_none(redis: RedisServer) -> None:
    async with ready(redis, slow := Slow(), on_cache_down="fail_open") as (talk, _, _, upstream, _):
        redis.command("CONFIG", "SET", "min-replicas-to-write", "1")
        try:
            talk.writer.write(SLOW)
            await upstream.received(2)
        finally:
            redis.command("CONFIG", "SET", "min-replicas-to-write", "0")
        slow.go_on.set()
        assert b"fwd=bypass" in await talk.answer()
        second = await talk.exchange(SLOW)
        assert b" 201 " in second
        assert REPLAYED not in second
        assert upstream.arrivals == 3


async def test_a_full_redis_takes_no_claim_and_every_outcome(redis: RedisServer) -> None:
    async with ready(redis, slow := Slow()) as (talk, _, _, upstream, _):
        talk.writer.write(SLOW)
        await upstream.received(2)
        redis.command("CONFIG", "SET", "maxmemory", "1")
        try:
            slow.go_on.set()
            assert b"fwd=miss; stored" in await talk.answer()
            with tasks_made() as made:
                assert REPLAYED in await talk.exchange(SLOW)
            assert made == []
            assert b'"cache-unavailable"' in await talk.exchange(keyed("b"))
        finally:
            redis.command("CONFIG", "SET", "maxmemory", "0")
        assert b" 201 " in await talk.exchange(keyed("b"))
        assert upstream.arrivals == 3


async def test_an_outcome_that_comes_behind_a_successor_is_refused(redis: RedisServer) -> None:
    async with ready(redis, slow := Slow()) as (talk, gateway, in_flight, upstream, port):
        talk.writer.write(SLOW)
        await upstream.received(2)
        (attempt,) = attempts_of(in_flight).values()
        done = await cache_of(gateway).resolve(attempt.key, ResolveRequest(State.FAILED, ttl_ms=60_000, force=True))
        assert done is Resolution.RESOLVED
        slow.answer = CREATED.replace(b"{}", b"[]")
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
        other_writer.write(SLOW)
        await upstream.received(3)
        slow.go_on.set()
        assert b" 201 " in await talk.answer()  # its client has what the upstream said; the record is another's
        assert b" 201 " in await Talk(other_reader, other_writer).answer()
        other_writer.close()
        found = await cache_of(gateway).get(attempt.key)
        assert found is not None
        assert (found.record.state, found.record.attempt) == (State.SUCCEEDED, 2)
        assert found.record.token != attempt.claim.token
        assert attempt.refused
        assert REPLAYED in await talk.exchange(SLOW)


async def test_a_large_outcome_goes_over_a_connection_of_its_own(redis: RedisServer) -> None:
    large = b"HTTP/1.1 200 OK\r\ncontent-length: 70000\r\n\r\n" + b"x" * 70_000
    async with ready(redis, slow := Slow(large)) as (talk, gateway, _, upstream, _):
        slow.go_on.set()
        session = redis_cache_of(gateway).client.routes[asyncio.get_running_loop()].holder(b"")
        assert session is not None
        assert session.bodies.pipeline is None
        assert (await talk.exchange(SLOW)).endswith(b"x" * 70_000)
        for _ in range(2):
            replay = await talk.exchange(SLOW)
            assert REPLAYED in replay
            assert replay.endswith(b"x" * 70_000)
        assert session.bodies.pipeline is not None
        assert upstream.arrivals == 2


async def test_a_record_that_cannot_be_read_is_told_of(redis: RedisServer) -> None:
    async with ready(redis, Slow()) as (talk, gateway, _, upstream, _):
        (key,) = (await cache_of(gateway).scan(in_namespace(gateway))).keys
        redis.command("SET", key, b"\xffnonsense", "PX", 60_000)
        with tasks_made() as made:
            answer = await talk.exchange(keyed("warm"))
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert b'"record-unreadable"' in answer
        assert made == []
        assert upstream.arrivals == 1


def in_namespace(gateway: Gateway) -> str:
    return door_of(gateway).namespace
