"""The forwarder behind the real server: what the server makes of its messages, seen from a client's socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from oncegate.app.upstream import outgoing
from testing.listening import listening
from testing.upstreams import OK, PATIENCE, Behaviour, Peer, Upstream, answering, reset
from tests.app.forwarding import forwarding

pytestmark = pytest.mark.both_loops


@asynccontextmanager
async def gateway(behave: Behaviour) -> AsyncIterator[tuple[int, Upstream]]:
    """The port of a server that forwards to an upstream of that behaviour."""
    async with (
        forwarding(behave, response_timeout=10 * PATIENCE) as (upstream, forwarder),
        listening(forwarder) as (_, port),
    ):
        yield port, upstream


async def exchanged(port: int, *pieces: bytes) -> bytes:
    """All that comes back for those bytes; the last piece should ask for a close."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0.01)
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE)
    finally:
        writer.close()


CLOSE = b"Host: api.example\r\nConnection: close\r\n\r\n"


async def test_a_response_reaches_the_client_byte_for_byte() -> None:
    body = bytes(range(256)) * 8
    head = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nX-A: 2\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with gateway(answering(head + body)) as (port, _):
        got, _, rest = (await exchanged(port, b"GET /x HTTP/1.1\r\n" + CLOSE)).partition(b"\r\n\r\n")
        assert rest == body
        assert b"x-a: 1\r\nx-a: 2\r\n" in got


@pytest.mark.parametrize(
    ("method", "answer", "status"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n", b"200"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 12\r\n\r\n", b"304"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", b"204"),
    ],
)
async def test_a_response_without_a_body_ends_with_its_head(method: str, answer: bytes, status: bytes) -> None:
    async with gateway(answering(answer)) as (port, _):
        second = method.encode() + b" / HTTP/1.1\r\nHost: x\r\n\r\n"
        got = await exchanged(port, second, method.encode() + b" / HTTP/1.1\r\n" + CLOSE)
        assert got.count(b"HTTP/1.1 " + status) == 2
        assert got.endswith(b"\r\n\r\n")
        assert got.count(b"\r\n\r\n") == 2


async def test_chunks_become_chunks_again() -> None:
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    async with gateway(answering(answer)) as (port, _):
        got = await exchanged(port, b"GET / HTTP/1.1\r\n" + CLOSE)
        assert got.endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")


async def test_an_upload_that_waits_for_the_servers_go_ahead_gets_it() -> None:
    async with gateway(answering(OK)) as (port, upstream):
        head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"
        got = await exchanged(port, head, b"abc")
        assert got.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
        assert (upstream.requests[0].body, upstream.requests[0].value("expect")) == (b"abc", None)


async def test_a_request_behind_a_refused_one_is_not_forwarded() -> None:
    smuggled = b"GET /secret HTTP/1.1\r\nHost: x\r\n\r\n"
    async with gateway(answering(OK)) as (port, upstream):
        framing = b"Host: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
        got = await exchanged(port, b"POST / HTTP/1.1\r\n" + framing + b"0\r\n\r\n" + smuggled)
        assert got.startswith((b"HTTP/1.1 501", b"HTTP/1.1 400"))
        assert upstream.heads == []


async def test_a_response_that_breaks_off_breaks_off_for_the_client_too(caplog: pytest.LogCaptureFixture) -> None:
    async def half(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")

    async with gateway(half) as (port, _):
        got = await exchanged(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert got.endswith(b"3\r\nabc\r\n")
    assert "OutcomeUnknown" in caplog.text


@pytest.mark.parametrize("upload", [False, True])
async def test_a_client_that_goes_away_ends_what_is_done_for_it(upload: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "WATCH_AFTER", 0.05)

    async def hanging(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        arrived.set()
        await peer.hang()

    arrived, request = asyncio.Event(), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    if upload:
        request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"
    async with gateway(hanging) as (port, upstream):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        await asyncio.wait_for(arrived.wait(), PATIENCE)
        reset(writer)  # one who only says no more may wait for the answer
        await upstream.gone()
