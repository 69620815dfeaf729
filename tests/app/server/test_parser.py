"""What llhttp would decide in our stead: methods, protocols, what follows an ``Upgrade``. In whatever reads it comes.

Rules of docs/contract.md: R9.4, R9.5.
"""

import re
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.server import ServerState

from oncegate.app.server.connection import InboundConnection
from oncegate.app.server.request import InboundRequest
from testing.listening import echo, serving
from tests.builds.http import Wire, _turns

OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
HOST = b" HTTP/1.1\r\nHost: a\r\n"
PLAIN = b"GET /plain" + HOST + b"\r\n"
BODY = b"Content-Length: 3\r\n\r\nabc"
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\nX: trailer\r\n\r\n"

Seen = list[tuple[str, str, bytes]]


class Taking:
    """An app that answers a request once it is whole."""

    def __init__(self) -> None:
        self.seen: Seen = []

    def direct(self, request: InboundRequest) -> bool:
        self.seen.append((request.scope["method"], request.scope["path"], request.body))
        request.take()
        request.respond(200, [(b"content-length", b"0")], b"")
        return True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        self.seen.append((scope["method"], scope["path"], body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})


async def fed(reads: list[bytes]) -> tuple[Seen, list[int]]:
    """The requests that come of ``reads``, and the statuses of the answers."""
    app = Taking()
    config: Any = SimpleNamespace(loaded_app=app)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire = Wire(ours)
        connection = InboundConnection(config, ServerState(), {})
        connection.connection_made(wire)
        for read in reads:
            if wire.is_closing():
                break
            connection.data_received(read)
            await _turns(4)
        await _turns(20)
        connection.connection_lost(None)
        await _turns(4)
    written = b"".join(each for each in wire.seen if isinstance(each, bytes))
    return app.seen, [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", written)]


def cut(data: bytes) -> Iterator[list[bytes]]:
    """``data`` whole, byte by byte, and in two reads at every place."""
    yield [data]
    yield [data[at : at + 1] for at in range(len(data))]
    for at in range(1, len(data)):
        yield [data[:at], data[at:]]


async def assert_always(data: bytes, requests: Seen, statuses: list[int]) -> None:
    for reads in cut(data):
        assert await fed(reads) == (requests, statuses), reads


@pytest.mark.parametrize(
    ("rest", "body"), [(b"\r\n", b""), (BODY, b"abc"), (CHUNKS, b"abc")], ids=["no body", "length", "chunks"]
)
@pytest.mark.parametrize(
    "offer",
    [
        OFFER,
        b"Upgrade: h2c\r\n",
        b"connection: upgrade\r\nUPGRADE:TLS/1.0 , h2c\r\n",
        b"Upgrade: h2c\r\nConnection: keep-alive\r\nConnection: Upgrade\r\n",
    ],
    ids=["curl", "alone", "others", "two lines"],
)
async def test_an_offer_of_another_protocol_is_ignored(offer: bytes, rest: bytes, body: bytes) -> None:
    data = b"POST /a" + HOST + offer + rest + PLAIN + b"POST /b" + HOST + offer + rest + PLAIN
    plain = ("GET", "/plain", b"")
    await assert_always(data, [("POST", "/a", body), plain, ("POST", "/b", body), plain], [200] * 4)


async def test_a_body_behind_an_offer_is_judged_as_any_other() -> None:
    for rest in (
        b"Transfer-Encoding: gzip\r\n\r\n" + PLAIN,
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + PLAIN,
        b"Content-Length: 0\r\nContent-Length: 3\r\n\r\n" + PLAIN,
    ):
        await assert_always(b"POST /a" + HOST + OFFER + rest, [], [400])


@pytest.mark.parametrize(("line", "statuses"), [(b"connection: close\r\n", [200]), (b"", [200, 200])])
async def test_an_offer_does_not_change_how_long_a_connection_lasts(line: bytes, statuses: list[int]) -> None:
    data = b"POST /a" + HOST + OFFER + line + BODY + PLAIN
    await assert_always(data, [("POST", "/a", b"abc"), ("GET", "/plain", b"")][: len(statuses)], statuses)


async def test_an_old_versions_upgrade_is_ignored_whatever_it_is() -> None:
    """RFC 9110 section 7.8."""
    data = b"POST /a HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n" + BODY
    await assert_always(data, [("POST", "/a", b"abc")], [200])


@pytest.mark.parametrize("method", ["PROPFIND", "PURGE", "QUERY", "M-SEARCH", "SOURCE"])
async def test_a_method_that_the_parser_knows_passes(method: str) -> None:
    data = method.encode() + b" /a" + HOST + CHUNKS + PLAIN
    await assert_always(data, [(method, "/a", b"abc"), ("GET", "/plain", b"")], [200, 200])


@pytest.mark.parametrize("rest", [b"\r\n", BODY, CHUNKS], ids=["no body", "length", "chunks"])
@pytest.mark.parametrize(
    "method", ["FOO", "VERSION-CONTROL", "GETX", "PLAY", "GET_PARAMETER", "Q", "P!", "X" * 33, "get", "Post", "F(O"]
)
async def test_a_method_that_the_parser_does_not_know_is_refused_and_what_is_behind_it_is_not_read(
    method: str, rest: bytes
) -> None:
    line = method.encode() + b" /a" + HOST
    await assert_always(b"\r\n" + line + OFFER + rest + PLAIN, [], [501])


@pytest.mark.parametrize("before", [b"\r\n", BODY, CHUNKS, OFFER + BODY], ids=["no body", "length", "chunks", "offer"])
async def test_an_unknown_method_takes_no_answer_from_requests_before_it(before: bytes) -> None:
    for reads in cut(b"POST /a" + HOST + before + b"FOO /b" + HOST + before + PLAIN):
        seen, statuses = await fed(reads)
        assert seen == [("POST", "/a", b"" if before == b"\r\n" else b"abc")]
        # Behind one that is being answered nothing is said: the connection is closed.
        assert statuses in ([200], [200, 501]), reads


@pytest.mark.parametrize(
    "line",
    [
        b"PRI * HTTP/2.0",
        b"GET / RTSP/1.0",
        b"GET / RTSP/1.1",
        b"POST / RTSP/1.0",
        b"PLAY / RTSP/1.0",
        b"OPTIONS * RTSP/1.0",
        b"SOURCE / ICE/1.0",
        b"GET / ICE/1.0",
        b"GET /HTTP/1.1",
        b"GET  HTTP/1.1",
        b"CONNECT  HTTP/1.1",
        b"GET / RTSP/1.0 HTTP/1.1",
    ],
)
async def test_what_is_not_of_http_is_refused(line: bytes) -> None:
    for before in (b"", PLAIN):
        for reads in cut(before + line + b"\r\nHost: a\r\nX: / HTTP/1.1\r\n\r\n" + PLAIN):
            seen, statuses = await fed(reads)
            assert seen == [("GET", "/plain", b"")] * bool(before)
            # Behind one that is being answered nothing is said: the connection is closed.
            assert statuses in ([[400]] if not before else [[200], [200, 400]]), reads


async def test_the_names_of_other_protocols_may_stand_anywhere_else() -> None:
    data = b"POST /a/RTSP/1.0" + HOST + b"X: GET / RTSP/1.0\r\nContent-Length: 16\r\n\r\nGET / ICE/1.0\r\n\r"
    await assert_always(data, [("POST", "/a/RTSP/1.0", b"GET / ICE/1.0\r\n\r")], [200])
    old = b"POST / HTTP/1.0\r\nContent-Length: 15\r\n\r\nPOST / RTSP/1.0"
    assert await fed([old]) == ([("POST", "/", b"POST / RTSP/1.0")], [200])


@pytest.mark.both_loops
async def test_a_websocket_is_not_ignored() -> None:
    async with serving(echo) as (reader, writer):
        writer.write(b"GET /a" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + PLAIN)
        got = await reader.read()
    assert got.count(b"HTTP/1.1 ") == 1, "what follows is another protocol's"
