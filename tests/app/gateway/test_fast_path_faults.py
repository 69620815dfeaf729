"""What must do no harm, on the fast path or without it: an owner held up, faults of our own, a cache that is full or silent.

Rules of docs/contract.md: R3.13, R4.36.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from oncegate.app.gateway.gateway import Gateway
from oncegate.app.upstream.connection import UpstreamConnection
from oncegate.app.upstream.response import ResponseReader
from oncegate.cache.redis.connection.pipe import Bounds
from oncegate.cache.redis.store import RedisCache
from oncegate.middleware.admission.observe import Watch
from oncegate.middleware.outcome.errors import OutcomeUnknown
from oncegate.middleware.rules.policies import Policies
from testing.inside import attempts_of, in_use, redis_cache_of, watched_by
from testing.records import take_over
from testing.servers import RedisServer
from testing.upstreams import PATIENCE, Upstream, answering
from testing.waiting import until
from tests.app.fast_path import (
    CREATED,
    Slow,
    Talk,
    answered,
    door_of,
    forwarder_of,
    gateway_at,
    in_flight_of,
    keyed,
    request,
    talking,
)
from tests.cache.inside import set_bounds

# What goes by the fast path is to stay there until the test says otherwise.
pytestmark = pytest.mark.usefixtures("unhurried")

At = Callable[..., AbstractAsyncContextManager[tuple[Talk, Gateway, int]]]


@pytest.fixture(params=[True, False], ids=["fast path", "without"])
def at(request: pytest.FixtureRequest) -> At:
    """`gateway_at`, for each of the two ways that a request may go."""
    return partial(gateway_at, fast_path=request.param)


def gateway_failed(answer: bytes) -> dict[str, Any]:
    """The problem that answers a fault of ours."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 ")
    assert b"content-type: application/problem+json" in head
    problem: dict[str, Any] = json.loads(body)
    assert (problem["code"], problem["status"]) == ("gateway-failed", 500)
    return problem


async def succeed(url: str, namespace: str, known: set[str]) -> None:
    """What another gateway does about an attempt whose lease has lapsed."""
    cache = RedisCache.from_url(url, timeout=PATIENCE)

    async def new() -> set[str]:
        return set((await cache.scan(namespace)).keys) - known

    (key,) = await until(new)
    await take_over(cache, key, retention_ms=0)
    await cache.close()


async def test_an_owner_that_was_held_up_does_not_run_beside_its_successor(at: At, redis: RedisServer) -> None:
    namespace = uuid4().hex
    rules = {"lease": 0.6, "on_unknown": "retry"}
    async with (
        Upstream(answering(CREATED)) as upstream,
        at(upstream.url, redis.url, namespace=namespace, cache_timeout=0.2, idempotency=rules) as (
            talk,
            gateway,
            _,
        ),
    ):
        await answered(talk, keyed())
        redis_cache_of(
            gateway
        ).client.timeout = PATIENCE  # the lease is short, and allows of no such patience from the start
        known = set((await redis_cache_of(gateway).scan(namespace)).keys)
        in_flight = in_flight_of(gateway)
        redis.pause()
        talk.writer.write(keyed())
        await until(lambda: in_flight.slots.taken, "the claim is on its way")
        await asyncio.sleep(0.05)  # it is written by then
        redis.resume()
        successor = threading.Thread(target=asyncio.run, args=(succeed(redis.url, namespace, known),))
        successor.start()
        successor.join()  # and this process does nothing meanwhile
        answer = await talk.answer()
        assert b'"in-flight"' in answer
        assert upstream.arrivals == 1


def failing(*_: object) -> None:
    raise LookupError


FAILING = type("Failing", (Watch,), {name: failing for name in vars(Watch) if not name.startswith("_")})


EACH_KIND = pytest.mark.parametrize(
    "data", [request("GET"), request(), keyed("k")], ids=["passing", "keyless", "keyed"]
)


@pytest.mark.interpreted
@EACH_KIND
async def test_an_error_of_our_own_leaves_nobody_waiting_and_holds_nothing(
    at: At, data: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Upstream(answering(CREATED)) as upstream, at(upstream.url) as (talk, gateway, port):
        await talk.exchange(keyed())
        monkeypatch.setattr(ResponseReader, "take", failing)
        answer = await talk.exchange(data)
        monkeypatch.undo()
        problem = gateway_failed(answer)
        assert problem["retryable"] is data.startswith(b"GET ")
        assert ("record" in problem) is (b"idempotency-key" in data)
        assert "LookupError" in caplog.text
        assert "a request failed" in caplog.text
        in_flight, pool = in_flight_of(gateway), forwarder_of(gateway).upstream
        await until(lambda: in_flight.slots.taken == len(attempts_of(in_flight)) == in_use(pool) == 0, "all is free")
        assert watched_by(forwarder_of(gateway)) == 0
        async with talking(port) as other:
            again = await other.exchange(data)
        assert (b'"outcome-unknown"' if b"idempotency-key" in data else b" 201 ") in again


@pytest.mark.interpreted
async def test_what_fails_while_it_is_sent_is_unknown_and_never_sent_again(
    at: At, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = UpstreamConnection.send

    def sent_and_failed(*given: Any, **named: Any) -> None:
        send(*given, **named)
        raise LookupError

    async with Upstream(answering(CREATED)) as upstream, at(upstream.url, redis_url) as (talk, gateway, port):
        await talk.exchange(keyed())
        monkeypatch.setattr(UpstreamConnection, "send", sent_and_failed)
        assert gateway_failed(await talk.exchange(keyed("k")))["retryable"] is False
        monkeypatch.undo()
        in_flight = in_flight_of(gateway)
        await until(lambda: in_flight.slots.taken == len(attempts_of(in_flight)) == 0, "all is free")
        async with talking(port) as other:
            assert b'"outcome-unknown"' in await other.exchange(keyed("k"))
        assert upstream.arrivals == 2


@EACH_KIND
async def test_errors_of_who_watches_change_nothing(at: At, data: bytes, redis_url: str) -> None:
    async with Upstream(answering(CREATED)) as upstream, at(upstream.url, redis_url) as (talk, gateway, _):
        middleware = door_of(gateway)
        shared = middleware.admissions.in_flight.shared
        shared.watch, shared.is_watched = FAILING(), True
        middleware.observe = failing
        for _ in range(3):
            assert (await talk.exchange(data)).startswith(b"HTTP/1.1 201 ")
        assert middleware.admissions.in_flight.slots.taken == 0


async def test_a_memory_that_is_full_takes_no_new_key_and_still_replays(at: At) -> None:
    async with Upstream(answering(CREATED)) as upstream, at(upstream.url, memory_limit=4000) as (talk, _, _):
        first = await talk.exchange(keyed("k"))
        while first.startswith(b"HTTP/1.1 201 "):
            first = await talk.exchange(keyed())
        assert b'"cache-unavailable"' in first
        arrived = upstream.arrivals
        assert b"idempotent-replayed: true" in await talk.exchange(keyed("k"))
        assert b" 201 " in await talk.exchange(request())
        assert upstream.arrivals == arrived + 1


@pytest.mark.parametrize("pieces", [False, True])
async def test_the_last_byte_waits_for_the_record(at: At, redis: RedisServer, pieces: bool) -> None:
    chunked = b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n%b0\r\n\r\n" % (b"2\r\nab\r\n" * 20_000)
    async with (
        Upstream(slow := Slow(chunked if pieces else CREATED)) as upstream,
        at(upstream.url, redis.url) as (talk, gateway, port),
    ):
        await talk.exchange(keyed())
        talk.writer.write(keyed("k", path="/slow"))
        await upstream.received(2)
        redis.pause()
        slow.go_on.set()
        reading = asyncio.create_task(talk.answer())
        async with talking(port) as other:
            for _ in range(5):  # others pass, so that ours could have
                await other.exchange(request("GET"))
        done, _ = await asyncio.wait([reading], timeout=0.2)
        in_flight = in_flight_of(gateway)
        began = time.monotonic()
        left = await in_flight.drain(0.05)
        waited = time.monotonic() - began
        in_flight.closing = False
        redis.resume()
        assert left == 1
        assert waited > 0.04  # so would the process, until its time is over
        answer = await reading
        assert not done
        assert answer.endswith(b"0\r\n\r\n" if pieces else b"{}")
        assert b"idempotent-replayed: true" in await Talk(talk.reader, talk.writer).exchange(keyed("k", path="/slow"))


@pytest.mark.interpreted
@EACH_KIND
async def test_a_request_that_cannot_be_written_has_an_unknown_outcome(
    at: At, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaking(connection: UpstreamConnection, *_: bytes) -> None:
        connection.fail(OutcomeUnknown("the request could not be written"))  # as where uvloop raises

    async with Upstream(answering(CREATED)) as upstream, at(upstream.url) as (talk, _, _):
        await talk.exchange(keyed())
        monkeypatch.setattr(UpstreamConnection, "write", breaking)
        assert b'"upstream-failed"' in await talk.exchange(data)
        monkeypatch.undo()
        again = await talk.exchange(data)
        assert (b'"outcome-unknown"' if b"idempotency-key" in data else b" 201 ") in again


@pytest.mark.interpreted
@EACH_KIND
async def test_an_error_before_anything_was_decided_is_answered(
    at: At, data: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = data.replace(b"GET ", b"POST ")  # of other methods the rules are not looked for
    async with Upstream(answering(CREATED)) as upstream, at(upstream.url) as (talk, _, port):
        await talk.exchange(keyed())
        monkeypatch.setattr(Policies, "match", failing)
        gateway_failed(await talk.exchange(data))
        async with talking(port) as other:
            other.writer.write(data + data)  # the second one has no answer: the connection is closed
            assert (await other.reader.read()).count(b"HTTP/1.1 ") == 1
        monkeypatch.undo()
        assert "LookupError" in caplog.text
        assert upstream.arrivals == 1


async def test_a_redis_that_does_not_keep_up_takes_no_more_claims(at: At, redis: RedisServer) -> None:
    async with (
        Upstream(answering(CREATED)) as upstream,
        at(upstream.url, redis.url) as (talk, gateway, port),
        AsyncExitStack() as stack,
    ):
        await talk.exchange(keyed("k"))
        others = [await stack.enter_async_context(talking(port)) for _ in range(4)]
        pipeline = redis_cache_of(gateway).client.routes[asyncio.get_running_loop()].holder(b"").claims.pipeline  # type: ignore[union-attr]  # it is there by now
        assert pipeline is not None
        set_bounds(pipeline, Bounds(commands=2))
        redis.pause()
        exchanges = [asyncio.create_task(other.exchange(keyed())) for other in others]
        await until(lambda: sum(one.done() for one in exchanges) >= 2, "two are refused")
        refused, waiting = await asyncio.wait(exchanges, timeout=0.05)
        redis.resume()
        assert [b'"cache-unavailable"' in await one for one in refused] == [True] * 2
        assert [b" 201 " in await one for one in waiting] == [True] * 2
        assert b"idempotent-replayed: true" in await talk.exchange(keyed("k"))
        in_flight = in_flight_of(gateway)
        await until(lambda: in_flight.slots.taken == 0, "no slot is taken")
