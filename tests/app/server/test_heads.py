"""Heads from end to end, byte for byte: what comes in goes on once, in order, but for what is dropped, changed or added.

In one read, byte by byte, and in two reads at every place. Rules of docs/contract.md: R9.4, R9.5.
"""

import socket
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.server import ServerState

from oncegate.app.http1 import RequestWriter, TrustedPeers
from oncegate.app.last_head import LastHead
from oncegate.app.server.connection import InboundConnection
from oncegate.app.server.request import InboundRequest
from oncegate.app.upstream.response import ResponseReader
from oncegate.cache.fields import HOP_BY_HOP, IN_LOWER_CASE
from oncegate.middleware.http.asgi import respond
from tests.app.server.test_parser import cut
from tests.builds.http import Wire, _turns

ADDED = b"x-forwarded-for: peer\r\nx-forwarded-proto: http\r\nx-forwarded-host: a.example\r\nvia: 1.1 oncegate\r\n"
CHUNKS = (
    b"Transfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n2\r\nab\r\n0\r\nX-T: 1\r\nHost: b\r\nCookie: trailer\r\n\r\n"
)
HEADS: list[tuple[bytes, bytes]] = [
    (
        b"GET /a?b=c HTTP/1.1\r\nHost: a.example\r\nUser-Agent: x\r\nACCEPT: */*\r\nx-own:  1\t \r\nX-Own: 2\r\nx-empty:\r\n\r\n",
        b"GET /a?b=c HTTP/1.1\r\nhost: a.example\r\nuser-agent: x\r\naccept: */*\r\nx-own: 1\r\nx-own: 2\r\nx-empty: \r\n"
        + ADDED + b"\r\n",
    ),
    (
        b"POST / HTTP/1.1\r\nX.Forwarded-Uri: /\r\n"
        b"Cookie: a\r\ncontent-Length: 2\r\nhost: a.example\r\nCookie: b\r\nConnection: X-Gone, cookie\r\n"
        b"X-Gone: 1\r\nKeep-Alive: 1\r\nX-Forwarded-For: me\r\nX.Forwarded-User: root\r\nX-ForwardedA: 1\r\nX-F: forwarded\r\n"
        b"\r\nab",
        b"POST / HTTP/1.1\r\nhost: a.example\r\ncookie: a\r\ncookie: b\r\nx-forwardeda: 1\r\nx-f: forwarded\r\n"
        + ADDED + b"content-length: 2\r\n\r\nab",
    ),
    (
        b"PUT /c HTTP/1.1\r\nHost: a.example\r\nIdempotency-Key: k\r\nx_request_id: 7\r\n" + CHUNKS,
        b"PUT /c HTTP/1.1\r\nhost: a.example\r\nidempotency-key: k\r\nx_request_id: 7\r\n"
        + ADDED + b"content-length: 2\r\n\r\nab",
    ),
    (
        b"POST /d HTTP/1.1\r\nHost: a.example\r\nUpgrade: h2c\r\nConnection: upgrade\r\nOrigin: o\r\n" + CHUNKS,
        b"POST /d HTTP/1.1\r\nhost: a.example\r\norigin: o\r\n" + ADDED + b"content-length: 2\r\n\r\nab",
    ),
]  # fmt: skip
"""What a client sends, and what goes to the upstream."""


PEER = ("peer", 1)


class Forwarding:
    """An app that keeps what it would forward of each request, and the fields that its parser has found."""

    def __init__(self) -> None:
        self.fields: list[tuple[dict[bytes, bytes], dict[bytes, bytes]]] = []
        self.sent: list[bytes] = []
        self._writer = RequestWriter(b"", b"upstream", TrustedPeers([]), ["Idempotency-Key"])
        self._last = LastHead()

    def begun(self, request: InboundRequest) -> None:
        self.fields.append((request.fields, dict(request.scope["headers"])))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        head = self._writer.whole({**scope, "client": PEER}, scope["headers"], body, self._last)
        self.sent.append(head + body)
        await respond(send, 200, [(b"content-length", b"0")], b"")


async def forwarded(reads: list[bytes]) -> Forwarding:
    app = Forwarding()
    config: Any = SimpleNamespace(loaded_app=app)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = InboundConnection(config, ServerState(), {})
        connection.connection_made(Wire(ours))
        for read in reads:
            connection.data_received(read)
            await _turns(2)
        await _turns(6)
        connection.connection_lost(None)
        await _turns(2)
    return app


@pytest.mark.parametrize(("raw", "expected"), HEADS, ids=["fields", "dropped", "trailers", "parsed again"])
async def test_a_request_goes_on_field_by_field_however_it_was_cut(raw: bytes, expected: bytes) -> None:
    for reads in cut(raw):
        assert (await forwarded(reads)).sent == [expected], reads


async def test_nothing_of_a_request_is_in_the_next_one_of_its_connection() -> None:
    for first, _ in HEADS:
        for second, expected in HEADS:
            app = await forwarded([first, second])
            assert app.sent[1] == expected
            assert all(found == expected for found, expected in app.fields)


async def test_a_name_that_comes_twice_is_counted_without_those_of_the_request_before() -> None:
    first, second = (
        b"GET / HTTP/1.1\r\nHost: a\r\n" + rest + b"\r\n" for rest in (b"X-A: 1\r\n", b"X-B: 1\r\nX-B: 2\r\n")
    )
    app = await forwarded([first, second])
    assert [found for found, _ in app.fields] == [{b"host": b"a", b"x-a": b"1"}, {b"host": b"a", b"x-b": b"2"}]


def test_what_a_trusted_proxy_says_goes_on_once() -> None:
    writer = RequestWriter(b"", b"upstream", TrustedPeers(["10.0.0.0/8"]))
    fields = [(b"host", b"a"), (b"x-forwarded-for", b"b"), (b"x.forwarded-user", b"u"), (b"x-a", b"1")]
    scope = {"method": "GET", "path": "/", "client": ("10.0.0.1", 1), "headers": fields}
    assert writer.whole(scope, fields, b"") == (
        b"GET / HTTP/1.1\r\nhost: a\r\nx.forwarded-user: u\r\nx-a: 1\r\nx-forwarded-for: b, 10.0.0.1\r\n"
        b"x-forwarded-proto: http\r\nx-forwarded-host: a\r\nvia: 1.1 oncegate\r\n\r\n"
    )


RESPONSE = (
    b"HTTP/1.1 103 Early Hints\r\nDate: never\r\nServer: hint\r\nConnection: server\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nServer: s\r\nSet-Cookie: a\r\nx-own: \t1 \r\nset-cookie: b\r\nConnection: X-Gone, set-cookie\r\n"
    b"X-Gone: 1\r\nKeep-Alive: timeout=9\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\nab\r\n0\r\nDate: trailer\r\nServer: trailer\r\nKeep-Alive: timeout=1\r\n\r\n"
)


def test_a_response_is_read_field_by_field_however_it_was_cut() -> None:
    """What interim responses and trailers say is nothing of its own."""
    for reads in cut(RESPONSE):
        reader = ResponseReader()
        for read in reads:
            reader.feed(read)
        assert (reader.complete, reader.failure) == (True, None), reads
        assert reader.headers == [(b"server", b"s"), (b"set-cookie", b"a"), (b"x-own", b"1"), (b"set-cookie", b"b")]
        assert not reader.head.has_date
        assert (reader.take(), reader.head.idle_timeout, reader.persistent) == (b"ab", 9.0, True)


@pytest.mark.parametrize("field", [b"content-length: 0", b"Transfer-Encoding: chunked"])
def test_an_interim_response_announces_no_body(field: bytes) -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 103 X\r\n" + field + b"\r\n\r\n" + RESPONSE)
    assert reader.failure is not None


async def written(app: Any) -> list[bytes]:
    """What a connection to ``app`` writes when a request has come."""
    config: Any = SimpleNamespace(loaded_app=app)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire = Wire(ours)
        connection = InboundConnection(config, ServerState(), {})
        connection.connection_made(wire)
        connection.data_received(HEADS[0][0])
        await _turns(6)
        connection.connection_lost(None)
    return wire.seen


async def answered(headers: list[tuple[bytes, bytes]], ready: bytes = b"") -> list[bytes]:
    """The same of an app that answers at once, with these fields and a body of two bytes."""

    def direct(request: InboundRequest) -> bool:
        request.take()
        request.respond(200, headers, b"ab", ready)
        return True

    return await written(SimpleNamespace(direct=direct))


async def test_an_answer_is_written_field_by_field() -> None:
    answer = [(b"server", b"s"), (b"connection", b"X"), (b"content-length", b"2"), (b"x-own", b""), (b"x-own", b"1")]
    head = b"HTTP/1.1 200 OK\r\nserver: s\r\ncontent-length: 2\r\nx-own: \r\nx-own: 1\r\n\r\n"
    assert await answered(answer) == [head + b"ab"]


async def test_lines_that_are_ready_go_into_an_answer_once_before_all_others() -> None:
    head = b"HTTP/1.1 200 OK\r\nserver: s\r\ncontent-length: 2\r\nx-own: 1\r\n\r\n"
    assert await answered([(b"x-own", b"1")], b"\r\nserver: s\r\ncontent-length: 2") == [head + b"ab"]


async def test_an_apps_fields_may_come_one_by_one() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        fields = [(b"x", b"1"), (b"content-length", b"0"), (b"x", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": (field for field in fields)})
        await send({"type": "http.response.body"})

    assert await written(app) == [b"HTTP/1.1 200 OK\r\nx: 1\r\ncontent-length: 0\r\nx: 2\r\n\r\n"]


def test_usual_names_are_spelled_in_lower_case() -> None:
    assert HOP_BY_HOP & set(IN_LOWER_CASE.values())
    for spelled, name in IN_LOWER_CASE.items():
        assert name == spelled.lower()
        assert IN_LOWER_CASE[name] is name
