"""Requests that two servers could frame differently: refused here, or passed on as one request with one framing.

Every message of the corpus hides ``GET /smuggled``. It must never arrive as a request of its own, with a key or without;
whatever arrives is framed anew, once. (Half a request may: what is streamed is found wrong on the way, and broken off.) A plain
request follows on the same connection.

Rules of docs/contract.md: R4.10, R9.2.
"""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from testing.served import served
from testing.upstreams import OK, PATIENCE, Request, Upstream, answering

HIDDEN = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
END = b"GET /end HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(HIDDEN)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
IN_CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)


def chunks(framed: bytes) -> bytes:
    return CHUNKED + b"\r\n" + framed


REFUSED = {
    # -- both, or neither of the two that were meant
    "CL.TE": b"Content-Length: %d\r\n" % (len(HIDDEN) + 5) + chunks(b"0\r\n\r\n" + HIDDEN),
    "TE.CL": CHUNKED + b"Content-Length: 4\r\n\r\n" + IN_CHUNKS,
    "TE.TE": CHUNKED + b"Transfer-Encoding: identity\r\n\r\n" + IN_CHUNKS,
    "CL.CL": b"Content-Length: 0\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "CL twice the same": LENGTH * 2 + b"\r\n" + HIDDEN,
    "CL list": b"Content-Length: %d, %d\r\n\r\n" % (len(HIDDEN), len(HIDDEN)) + HIDDEN,
    # -- lengths that are read in several ways
    "CL plus": b"Content-Length: +%d\r\n\r\n" % len(HIDDEN) + HIDDEN,
    "CL minus": b"Content-Length: -1\r\n\r\n" + HIDDEN,
    "CL hexadecimal": b"Content-Length: 0x%x\r\n\r\n" % len(HIDDEN) + HIDDEN,
    "CL tab": b"Content-Length:\x0b%d\r\n\r\n" % len(HIDDEN) + HIDDEN,
    "CL space before colon": b"Content-Length : %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
    # -- codings that only some recognise
    "TE unknown": b"Transfer-Encoding: xchunked\r\n\r\n" + IN_CHUNKS,
    "TE not last": b"Transfer-Encoding: chunked, identity\r\n\r\n" + IN_CHUNKS,
    "TE list": b"Transfer-Encoding: identity, chunked\r\n\r\n" + IN_CHUNKS,
    "TE quoted": b'Transfer-Encoding: "chunked"\r\n\r\n' + IN_CHUNKS,
    "TE nul": b"Transfer-Encoding: chunked\0\r\n\r\n" + IN_CHUNKS,
    "TE space before colon": b"Transfer-Encoding : chunked\r\n\r\n" + IN_CHUNKS,
    "TE behind a bare LF": b"X: 1\nTransfer-Encoding: chunked\r\n\r\n" + IN_CHUNKS,
    "TE behind a bare CR": b"X: 1\rTransfer-Encoding: chunked\r\n\r\n" + IN_CHUNKS,
    # -- folded lines
    "fold with TE": b"X: 1\r\n Transfer-Encoding: chunked\r\n\r\n" + IN_CHUNKS,
    "fold of TE": b"Transfer-Encoding:\r\n chunked\r\n\r\n" + IN_CHUNKS,
    "fold": b"X: 1\r\n\t2\r\n" + LENGTH + b"\r\n" + HIDDEN,
    # -- chunks
    "size with 0x": chunks(b"0x" + IN_CHUNKS),
    "size with plus": chunks(b"+" + IN_CHUNKS),
    "size with minus": chunks(b"-" + IN_CHUNKS),
    "size with underscore": chunks(b"0_" + IN_CHUNKS),
    "size too large for 64 bits": chunks(b"1" + b"0" * 14 + IN_CHUNKS),
    "size empty": chunks(b"\r\n" + HIDDEN + b"\r\n0\r\n\r\n"),
    "size and a space": chunks(b"%x \r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)),
    "size before a bare LF": chunks(b"%x\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)),
    "size before a bare CR": chunks(b"%x\r%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)),
    "extension with a bare LF": chunks(b"2;\nxx\r\n%x\r\n0\r\n\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN) + 5, HIDDEN)),
    "data longer than its size": chunks(b"2\r\nab%b\r\n0\r\n\r\n" % HIDDEN),
    "data before a bare LF": chunks(b"%x\r\n%b\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)),
    "end with bare LFs": chunks(b"2\r\nab\r\n0\n\n" + HIDDEN),
    # -- names and lines
    "name with a space": b"X A: 1\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "name empty": b": 1\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "name with NUL": b"X\0: 1\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "no colon": b"X\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "bare LF at the end of the head": LENGTH + b"\n" + HIDDEN,
    "two hosts": b"Host: b\r\n" + LENGTH + b"\r\n" + HIDDEN,
}
PASSED = {
    "CL": LENGTH + b"\r\n" + HIDDEN,
    "CL and white space": b"Content-Length: %d \t\r\n\r\n" % len(HIDDEN) + HIDDEN,
    "TE": chunks(IN_CHUNKS),
    "TE in capitals": b"TRANSFER-ENCODING:\tCHUNKED\r\n\r\n" + IN_CHUNKS,
    "chunk extensions": chunks(b'%x;a=b;c="d"\r\n%b\r\n0;e\r\n\r\n' % (len(HIDDEN), HIDDEN)),
    "leading zeros": chunks(b"000" + IN_CHUNKS),
}


class Between:
    """A gateway and its upstream, both real, for as many messages as there are."""

    def __init__(self, port: int, upstream: Upstream) -> None:
        self._port = port
        self._upstream = upstream

    async def exchange(self, message: bytes) -> tuple[list[int], list[Request]]:
        """The statuses that come back for ``message`` and the request behind it, and what has arrived."""
        before = len(self._upstream.requests)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(message + END)
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await reader.read()
        finally:
            writer.close()
        arrived = self._upstream.requests[before:]
        for request in arrived:
            framing = [name for name, _ in request.fields if name in ("content-length", "transfer-encoding")]
            assert len(framing) <= 1, "framed twice"
            assert "/smuggled" not in request.line
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", answer)], arrived


@pytest.fixture
async def between() -> AsyncIterator[Between]:
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        yield Between(client.base_url.port or 0, upstream)


def pay(name: str, message: bytes, method: bytes = b"POST", *, keyed: bool) -> bytes:
    key = b'Idempotency-Key: "%b %b"\r\n' % (name.encode(), method) if keyed else b""
    return method + b" /pay HTTP/1.1\r\nHost: a\r\n" + key + message


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
async def test_an_ambiguous_request_is_refused_and_its_connection_closed(between: Between, keyed: bool) -> None:
    outcome = {}
    for name, message in REFUSED.items():
        statuses, arrived = await between.exchange(pay(name, message, keyed=keyed))
        outcome[name] = len(statuses) == 1 and statuses[0] in (400, 501) and not arrived
    assert [name for name, refused in outcome.items() if not refused] == []


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
async def test_a_request_that_is_framed_well_arrives_once_and_framed_anew(between: Between, keyed: bool) -> None:
    for method in (b"POST", b"GET"):
        for name, message in PASSED.items():
            statuses, arrived = await between.exchange(pay(name, message, method, keyed=keyed))
            assert statuses == [200, 200], name
            assert [(request.line.split()[1], request.body) for request in arrived] == [
                ("/pay", HIDDEN),
                ("/end", b""),
            ], name


async def test_a_request_line_of_another_protocol_is_refused(between: Between) -> None:
    for message in (
        b"POST /pay\nX: y HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab",
        b"POST /pay\r\nHost: a\r\nContent-Length: 2\r\n\r\nab",
        b"POST /pay HTTP/2.0\r\nHost: a\r\nContent-Length: 2\r\n\r\nab",
        b"POST /pay HTTP/1.2\r\nHost: a\r\nContent-Length: 2\r\n\r\nab",
        b"POST /pay HTTP/1.1\nHost: a\nContent-Length: 2\n\nab",
        b"POST /pay /smuggled HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab",
        b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n" + HIDDEN,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ):
        assert await between.exchange(message) == ([400], []), message
    for message in (
        b"POST\t/pay\tHTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab",
        b" POST /pay HTTP/1.1\r\nHost: a\r\n\r\n",
    ):
        assert await between.exchange(message) == ([501], []), message


async def test_chunks_under_an_old_version_end_the_connection(between: Between) -> None:
    """RFC 9112 section 6.1: its framing is taken to be faulty, so nothing behind it is read."""
    statuses, arrived = await between.exchange(b"POST /pay HTTP/1.0\r\nHost: a\r\n" + chunks(IN_CHUNKS))
    assert len(statuses) == 1
    assert [request.body for request in arrived] == [HIDDEN]
