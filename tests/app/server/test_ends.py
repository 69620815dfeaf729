"""How connections end: clients that are still sending hear why, and those that have said all are answered.

Rules of docs/contract.md: R9.11, R9.12, R9.14.
"""

import asyncio
import gc
import socket
from collections.abc import Callable
from typing import Any

import pytest

from oncegate.app.server import connection as inbound
from oncegate.app.server import connection as server_connection
from oncegate.app.server.connection import InboundConnection
from oncegate.middleware.http.asgi import Receive, Scope, Send
from testing.listening import GET, Heeding, echo, head, piece, serving
from testing.served import served
from testing.upstreams import OK, PATIENCE, Peer, Upstream
from testing.waiting import until
from tests.app.fast_path import CREATED, gateway_at, keyed, request, talking

pytestmark = pytest.mark.both_loops

MANY = 20_000_000
HEAD = b"POST /a HTTP/1.1\r\nHost: a\r\n"
KEY = b"Idempotency-Key: k\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n" % MANY
CLOSING = b"Connection: close\r\n"


def sent_blocking(port: int, data: bytes, then: bytes = b"") -> bytes:
    """What a plain client reads once it has written everything, as most do. Raises where the connection is reset."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        client.sendall(data)
        if then:
            client.sendall(then)
        got = b""
        while chunk := client.recv(65536):
            got += chunk
        return got


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (HEAD + KEY + LENGTH, 413),
        (HEAD + KEY + CLOSING + LENGTH, 413),
        (HEAD + KEY + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % MANY, 413),
        (HEAD + b"Idempotency-Key:\r\n" + CLOSING + LENGTH, 400),
        (HEAD + b"X Y: z\r\n" + LENGTH, 400),
        (b"get / HTTP/1.1\r\nHost: a\r\n" + LENGTH, 501),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", 400),
        (HEAD + b"X: " + b"x" * 100_000, 431),
        (HEAD + b"Connection: upgrade\r\nUpgrade: websocket\r\n" + LENGTH, 501),
        (b"POST /scoped HTTP/1.1\r\nHost: a\r\n" + KEY + CLOSING + LENGTH, 401),
        (b"POST /early HTTP/1.1\r\nHost: a\r\n" + CLOSING + LENGTH, 200),
    ],
)
async def test_a_client_that_is_still_sending_hears_why_it_is_refused(data: bytes, status: int) -> None:
    async def early(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(OK)
        while await peer.reader.read(65536):
            pass

    routes = [{"path": "/scoped", "require_scope": True}]
    async with Upstream(early) as upstream, served(upstream.url, routes=routes) as (client, _):
        for _ in range(3):
            got = await asyncio.to_thread(sent_blocking, client.base_url.port or 0, data + b"x" * MANY)
            assert got.startswith(b"HTTP/1.1 %d " % status)
            assert got.count(b"HTTP/1.1 ") == 1


async def test_a_client_that_is_still_sending_hears_that_its_head_took_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbound, "HEAD_SECONDS", 0.2)
    async with serving(echo) as (reader, writer):
        writer.write(GET % b"" + b"GET /b HTTP/1.1\r\nHost: a\r\nX: ")
        got = await reader.read()
    assert got.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" in got


async def test_a_server_that_stops_waits_for_nobody_who_has_only_begun() -> None:
    async with serving(echo) as (_, writer):
        writer.write(GET % b"" + b"GET /b HTTP/1.1\r\nX: ")
        (connection,) = await begun()
        connection.shutdown()
        assert connection.transport.is_closing()
        assert not server_connection._lingering


async def begun() -> list[InboundConnection]:
    """The connections of which half a head has been read."""

    def found() -> list[InboundConnection]:
        # By the type: Django has objects that set themselves up when they are asked for their class.
        open_ones = [each for each in gc.get_objects() if issubclass(type(each), InboundConnection) and each.transport]
        return [each for each in open_ones if each._parser.in_head and not each.transport.is_closing()]

    return list(await until(found, "a connection with half a head"))


async def test_a_request_that_has_only_begun_is_no_request_to_be_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "KEEP_ALIVE_SECONDS", 0.2)
    async with serving(echo) as (reader, _):
        assert await reader.read() == b""


@pytest.mark.parametrize(
    ("name", "value"), [("LINGERING_BYTES", 1_000_000), ("LINGERING_SECONDS", 0.0), ("MOST_LINGERING", 0)]
)
async def test_what_is_taken_of_a_refused_request_is_bounded(
    monkeypatch: pytest.MonkeyPatch, name: str, value: float
) -> None:
    monkeypatch.setattr(server_connection, name, value)
    async with serving(echo) as (_, writer):
        writer.write(b"nonsense\r\n\r\n")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            await filled(writer)


async def test_who_sends_nothing_more_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "PAUSE_SECONDS", 0.2)
    async with serving(echo) as (reader, writer):
        writer.write(b"nonsense\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 501 ")
        await until(lambda: not server_connection._lingering)


async def test_the_end_of_a_client_ends_the_waiting_at_once() -> None:
    async with serving(echo) as (reader, writer):
        writer.write(b"nonsense\r\n\r\n")
        await reader.read()
        assert server_connection._lingering
        writer.close()
        await until(lambda: not server_connection._lingering)


async def test_an_app_hears_that_its_request_is_refused_though_the_client_stays() -> None:
    app = Heeding()
    async with serving(app) as (reader, writer):
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await until(lambda: app.received)
        writer.write(b"nonsense\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        await until(lambda: "http.disconnect" in app.received)


async def filled(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(bytes(100_000))
        await writer.drain()


# -- clients that have said all ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: request("GET"), keyed, request], ids=["GET", "keyed", "POST"])
@pytest.mark.parametrize("number", [1, 2])
async def test_a_client_that_has_shut_its_sending_side_is_answered(make: Callable[[], bytes], number: int) -> None:
    go_on = asyncio.Event()

    async def behave(peer: Peer) -> None:
        while await peer.request():
            await go_on.wait()
            await peer.send(CREATED)

    async with Upstream(behave) as upstream, gateway_at(upstream.url) as (talk, _, _):
        talk.writer.write(b"".join(make() for _ in range(number)))
        talk.writer.write_eof()
        await until(lambda: upstream.arrivals)
        await asyncio.sleep(0.05)  # the end has surely been read by then
        go_on.set()
        got = await asyncio.wait_for(talk.reader.read(), PATIENCE)
    assert got.count(b"HTTP/1.1 201 Created") == number


async def test_a_long_response_to_one_who_has_said_all_is_sent_whole() -> None:
    async def long(scope: Scope, receive: Receive, send: Send) -> None:
        await send(head(content_length=100 * 100_000))
        for number in range(100):
            await send(piece(bytes(100_000), more=number < 99))

    async with serving(long) as (reader, writer):
        writer.write(GET % b"")
        writer.write_eof()
        assert len((await reader.read()).partition(b"\r\n\r\n")[2]) == 10_000_000


@pytest.mark.parametrize(
    "rest", [b"Content-Length: 5\r\n\r\nhalf", b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", b""]
)
async def test_half_a_request_is_none_and_those_before_it_are_answered(rest: bytes) -> None:
    go_on = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/one":
            await go_on.wait()
            await echo(scope, receive, send)
        while (await receive())["type"] != "http.disconnect":
            pass

    async with serving(slow) as (reader, writer):
        writer.write(GET % b"one" + HEAD + rest)
        writer.write_eof()
        await asyncio.sleep(0.05)
        go_on.set()
        assert (await reader.read()).endswith(b"/one ")
    app = Heeding()
    if rest:
        async with serving(app) as (reader, writer):
            writer.write(HEAD + rest)
            writer.write_eof()
            assert await reader.read() == b""
        assert app.received == ["http.request", "http.disconnect"]


async def test_one_who_has_said_all_and_is_sent_nothing_counts_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "HALF_CLOSED_SECONDS", 0.2)
    received: list[str] = []

    async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
        await send(head())
        await send(piece(b"a", more=True))
        while "http.disconnect" not in received:
            received.append((await receive())["type"])

    async with serving(streaming) as (reader, writer):
        writer.write(GET % b"")
        writer.write_eof()
        await reader.read()
        await until(lambda: "http.disconnect" in received)


async def test_an_attempt_outlives_a_client_that_has_said_all_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "HALF_CLOSED_SECONDS", 0.1)
    go_on = asyncio.Event()

    async def behave(peer: Peer) -> None:
        await peer.request()
        await go_on.wait()
        await peer.send(CREATED)

    async with Upstream(behave) as upstream, gateway_at(upstream.url) as (talk, _, port):
        data = keyed("k")
        talk.writer.write(data)
        talk.writer.write_eof()
        assert await asyncio.wait_for(talk.reader.read(), PATIENCE) == b""
        go_on.set()
        async with talking(port) as again:
            answer = await again.exchange(data.replace(b"\r\n\r\n", b"\r\nprefer: wait=20\r\n\r\n", 1))
        assert b"idempotent-replayed: true" in answer
        assert upstream.arrivals == 1


async def test_a_client_that_is_gone_is_found_out_by_writing_to_it() -> None:
    ended: list[Any] = []

    async def ticking(scope: Scope, receive: Receive, send: Send) -> None:
        await send(head())
        waiting = asyncio.ensure_future(receive())
        waiting = waiting if (await waiting)["type"] == "http.disconnect" else asyncio.ensure_future(receive())
        while not waiting.done():
            await send(piece(b"tick", more=True))
            await asyncio.sleep(0.01)
        ended.append((await waiting)["type"])

    async with serving(ticking) as (reader, writer):
        writer.write(GET % b"")
        await reader.readuntil(b"tick")
        writer.close()
        await until(lambda: ended)
    assert ended == ["http.disconnect"]
