"""The transports against real servers that refuse, reset, hang and answer with problems: what arrives, with which key.

Rules of docs/contract.md: R4.4, R12.7.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from oncegate.client import AsyncIdempotentTransport, IdempotentTransport, RetryBudget
from testing.inside import middleware_of
from testing.served import served
from testing.servers import free_port
from testing.upstreams import OK, Behaviour, Peer, Upstream, answering, closing_after, hanging, resetting_after

QUICK = RetryBudget(attempts=4, seconds=30, pause=0.01)
Send = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture(params=["sync", "async"])
def send(request: pytest.FixtureRequest) -> Send:
    """Sends one request with a client and a transport of its own. ``client`` and ``rules`` are their options."""

    async def with_async(
        url: str, method: str = "POST", *, client: Any = None, rules: Any = None, **request: Any
    ) -> httpx.Response:
        transport = AsyncIdempotentTransport(**{"budget": QUICK} | (rules or {}))
        async with httpx.AsyncClient(transport=transport, **{"timeout": 20} | (client or {})) as http:
            return await http.request(method, url, **request)

    def in_thread(
        url: str, method: str = "POST", *, client: Any = None, rules: Any = None, **request: Any
    ) -> httpx.Response:
        transport = IdempotentTransport(**{"budget": QUICK} | (rules or {}))
        with httpx.Client(transport=transport, **{"timeout": 20} | (client or {})) as http:
            return http.request(method, url, **request)

    async def with_sync(*args: Any, **kwargs: Any) -> httpx.Response:
        return await asyncio.to_thread(in_thread, *args, **kwargs)

    return with_sync if request.param == "sync" else with_async


def keys(upstream: Upstream) -> list[str | None]:
    return [request.value("idempotency-key") for request in upstream.requests]


def problem(status: int, *, retryable: bool, after: str | None = None) -> bytes:
    body = json.dumps({"status": status, "retryable": retryable}).encode()
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\n" % (status, len(body))
    return head + (f"retry-after: {after}\r\n".encode() if after is not None else b"") + b"\r\n" + body


@pytest.mark.parametrize("transport", [IdempotentTransport, AsyncIdempotentTransport])
def test_one_method_is_no_collection_of_methods(transport: Callable[..., Any]) -> None:
    """P, O, S and T would be the methods then, and a POST would go out without a key."""
    with pytest.raises(TypeError, match="collection"):
        transport(methods="POST")


async def test_each_request_gets_a_key_of_its_own_and_a_callers_own_is_kept(send: Send) -> None:
    async with Upstream(answering(OK)) as upstream:
        for headers in ({}, {}, {"idempotency-key": "mine"}):
            assert (await send(upstream.url, headers=headers)).text == "ok"
        await send(upstream.url, "GET")
        await send(upstream.url, "PUT", rules={"methods": ["put"], "header": "X-Key", "make_key": lambda: "k"})
    first, second, third, read, other = keys(upstream)
    assert first
    assert second
    assert first != second
    assert len(first) == 38
    assert (third, read, other) == ("mine", None, None)
    assert upstream.requests[-1].value("x-key") == "k"


@pytest.mark.parametrize("breaks", [resetting_after(), closing_after(b""), closing_after(b"HTTP/1.1 200 OK\r\ncont")])
async def test_a_connection_that_breaks_is_tried_again_with_the_same_key(send: Send, breaks: Behaviour) -> None:
    async with Upstream([breaks, breaks, answering(OK)]) as upstream:
        assert (await send(upstream.url, content=b"pay")).status_code == 200
    assert len(set(keys(upstream))) == 1
    assert [request.body for request in upstream.requests] == [b"pay"] * 3


async def test_a_time_out_is_tried_again_with_the_same_key(send: Send) -> None:
    async with Upstream([hanging, answering(OK)]) as upstream:
        answer = await send(upstream.url, client={"timeout": httpx.Timeout(20, read=0.3)})
    assert answer.status_code == 200
    assert len(keys(upstream)) >= 2  # more where the machine stood still for a third of a second
    assert len(set(keys(upstream))) == 1


async def test_without_a_key_a_broken_connection_is_the_callers_to_judge(send: Send) -> None:
    async with Upstream([resetting_after(), answering(OK)]) as upstream:
        with pytest.raises(httpx.TransportError):
            await send(upstream.url, rules={"methods": []})
        assert upstream.arrivals == 1


async def test_a_request_that_only_reads_needs_no_key(send: Send) -> None:
    async with Upstream([resetting_after(), answering(OK)]) as upstream:
        assert (await send(upstream.url, "GET")).status_code == 200
    assert keys(upstream) == [None, None]


async def test_a_server_that_refuses_and_then_is_up_gets_one_request(send: Send) -> None:
    """Nothing was sent before: this needs no key."""
    port = free_port()
    patient = {"budget": RetryBudget(attempts=1000, seconds=30, pause=0.02, longest_pause=0.02), "methods": []}
    call = asyncio.ensure_future(send(f"http://127.0.0.1:{port}", rules=patient, content=b"pay"))
    await asyncio.sleep(0.1)
    assert not call.done()
    async with Upstream(answering(OK), port=port) as upstream:
        assert (await call).status_code == 200
        assert upstream.arrivals == 1


async def test_the_budget_ends_it_with_the_last_error_and_its_key(send: Send) -> None:
    async with Upstream(resetting_after()) as upstream:
        with pytest.raises(httpx.TransportError) as raised:
            await send(upstream.url)
    assert upstream.arrivals == QUICK.attempts
    assert {raised.value.request.headers["idempotency-key"]} == set(keys(upstream))


async def test_a_retryable_problem_is_tried_again_and_the_others_are_answers(send: Send) -> None:
    retryable = problem(503, retryable=True)
    final = problem(422, retryable=False)
    async with Upstream(answering(retryable, retryable, final)) as upstream:
        answer = await send(upstream.url)
        assert (answer.status_code, answer.json()["status"]) == (422, 422)
        assert upstream.arrivals == 3
        assert len(set(keys(upstream))) == 1
        assert upstream.connections == 1, "a discarded answer's connection was not given back"


async def test_the_last_problem_of_the_budget_is_whole(send: Send) -> None:
    async with Upstream(answering(problem(503, retryable=True))) as upstream:
        answer = await send(upstream.url)
        assert answer.json() == {"status": 503, "retryable": True}
        assert upstream.arrivals == QUICK.attempts


async def test_an_error_that_is_no_problem_is_an_answer(send: Send) -> None:
    plain = b"HTTP/1.1 503 X\r\nretry-after: 0\r\ncontent-length: 18\r\n\r\n" + b'{"retryable":true}'
    async with Upstream(answering(plain, OK)) as upstream:
        assert (await send(upstream.url)).status_code == 503
        assert upstream.arrivals == 1
    async with Upstream([answering(plain), answering(OK)]) as upstream:
        assert (await send(upstream.url, rules={"also_statuses": [503]})).status_code == 200
        assert upstream.arrivals == 2


async def test_a_problem_without_an_end_is_handed_on_as_it_comes() -> None:
    """It is not read to its end first, and so no retry either, whatever it says."""
    head = b"HTTP/1.1 503 X\r\ncontent-type: application/problem+json\r\ntransfer-encoding: chunked\r\n\r\n"

    async def endless(peer: Peer) -> None:
        await peer.request()
        await peer.send(head)
        number = 0
        while not peer.gone.is_set():
            await peer.send(b"2000\r\n" + b"%08x" % number * 1024 + b"\r\n")
            number += 1

    def read(url: str) -> tuple[int, bytes]:
        got = b""
        with httpx.Client(transport=IdempotentTransport(budget=QUICK)) as http, http.stream("POST", url) as answer:
            for chunk in answer.iter_bytes():
                got += chunk
                if len(got) > 200_000:
                    break
        return answer.status_code, got

    async def read_async(url: str) -> tuple[int, bytes]:
        got = b""
        async with (
            httpx.AsyncClient(transport=AsyncIdempotentTransport(budget=QUICK)) as http,
            http.stream("POST", url) as answer,
        ):
            async for chunk in answer.aiter_bytes():
                got += chunk
                if len(got) > 200_000:
                    break
        return answer.status_code, got

    expected = b"".join(b"%08x" % number * 1024 for number in range(24))
    for once in (read_async, lambda url: asyncio.to_thread(read, url)):
        async with Upstream(endless) as upstream:
            status, got = await asyncio.wait_for(once(upstream.url), 60)
            assert (status, got[: len(expected)]) == (503, expected)
            assert upstream.arrivals == 1


async def test_retry_after_is_waited_for(send: Send) -> None:
    times: list[float] = []

    async def behave(peer: Peer) -> None:
        for answer in (problem(503, retryable=True, after="1"), OK):
            await peer.request()
            times.append(asyncio.get_running_loop().time())
            await peer.send(answer)

    async with Upstream(behave) as upstream:
        assert (await send(upstream.url)).status_code == 200
    assert times[1] - times[0] >= 0.95


async def test_a_server_that_asks_for_more_than_the_budget_is_not_waited_for(send: Send) -> None:
    for after in ("3600", "Fri, 01 Jan 2100 00:00:00 GMT"):
        async with Upstream(answering(problem(503, retryable=True, after=after))) as upstream:
            assert (await send(upstream.url)).status_code == 503
            assert upstream.arrivals == 1


async def test_a_problem_that_breaks_off_is_a_broken_connection(send: Send) -> None:
    cut = problem(503, retryable=True)[:-5]
    async with Upstream([closing_after(cut), answering(OK)]) as upstream:
        assert (await send(upstream.url)).status_code == 200
        assert upstream.arrivals == 2


async def test_a_problem_of_nonsense_is_an_answer(send: Send) -> None:
    head = b"HTTP/1.1 503 X\r\ncontent-type: application/problem+json\r\ncontent-length: 3\r\n\r\n"
    for body in (b"{{{", b"[1]", b"\xff\xfe\xfd"):
        async with Upstream(answering(head + body, OK)) as upstream:
            answer = await send(upstream.url)
            assert (answer.status_code, answer.content, upstream.arrivals) == (503, body, 1)


class Once:
    """A body that can be read once, by either kind of client: ``reads`` says how often it was."""

    def __init__(self) -> None:
        self.reads = 0

    def sync(self) -> Iterator[bytes]:
        self.reads += 1
        yield b"pay"

    async def later(self) -> AsyncIterator[bytes]:
        self.reads += 1
        yield b"pay"


@pytest.fixture
def once(request: pytest.FixtureRequest) -> tuple[Once, Callable[[], Any]]:
    body = Once()
    return body, body.sync if request.node.callspec.params["send"] == "sync" else body.later


async def test_a_streamed_body_is_not_sent_twice(send: Send, once: tuple[Once, Callable[[], Any]]) -> None:
    async with Upstream([resetting_after(), answering(OK)]) as upstream:
        with pytest.raises(httpx.TransportError):
            await send(upstream.url, content=once[1]())
        assert upstream.arrivals == 1
    async with Upstream(answering(problem(503, retryable=True), OK)) as upstream:
        assert (await send(upstream.url, content=once[1]())).status_code == 503
        assert upstream.arrivals == 1


async def test_a_streamed_body_that_has_not_begun_is_tried_again(
    send: Send, once: tuple[Once, Callable[[], Any]]
) -> None:
    body, content = once
    with pytest.raises(httpx.ConnectError):
        await send(f"http://127.0.0.1:{free_port()}", content=content(), rules={"budget": QUICK})
    assert body.reads == 0
    port = free_port()
    patient = {"budget": RetryBudget(attempts=1000, seconds=30, pause=0.02, longest_pause=0.02)}
    call = asyncio.ensure_future(send(f"http://127.0.0.1:{port}", rules=patient, content=content()))
    await asyncio.sleep(0.1)
    async with Upstream(answering(OK), port=port) as upstream:
        assert (await call).status_code == 200
        assert [request.body for request in upstream.requests] == [b"pay"]


async def test_a_redirected_request_is_another_one(send: Send) -> None:
    moved = b"HTTP/1.1 307 X\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n"
    async with Upstream(answering(moved, OK)) as upstream:
        answer = await send(upstream.url, content=b"pay", client={"follow_redirects": True})
        assert answer.status_code == 200
        first, second = keys(upstream)
        assert first != second
    async with Upstream(answering(moved, OK)) as upstream:
        await send(upstream.url, headers={"Idempotency-Key": "mine"}, client={"follow_redirects": True})
        assert keys(upstream) == ["mine", "mine"]


async def test_the_same_request_sent_again_keeps_its_key() -> None:
    async with Upstream(answering(OK)) as upstream, httpx.AsyncClient(transport=AsyncIdempotentTransport()) as http:
        request = http.build_request("POST", upstream.url, content=b"pay")
        for _ in range(2):
            assert (await http.send(request)).status_code == 200
        assert len(set(keys(upstream))) == 1


async def test_a_certificate_that_is_not_believed_is_not_tried_again() -> None:
    import ssl

    import trustme

    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    async with Upstream(answering(OK), tls=context) as upstream:
        tries = 0

        class Counting(httpx.AsyncHTTPTransport):
            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                nonlocal tries
                tries += 1
                return await super().handle_async_request(request)

        transport = AsyncIdempotentTransport(Counting(), budget=QUICK)
        async with httpx.AsyncClient(transport=transport) as http:
            with pytest.raises(httpx.ConnectError):
                await http.post(upstream.url)
        assert tries == 1


async def test_closing_the_client_closes_what_is_within() -> None:
    inner, async_inner = httpx.HTTPTransport(), httpx.AsyncHTTPTransport()
    with httpx.Client(transport=IdempotentTransport(inner)):
        pass
    async with httpx.AsyncClient(transport=AsyncIdempotentTransport(async_inner)), Upstream(answering(OK)) as upstream:
        pass
    assert upstream.connections == 0


async def test_through_a_gateway_a_broken_answer_and_a_wait_end_in_one_result(send: Send) -> None:
    """The first try times out while the upstream is at work; the next ones meet it in flight; the last gets its result."""
    go = asyncio.Event()

    async def slow(peer: Peer) -> None:
        await peer.request()
        await go.wait()
        await peer.send(OK)

    async with Upstream(slow) as upstream, served(upstream.url) as (client, gateway):
        refused = asyncio.Event()

        def watch(observation: Any, _: object) -> None:
            if observation.decision == "in-flight":
                refused.set()

        middleware_of(gateway).door.observe = watch
        rules = {"budget": RetryBudget(attempts=50, seconds=60, pause=0.05)}
        options = {"timeout": httpx.Timeout(20, read=0.5)}
        call = asyncio.ensure_future(send(f"{client.base_url}/pay", content=b"1", client=options, rules=rules))
        await asyncio.wait_for(refused.wait(), 60)
        go.set()
        answer = await call
        assert (answer.status_code, answer.text) == (200, "ok")
        assert answer.headers["idempotent-replayed"] == "true"
        assert upstream.arrivals == 1


async def test_a_discarded_answer_does_not_keep_its_connection() -> None:
    """With one connection in the pool, a response that nobody closed would block the next try."""
    large = b"HTTP/1.1 503 X\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 1_000_000
    one = httpx.Limits(max_connections=1)
    rules: dict[str, Any] = {"also_statuses": [503], "budget": RetryBudget(attempts=2, pause=0.01)}
    timeout = httpx.Timeout(20, pool=1)
    async with Upstream([answering(large), answering(OK)]) as upstream:
        inner = AsyncIdempotentTransport(httpx.AsyncHTTPTransport(limits=one), **rules)
        async with httpx.AsyncClient(transport=inner, timeout=timeout) as client:
            assert (await client.post(upstream.url)).status_code == 200

    def in_thread(url: str) -> int:
        within = IdempotentTransport(httpx.HTTPTransport(limits=one), **rules)
        with httpx.Client(transport=within, timeout=timeout) as http:
            return http.post(url).status_code

    async with Upstream([answering(large), answering(OK)]) as upstream:
        assert await asyncio.to_thread(in_thread, upstream.url) == 200
