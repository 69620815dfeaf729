"""The fast path is how requests go that end at once, and they cost no task; whatever lasts, or is unusual, leaves it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from testing.inside import fast_path_of, take_for_operators_port
from testing.servers import RedisServer
from testing.upstreams import PATIENCE, Peer, Upstream, answering
from testing.waiting import until
from tests.app.fast_path import CREATED, Slow, Talk, gateway_at, keyed, request, talking, tasks_made

# What goes by the fast path is to stay there until the test says otherwise.
pytestmark = [pytest.mark.usefixtures("unhurried"), pytest.mark.both_loops]

CACHES = ["memory", "redis"]


@pytest.fixture(params=CACHES)
def cache(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory://"
    url: str = request.getfixturevalue("redis_url")
    return url


async def warm(talk: Talk) -> None:
    """Whatever the first request opens is open."""
    for data in (keyed("warm"), keyed("warm")):
        assert b" 201 " in (await talk.exchange(data)).split(b"\r\n")[0]


USUAL = {
    "passes through": (request("GET"), 201),
    "passes through with a body": (request("PUT"), 201),
    "has no key": (request(), 201),
    "first": (keyed(), 201),
    "retry": (keyed("warm"), 201),
    "with a string for a key": (keyed('"warm"'), 201),
    "duplicate": (keyed("warm", idempotency_raise_on_duplicate="?1"), 409),
    "another payload": (keyed("warm", b"other"), 422),
    "no key at all": (keyed("a b"), 400),
    "first, would wait": (keyed(prefer="wait=5"), 201),
    "retry, would wait": (keyed("warm", prefer="wait=5"), 201),
    "says close": (keyed(connection="close"), 201),
}


@pytest.mark.parametrize("name", USUAL)
async def test_a_request_that_ends_at_once_costs_no_task(cache: str, name: str) -> None:
    data, status = USUAL[name]
    async with Upstream(answering(CREATED)) as upstream, gateway_at(upstream.url, cache) as (talk, _, _):
        await warm(talk)
        with tasks_made() as made:
            answer = await talk.exchange(data)
        assert int(answer.split(b" ")[1]) == status
        assert made == []


async def test_pipelined_requests_cost_none_either(cache: str) -> None:
    data = [keyed(), request("GET"), keyed("warm"), keyed(), request()]
    async with Upstream(answering(CREATED)) as upstream, gateway_at(upstream.url, cache) as (talk, _, _):
        await warm(talk)
        with tasks_made() as made:
            talk.writer.write(b"".join(data))
            answers = [await talk.answer() for _ in data]
        assert [b"idempotent-replayed" in answer for answer in answers] == [False, False, True, False, False]
        assert made == []


async def test_a_request_in_flight_costs_the_others_none(cache: str) -> None:
    async with Upstream(slow := Slow()) as upstream, gateway_at(upstream.url, cache) as (talk, _, port):
        await warm(talk)
        async with talking(port) as other:
            with tasks_made() as made:
                talk.writer.write(keyed("a", path="/slow"))
                await upstream.received(2)
                outstanding = await other.exchange(keyed("a", path="/slow"))
                assert outstanding.startswith(b"HTTP/1.1 409 ")
                assert b"in-flight" in outstanding
                slow.go_on.set()
                assert (await talk.answer()).startswith(b"HTTP/1.1 201 ")
            assert made == []


# -- what leaves it ---------------------------------------------------------------------------------------------------

Late = Callable[[Peer], Awaitable[None]]


async def until_close(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\n\r\n{}")
    peer.writer.close()


async def too_much(peer: Peer) -> None:
    await peer.send(CREATED + b"more")


async def nothing(peer: Peer) -> None:
    peer.reset()


async def large(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 600000\r\n\r\n" + b"x" * 600_000)


UNUSUAL: dict[
    str, tuple[Late, int, int]
] = {  # what the upstream does, the statuses of what passes and what is enforced
    "until the connection's end": (until_close, 200, 200),
    "more than was announced": (too_much, 502, 502),
    "none": (nothing, 201, 502),  # what passes by an idempotent method is sent again, over a new connection
    "large": (large, 200, 200),
}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("name", UNUSUAL)
async def test_a_response_that_is_unusual_gets_a_task(cache: str, name: str, method: str) -> None:
    behave, passed, enforced = UNUSUAL[name]

    async def unusual(peer: Peer) -> None:
        await peer.request()
        await peer.send(CREATED)
        await peer.request()
        await behave(peer)

    rules = {
        "lease": 1800,
        "response_timeout": 600,
    }  # a task when it is heard: the fast path would look after it too late
    async with Upstream(unusual) as upstream, gateway_at(upstream.url, cache, idempotency=rules) as (talk, _, _):
        assert (await talk.exchange(keyed("warm"))).startswith(b"HTTP/1.1 201 ")
        with tasks_made() as made:
            answer = await talk.exchange(request("GET") if method == "GET" else keyed())
        assert int(answer.split(b" ")[1]) == (passed if method == "GET" else enforced)
        assert made.count("InboundRequest._run") == 1
        assert upstream.arrivals == (3 if (name, method) == ("none", "GET") else 2)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_response_in_pieces_gets_a_task(cache: str, method: str) -> None:
    go_on = asyncio.Event()

    async def chunked(peer: Peer) -> None:
        await peer.request()
        await peer.send(CREATED)
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n")
        await go_on.wait()
        await peer.send(b"0\r\n\r\n")

    async with Upstream(chunked) as upstream, gateway_at(upstream.url, cache) as (talk, _, _):
        assert (await talk.exchange(keyed("warm"))).startswith(b"HTTP/1.1 201 ")
        with tasks_made() as made:
            talk.writer.write(request("GET") if method == "GET" else keyed())
            async with asyncio.timeout(PATIENCE):
                shown = await talk.reader.readuntil(b"\r\n\r\n2\r\n{}\r\n")
                go_on.set()
                assert await talk.reader.readexactly(5) == b"0\r\n\r\n"
        assert shown.startswith(b"HTTP/1.1 200 ")
        assert made.count("InboundRequest._run") == 1


IN_PIECES = keyed().replace(b"content-length: 4\r\n\r\nbody", b"transfer-encoding: chunked\r\n\r\n2\r\nbo\r\n")
CODED = keyed().replace(b"content-length: 4\r\n\r\nbody", b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n")
LEAVING = {
    "expects to be told to go on": keyed(expect="100-continue"),
    "asks for another protocol": request("GET", connection="upgrade", upgrade="websocket"),
    "body that is not whole": IN_PIECES,
    "body beyond the limit": keyed(body=b"x" * 1001),
    "operations": request("GET", "/_oncegate/healthz"),
    "passes through, cannot be forwarded": CODED.replace(b"POST", b"PUT"),
    "enforced, cannot be forwarded": CODED,
}


@pytest.mark.parametrize("name", LEAVING)
async def test_a_request_that_is_unusual_gets_a_task(cache: str, name: str) -> None:
    limit = {"max_request_body": 1000}
    async with (
        Upstream(answering(CREATED)) as upstream,
        gateway_at(upstream.url, cache, idempotency=limit) as (talk, _, _),
    ):
        await warm(talk)
        with tasks_made() as made:
            talk.writer.write(LEAVING[name])
            await until(lambda: made, "a task")
        assert made[0] == "InboundRequest._run"
        if LEAVING[name] is IN_PIECES:
            talk.writer.write(b"0\r\n\r\n")
        await talk.answer()


async def test_who_waits_for_the_one_in_flight_gets_a_task(cache: str) -> None:
    async with Upstream(slow := Slow()) as upstream, gateway_at(upstream.url, cache) as (talk, _, port):
        await warm(talk)
        async with talking(port) as other:
            with tasks_made() as made:
                other.writer.write(keyed("slow", path="/slow"))
                await upstream.received(2)
                assert made == []
                talk.writer.write(keyed("slow", path="/slow", prefer="wait=9"))
                await until(lambda: made, "a task")
                slow.go_on.set()
                waited = await talk.answer()
            assert made[0] == "InboundRequest._run"
        assert b"preference-applied: wait=9" in waited
        assert b"idempotent-replayed: true" in waited


async def test_without_an_idle_connection_one_is_opened_by_a_task(cache: str) -> None:
    async with (
        Upstream(answering(CREATED)) as upstream,
        gateway_at(upstream.url, cache, upstream_keepalive=0) as (talk, _, _),
    ):
        await warm(talk)
        for data in (request("GET"), keyed()):
            with tasks_made() as made:
                assert (await talk.exchange(data)).startswith(b"HTTP/1.1 201 ")
            assert made.count("InboundRequest._run") == 1
        assert upstream.connections == 3


async def test_beyond_max_in_flight_it_is_a_task_that_looks_at_the_record(cache: str) -> None:
    async with (
        Upstream(slow := Slow()) as upstream,
        gateway_at(upstream.url, cache, max_in_flight=1) as (talk, _, port),
    ):
        await warm(talk)
        async with talking(port) as other:
            other.writer.write(keyed(path="/slow"))
            await upstream.received(2)
            with tasks_made() as made:
                assert b'"overloaded"' in await talk.exchange(keyed())
                assert b"idempotent-replayed: true" in await talk.exchange(keyed("warm"))
            assert made == ["InboundRequest._run", "_pass_on"] * 2
            slow.go_on.set()
            assert (await other.answer()).startswith(b"HTTP/1.1 201 ")
        with tasks_made() as made:
            assert (await talk.exchange(keyed())).startswith(b"HTTP/1.1 201 ")
        assert made == []


async def test_a_redis_that_was_not_reached_yet_is_connected_to_by_a_task() -> None:
    redis = RedisServer()
    async with Upstream(answering(CREATED)) as upstream, gateway_at(upstream.url, redis.url) as (talk, _, _):
        with redis:
            with tasks_made() as made:
                while b"cache-unavailable" in (answer := await talk.exchange(keyed())):  # within a pause
                    assert made.pop(0) == "_pass_on"
            assert answer.startswith(b"HTTP/1.1 201 ")
            assert made[0] == "_pass_on"


async def test_nothing_that_comes_in_on_the_operators_port_is_forwarded(cache: str) -> None:
    async with Upstream(answering(CREATED)) as upstream, gateway_at(upstream.url, cache) as (talk, gateway, port):
        await warm(talk)
        take_for_operators_port(gateway, port)
        for data in (request("GET"), request(), keyed()):
            assert (await talk.exchange(data)).startswith(b"HTTP/1.1 404 ")
        assert upstream.arrivals == 1


async def test_a_first_submission_waits_for_a_sample_of_the_memory_and_its_retry_costs_no_task(redis_url: str) -> None:
    routes = [{"path": "/later", "mode": "async", "on_missing_key": "reject"}]
    async with Upstream([]) as upstream, gateway_at(upstream.url, redis_url, routes=routes) as (talk, _, _):
        with tasks_made() as made:
            accepted = await talk.exchange(keyed("k", path="/later"))
            assert accepted.startswith(b"HTTP/1.1 202 ")
        assert {*made} == {"_pass_on", "MemorySamples._sample"}
        with tasks_made() as made:
            again = await talk.exchange(keyed("k", path="/later"))
            refused = await talk.exchange(keyed("k", b"other", path="/later"))
        assert made == []
        assert b"idempotent-replayed: true" in again
        assert refused.startswith(b"HTTP/1.1 422 ")


async def test_what_an_app_redacts_is_not_kept_on_the_fast_path_either(cache: str) -> None:
    async with Upstream(answering(CREATED)) as upstream, gateway_at(upstream.url, cache) as (talk, gateway, _):
        await warm(talk)
        fast_path_of(gateway)._door.redact = lambda _, response: response._replace(body=b"[]")
        with tasks_made() as made:
            assert (await talk.exchange(keyed("k"))).endswith(b"{}")
        assert made == []
        assert (await talk.exchange(keyed("k"))).endswith(b"[]")
