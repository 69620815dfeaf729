"""Clients of the fast path that send much at once, take nothing, or leave."""

import asyncio
import tracemalloc

import pytest

from testing.upstreams import Peer, Upstream, answering
from testing.waiting import until
from tests.app.fast_path import CREATED, Slow, gateway_at, in_flight_of, keyed, request, talking, tasks_made

MANY = 3000


@pytest.mark.parametrize("kind", ["passes through", "retry"])
async def test_thousands_of_requests_in_one_write_are_answered_in_their_order(kind: str) -> None:
    async def echoing(peer: Peer) -> None:
        while True:
            path = (await peer.request()).line.split(" ")[1].encode()
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(path), path))

    async with Upstream(echoing) as upstream, gateway_at(upstream.url, max_in_flight=10) as (talk, _gateway, _):
        few = 20
        for number in range(few):
            await talk.exchange(keyed(path=f"/{number}", key=str(number)))
        if kind == "retry":
            requests = [keyed(path=f"/{number % few}", key=str(number % few)) for number in range(MANY)]
        else:
            requests = [request("GET", f"/{number}") for number in range(MANY)]
        with tasks_made() as made:
            talk.writer.write(b"".join(requests))
            bodies = [(await talk.answer()).partition(b"\r\n\r\n")[2] for _ in range(MANY)]
        assert bodies == [b"/%d" % (number % few if kind == "retry" else number) for number in range(MANY)]
        assert set(made) <= {"InboundRequest._run"}  # while we took less than was written
        assert upstream.connections == 1


async def test_a_client_that_takes_nothing_is_not_answered_into_memory() -> None:
    large = b"HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n" + b"x" * 60_000
    async with Upstream(answering(large)) as upstream, gateway_at(upstream.url) as (talk, _gateway, port):
        await talk.exchange(keyed("k"))
        async with talking(port) as mute:
            mute.read_nothing()
            tracemalloc.start()
            try:
                mute.writer.write(keyed("k") * 2000)  # 120 MB of answers
                before = tracemalloc.get_traced_memory()[0]
                for _ in range(100):  # others are served meanwhile
                    assert (await talk.exchange(keyed("k"))).endswith(b"x" * 60_000)
                grown = tracemalloc.get_traced_memory()[0] - before
            finally:
                tracemalloc.stop()
            assert grown < 30_000_000  # most of it the requests themselves
            mute.read_nothing(nothing=False)
            for _ in range(2000):
                assert (await mute.answer()).endswith(b"x" * 60_000)


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("cache", ["memory", "redis"])
async def test_what_a_client_began_is_finished_and_recorded_without_it(cache: str, redis_url: str) -> None:
    slow = Slow()
    go_on = slow.go_on

    url = "memory://" if cache == "memory" else redis_url
    async with Upstream(slow) as upstream, gateway_at(upstream.url, url) as (talk, gateway, port):
        await talk.exchange(keyed())
        in_flight = in_flight_of(gateway)
        async with talking(port) as leaving:
            leaving.writer.write(keyed("k", path="/slow"))
            await upstream.received(2)
            leaving.leave()
            await asyncio.sleep(0.05)
        assert in_flight.slots.taken == 1
        with tasks_made() as made:
            go_on.set()
            await until(lambda: in_flight.slots.taken == 0, "the attempt's end")
        assert made == []
        assert b"idempotent-replayed: true" in await talk.exchange(keyed("k", path="/slow"))
        assert upstream.arrivals == 2


async def test_a_client_that_left_is_no_reason_to_go_on_with_what_passes_through() -> None:
    async def slow(peer: Peer) -> None:
        await peer.request()
        await peer.send(CREATED)
        await peer.request()
        await peer.hang()

    async with Upstream(slow) as upstream, gateway_at(upstream.url) as (talk, _, port):
        await talk.exchange(request("GET"))
        async with talking(port) as leaving:
            leaving.writer.write(request("GET"))
            await upstream.received(2)
            leaving.leave()
        await upstream.gone()
