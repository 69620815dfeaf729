"""What begins on the fast path and lasts: the same time limits, leases and outcomes as for any other request."""

import asyncio
import re
import time
from typing import Self

import pytest

from oncegate.cache.redis.store import RedisCache
from testing.upstreams import PATIENCE, Peer, Upstream
from tests.app.fast_path import CREATED, Slow, answered, fast_path_of, gateway_at, keyed, request, tasks_made

EARLY = 0.02
"""Seconds by which clocks and timers may be off."""
LATE = 0.9
"""Seconds; what is watched on the fast path for a second would be a second late if that were not counted."""


class Elapsed:
    """Seconds on the clock, and those of them in which this process ran: one that stands still is not late for that."""

    _PAUSE = 0.01

    async def __aenter__(self) -> Self:
        self._ran, self._began = 0.0, time.monotonic()
        self._counting = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._counting.cancel()

    async def _count(self) -> None:
        last = self._began
        while True:
            await asyncio.sleep(self._PAUSE)
            last, before = time.monotonic(), last
            self._ran += min(last - before, 3 * self._PAUSE)

    def is_about(self, seconds: float) -> bool:
        return time.monotonic() - self._began > seconds - EARLY and self._ran < seconds + LATE


@pytest.mark.parametrize("limit", [0.3, 1.3])
async def test_what_passes_through_has_the_whole_response_timeout(limit: float) -> None:
    async with Upstream(slow := Slow()) as upstream:
        async with gateway_at(upstream.url, idempotency={"response_timeout": limit}) as (talk, _, _):
            for warm, data in ((request("GET"), request("GET", "/slow")), (request(), request(path="/slow"))):
                await talk.exchange(warm)
                async with Elapsed() as elapsed:
                    answer = await talk.exchange(data)
                    assert elapsed.is_about(limit)
                assert answer.startswith(b"HTTP/1.1 504 ")
                assert b'"upstream-timeout"' in answer
        assert not slow.go_on.is_set()


@pytest.mark.parametrize("limit", [0.3, 1.3])
async def test_an_attempt_has_the_whole_response_timeout_and_goes_on(redis_url: str, limit: float) -> None:
    async with Upstream(slow := Slow()) as upstream:
        async with gateway_at(upstream.url, redis_url, idempotency={"response_timeout": limit}) as (talk, _, _):
            await talk.exchange(keyed())
            async with Elapsed() as elapsed:
                answer = await talk.exchange(keyed("k", path="/slow"))
                assert elapsed.is_about(limit)
            assert answer.startswith(b"HTTP/1.1 504 ")
            assert b'"upstream-timeout"' in answer
            assert b'"in-flight"' in await talk.exchange(keyed("k", path="/slow"))
            slow.go_on.set()
            answer = await talk.exchange(keyed("k", path="/slow", prefer="wait=20"))
            assert answer.startswith(b"HTTP/1.1 201 ")
            assert b"idempotent-replayed: true" in answer
        assert upstream.arrivals == 2


@pytest.mark.parametrize("limit", [0.3, 1.3])
async def test_an_attempt_has_the_whole_attempt_timeout(redis_url: str, limit: float) -> None:
    rules = {"attempt_timeout": limit}
    async with Upstream(Slow()) as upstream, gateway_at(upstream.url, redis_url, idempotency=rules) as (talk, _, _):
        await talk.exchange(keyed())
        async with Elapsed() as elapsed:
            answer = await talk.exchange(keyed("k", path="/slow"))
            assert elapsed.is_about(limit)
        assert b'"upstream-failed"' in answer
        assert b'"outcome-unknown"' in await talk.exchange(keyed("k", path="/slow"))


async def test_a_lease_is_renewed_for_as_long_as_it_lasts(redis_url: str) -> None:
    rules = {"lease": 6, "on_unknown": "retry"}  # a machine that stands still for half of it loses nothing
    async with Upstream(slow := Slow()) as upstream:
        async with gateway_at(upstream.url, redis_url, cache_timeout=2, idempotency=rules) as (talk, gateway, port):
            await answered(talk, keyed())
            assert isinstance(gateway._cache, RedisCache)
            gateway._cache.client.timeout = PATIENCE  # the lease allows of no such patience from the start
            talk.writer.write(keyed("k", path="/slow"))
            await upstream.received(2)
            other = await asyncio.open_connection("127.0.0.1", port)
            until = time.monotonic() + 7
            while time.monotonic() < until:
                other[1].write(keyed("k", path="/slow"))
                head = await other[0].readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 409 "), head
                length = re.search(rb"content-length: (\d+)", head)
                assert length is not None
                await other[0].readexactly(int(length[1]))
                await asyncio.sleep(0.05)
            other[1].close()
            slow.go_on.set()
            assert b" 201 " in await talk.answer()
        assert upstream.arrivals == 2


# -- in more than one read --------------------------------------------------------------------------------------------


class InTwo:
    """Answers the second request in two parts, the second one when it is told to go on."""

    def __init__(self, first: bytes, second: bytes) -> None:
        self.parts = first, second
        self.go_on = asyncio.Event()

    async def __call__(self, peer: Peer) -> None:
        await peer.request()
        await peer.send(CREATED)
        await peer.request()
        await peer.send(self.parts[0])
        await self.go_on.wait()
        if self.parts[1]:
            await peer.send(self.parts[1])
        else:
            peer.reset()


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"
EACH_KIND = pytest.mark.parametrize("data", [request("GET"), request(), keyed()], ids=["passing", "keyless", "keyed"])


@pytest.mark.usefixtures("unhurried")
@EACH_KIND
async def test_a_small_body_is_waited_for_without_a_task(data: bytes) -> None:
    behave = InTwo(HEAD % 4 + b"on", b"ce")
    async with Upstream(behave) as upstream, gateway_at(upstream.url) as (talk, _, _):
        await talk.exchange(keyed())
        with tasks_made() as made:
            talk.writer.write(data)
            await upstream.received(2)
            await asyncio.sleep(0.05)
            assert talk.reader._buffer == b""  # type: ignore[attr-defined]  # asyncio tells it in no other way
            behave.go_on.set()
            assert (await talk.answer()).endswith(b"\r\n\r\nonce")
        assert made == []


@pytest.mark.usefixtures("unhurried")
@EACH_KIND
@pytest.mark.parametrize("size", [65_536, 65_537])
async def test_a_large_body_is_not_waited_for(data: bytes, size: int) -> None:
    behave = InTwo(HEAD % size + b"x", b"x" * (size - 1))
    async with Upstream(behave) as upstream, gateway_at(upstream.url) as (talk, _, _):
        await talk.exchange(keyed())
        with tasks_made() as made:
            talk.writer.write(data)
            await upstream.received(2)
            if size > 65_536:
                async with asyncio.timeout(PATIENCE):
                    head = await talk.reader.readuntil(b"\r\n\r\nx")
                behave.go_on.set()
                await talk.reader.readexactly(size - 1)
                assert head.startswith(b"HTTP/1.1 200 ")
                assert made[0] == "InboundRequest._run"
            else:
                behave.go_on.set()
                assert len(await talk.answer()) > size
                assert made == []


@pytest.mark.usefixtures("unhurried")
@EACH_KIND
@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 2", HEAD % 4 + b"on", HEAD % 70_000 + b"x"])
async def test_a_connection_that_breaks_is_told_of(data: bytes, first: bytes) -> None:
    again = data.startswith(b"GET") and not first  # over a new connection
    behave = InTwo(first, b"")
    async with Upstream(behave) as upstream, gateway_at(upstream.url) as (talk, gateway, port):
        await talk.exchange(keyed())
        talk.writer.write(data)
        await upstream.received(2)
        if b"70000" in first:
            async with asyncio.timeout(PATIENCE):
                await talk.reader.readuntil(b"\r\n\r\nx")
            behave.go_on.set()
            assert await talk.reader.read() == b""  # closed before its end, so that it can be told from a whole one
        else:
            behave.go_on.set()
            answer = await talk.answer()
            if again:
                assert answer.startswith(b"HTTP/1.1 201 ")
            else:
                assert b'"upstream-failed"' in answer
        if b"idempotency-key" in data:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            assert b'"outcome-unknown"' in await reader.readuntil(b"}")
            writer.close()
        assert upstream.arrivals == 2 + again
        assert fast_path_of(gateway)._forwarder.upstream.idle == again


@EACH_KIND
async def test_an_idle_connection_that_the_upstream_has_closed_costs_nothing(data: bytes) -> None:
    async def brief(peer: Peer) -> None:
        await peer.request()
        await peer.send(CREATED)
        if peer.number:
            await peer.request()
        peer.end_silently()

    async with Upstream(brief) as upstream, gateway_at(upstream.url) as (talk, _, _):
        await talk.exchange(keyed())
        answer = await talk.exchange(data)
        assert answer.startswith(b"HTTP/1.1 201 ")
        assert upstream.arrivals == 2
        assert upstream.connections == 2
