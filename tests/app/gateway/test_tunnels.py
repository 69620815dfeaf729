"""Tunnels: a WebSocket's bytes pass both ways as they came, within bounds, and end in order. Raw sockets on both sides.

Rules of docs/contract.md: R4.21, R9.5, R9.24, R9.25, R9.26, R9.27.
"""

import asyncio
import gc
import re
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from oncegate.app.gateway import tunnel
from oncegate.app.gateway.gateway import Gateway
from oncegate.app.server.connection import InboundConnection
from oncegate.app.server.request import InboundRequest
from oncegate.app.upstream.connection import UpstreamConnection
from testing.served import served
from testing.upstreams import OK, Behaviour, Peer, Upstream, reset
from testing.waiting import until as condition
from tests.app.tunnelling import (
    AGREES,
    DIGEST,
    HANDSHAKE,
    KEY,
    NOISE,
    SWITCHING,
    Flood,
    Side,
    metric,
    until,
    within,
)

pytestmark = pytest.mark.both_loops


@asynccontextmanager
async def speaking(
    behave: Behaviour, sent: bytes = HANDSHAKE, *, limit: int = 2**16, **settings: Any
) -> AsyncIterator[tuple[Side, Upstream, httpx.AsyncClient, Gateway]]:
    """A client that has sent ``sent`` to a gateway in front of ``behave``."""
    async with Upstream(behave) as upstream, served(upstream.url, **settings) as (client, gateway):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port, limit=limit)
        writer.write(sent)
        try:
            yield Side(reader, writer), upstream, client, gateway
        finally:
            writer.close()


async def echoing(peer: Peer) -> None:
    await peer.request()
    await peer.send(SWITCHING)
    while data := await peer.reader.read(65536):
        await peer.send(data)


async def open_tunnels(client: httpx.AsyncClient) -> float:
    return await metric(client, "tunnels")


# -- the handshake ----------------------------------------------------------------------------------------------------------


async def test_a_handshake_passes_and_then_every_byte() -> None:
    more = (
        b"Origin: https://shop.example\r\nSec-WebSocket-Protocol: chat, superchat\r\nCookie: a=b\r\n"
        b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\nIdempotency-Key: k\r\n"
    )
    chosen = b"Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Extensions: permessage-deflate\r\nSet-Cookie: c=d\r\n"

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(SWITCHING[:-2] + chosen + b"\r\n")
        while data := await peer.reader.read(65536):
            await peer.send(data)

    async with speaking(behave, HANDSHAKE[:-2] + more + b"\r\n") as (side, upstream, client, _):
        head = (await side.head()).lower()
        assert head.startswith(b"http/1.1 101 switching protocols\r\n")
        for line in (AGREES + chosen).lower().split(b"\r\n"):
            assert line in head
        assert head.count(b"\r\nupgrade:") == head.count(b"\r\nconnection:") == 1
        assert b"\r\nvia: 1.1 oncegate\r\n" in head
        (request,) = upstream.requests
        assert request.line == "GET /talk?a=1 HTTP/1.1"
        for name, value in [line.split(b": ", 1) for line in (more + b"Host: api.example").split(b"\r\n")]:
            assert request.value(name.decode().lower()) == value.decode()
        assert request.value("upgrade") == "websocket"
        assert request.value("connection") == "Upgrade"
        assert request.value("sec-websocket-key") == KEY.decode()
        assert request.value("x-forwarded-for") == "127.0.0.1"
        side.writer.write(NOISE)
        assert await side.take(len(NOISE)) == NOISE
        assert await open_tunnels(client) == 1
        side.writer.write_eof()
        assert await side.rest() == b""
        await until(client, "tunnels", lambda count: count == 0)


@pytest.mark.parametrize("early", [b"x", NOISE], ids=["a byte", "more than a read"])
async def test_what_either_side_sends_early_is_not_lost(early: bytes) -> None:
    """Behind the request, in one write with it, before there is an answer; behind the 101, in one write with that."""

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(SWITCHING + early)
        while data := await peer.reader.read(65536):
            await peer.send(data)

    async with speaking(behave, HANDSHAKE + early + b"y") as (side, _, _, _):
        side.writer.write(b"z")
        await side.head()
        assert await side.take(2 * len(early) + 2) == early + early + b"yz"


async def test_what_is_sent_while_the_answer_is_awaited_is_kept_within_bounds() -> None:
    answers = asyncio.Event()

    async def behave(peer: Peer) -> None:
        await peer.request()
        await answers.wait()
        await peer.send(SWITCHING)
        while data := await peer.reader.read(65536):
            await peer.send(data)

    async with speaking(behave) as (side, upstream, _, _):
        await upstream.received(1)
        sent = 0
        for _ in range(400):  # 40 MB: more than the kernel takes
            side.writer.write(NOISE)
            sent += len(NOISE)
        await asyncio.sleep(0)
        answers.set()
        await side.head()
        got = await side.take(sent)
        assert got == NOISE * 400


@pytest.mark.parametrize("behind", [b"", b"abc"], ids=["alone", "with bytes behind it"])
async def test_a_101_may_come_byte_by_byte(behind: bytes) -> None:
    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send_pieces(bytes([each]) for each in SWITCHING + behind)
        await peer.hang()

    async with speaking(behave) as (side, _, _, _):
        assert (await side.head()).startswith(b"HTTP/1.1 101 ")
        assert await side.take(len(behind)) == behind


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (426, b"HTTP/1.1 426 Upgrade Required\r\ncontent-length: 4\r\nsec-websocket-version: 12\r\n\r\nolds"),
        (200, b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + OK),
        (200, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nolds\r\n0\r\n\r\n"),
        (200, b"HTTP/1.0 200 OK\r\n\r\nlasts until its end"),
    ],
    ids=["426", "behind a 103", "chunked", "until its end"],
)
async def test_any_other_answer_is_passed_on_and_nothing_behind_it_is_read(status: int, answer: bytes) -> None:
    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send_pieces([answer[:3], answer[3:11], answer[11:]])

    behind = b"POST /payments HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n"
    async with speaking(behave, HANDSHAKE + behind) as (side, upstream, client, _):
        whole = await side.rest()
        assert whole.startswith(b"HTTP/1.1 %d " % status)
        assert b"\r\nconnection: close\r\n" in whole.lower()
        assert whole.count(b"HTTP/1.1") == 1
        assert upstream.arrivals == 1
        assert await open_tunnels(client) == 0


BAD = {
    "another key's digest": SWITCHING.replace(DIGEST, b64encode(bytes(20))),
    "no digest": re.sub(rb"Sec-WebSocket-Accept.*\r\n", b"", SWITCHING),
    "another protocol": SWITCHING.replace(b": websocket", b": h2c"),
    "no Upgrade": SWITCHING.replace(b"Upgrade: websocket\r\n", b""),
    "no Connection": SWITCHING.replace(b"Connection: Upgrade\r\n", b""),
    "a length": SWITCHING[:-2] + b"Content-Length: 3\r\n\r\nabc",
    "malformed": SWITCHING[:-2] + b"a b\r\n\r\n",
    "too long": SWITCHING[:-2] + b"a: " + b"b" * 70_000 + b"\r\n\r\n",
    "too long, and no end": SWITCHING[:-2] + b"a: " + b"b" * 70_000,
    "cut off": SWITCHING[:-4],
    "nothing": b"",
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
async def test_a_101_that_is_none_reaches_nobody(answer: bytes) -> None:
    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer + (b"smuggled" if answer.endswith(b"\r\n\r\n") else b""))
        if answer.endswith(b"\r\n\r\n") or len(answer) > 70_000:
            await peer.hang()

    async with speaking(behave) as (side, _, client, _):
        whole = await side.rest()
        assert whole.startswith(b"HTTP/1.1 502 ")
        assert b'"code":"upstream-failed"' in whole
        assert b"smuggled" not in whole
        assert await open_tunnels(client) == 0


BODY = b"Content-Length: 5\r\n"
REFUSED = {
    "with a body": HANDSHAKE.replace(b"Sec-WebSocket-V", BODY + b"Sec-WebSocket-V") + b"12345",
    "with chunks": HANDSHAKE.replace(b"Sec-WebSocket-V", b"Transfer-Encoding: chunked\r\nSec-WebSocket-V")
    + b"0\r\n\r\n",
    "by another method": HANDSHAKE.replace(b"GET", b"PUT"),
    "with another protocol beside it": HANDSHAKE.replace(b": WebSocket", b": h2c, websocket"),
    "in two fields": HANDSHAKE.replace(b"Upgrade: WebSocket\r\n", b"Upgrade: WebSocket\r\nUpgrade: h2c\r\n"),
    "without Connection": HANDSHAKE.replace(b", Upgrade\r\n", b"\r\n"),
}


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED)
async def test_what_is_no_handshake_is_refused(sent: bytes) -> None:
    async with speaking(echoing, sent) as (side, upstream, _, _):
        side.writer.write_eof()  # where it may be kept open
        whole = await side.rest()
        assert whole.startswith(b"HTTP/1.1 501 ")
        assert b'"code":"upgrade-unsupported"' in whole
        assert upstream.connections == 0


@pytest.mark.parametrize("more", [b"", b"Idempotency-Key: k\r\n"], ids=["without a key", "with a key"])
async def test_under_enforcement_it_is_refused(more: bytes) -> None:
    routes = [{"path": "/talk", "methods": ["GET"]}, {"path": "/other", "methods": ["GET"]}]
    async with speaking(echoing, HANDSHAKE[:-2] + more + b"\r\n", routes=routes) as (side, upstream, _, _):
        assert b'"code":"upgrade-unsupported"' in await side.rest()
        assert upstream.connections == 0


async def test_it_may_follow_other_requests_on_its_connection() -> None:
    async def behave(peer: Peer) -> None:
        if (await peer.request()).line.startswith("GET /a "):
            await peer.send(OK)
        else:
            await peer.send(SWITCHING)
            await peer.send(await peer.reader.readexactly(len(NOISE)))

    before = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
    async with speaking(behave, before * 2 + HANDSHAKE + NOISE) as (side, _, _, _):
        for _ in range(2):
            await side.head()
            assert await side.take(2) == b"ok"
        assert (await side.head()).startswith(b"HTTP/1.1 101 ")
        assert await side.take(len(NOISE)) == NOISE


async def test_no_answer_in_time_is_a_problem() -> None:
    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(SWITCHING[:20])
        await peer.hang()

    async with speaking(behave, idempotency={"response_timeout": 0.1}) as (side, upstream, _, _):
        assert b'"code":"upstream-timeout"' in await side.rest()
        await upstream.gone()


async def test_a_client_that_leaves_before_the_answer_ends_it() -> None:
    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.hang()

    async with speaking(behave, HANDSHAKE + b"abc") as (side, upstream, _, _):
        await upstream.received(1)
        reset(side.writer)
        await upstream.gone()


# -- bounds -----------------------------------------------------------------------------------------------------------------


FLOOD = 128 * 1024 * 1024
HELD = 32 * 1024 * 1024
"""More than kernels hold of it: four buffers of at most six megabytes."""


@pytest.mark.parametrize("towards", ["client", "upstream"])
async def test_who_does_not_read_holds_up_who_sends(towards: str) -> None:
    flood, reads, counted = Flood(FLOOD), asyncio.Event(), asyncio.get_running_loop().create_future()

    async def swallow(reader: asyncio.StreamReader) -> int:
        size = 0
        while data := await reader.read(1 << 20):
            size += len(data)
        return size

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(SWITCHING)
        if towards == "client":
            await flood.pour(peer.writer)
            await peer.hang()
        else:
            await reads.wait()
            counted.set_result(await swallow(peer.reader))

    async with speaking(behave) as (side, _, client, _):
        await side.head()
        pouring = asyncio.ensure_future(flood.pour(side.writer)) if towards == "upstream" else None
        assert await flood.stuck() < HELD
        assert await metric(client, "unread_bytes") > 0
        reads.set()
        assert await within(swallow(side.reader) if towards == "client" else counted) == FLOOD
        if pouring is not None:
            await pouring
        await until(client, "unread_bytes", lambda held: held == 0)


async def test_who_does_not_read_loses_the_tunnel_where_too_much_waits() -> None:
    flood = Flood(FLOOD)

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(SWITCHING)
        await flood.pour(peer.writer)

    async with speaking(behave, max_unread=1024) as (side, _, client, _):
        await side.head()
        await until(client, "readers_dropped_total", lambda count: count == 1)
        await until(client, "tunnels", lambda count: count == 0)
        assert flood.sent < FLOOD


# -- ends -------------------------------------------------------------------------------------------------------------------


async def test_an_end_comes_behind_what_was_sent_before() -> None:
    """Of either side; the other one may still send, which is passed on."""

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(SWITCHING)
        everything = await peer.reader.read()
        await peer.send(everything * 2)

    async with speaking(behave) as (side, upstream, client, _):
        await side.head()
        side.writer.write(NOISE)
        side.writer.write_eof()
        assert await side.rest() == NOISE * 2
        await until(client, "tunnels", lambda count: count == 0)
        assert upstream.connections == 1


@pytest.mark.parametrize("who", ["client", "upstream"])
async def test_who_breaks_off_ends_it_for_the_other(who: str) -> None:
    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(SWITCHING)
        if who == "upstream":
            await peer.reader.readexactly(1)
            peer.reset()
        await peer.hang()

    async with speaking(behave) as (side, upstream, client, _):
        await side.head()
        if who == "client":
            reset(side.writer)
            await upstream.gone()
        else:
            side.writer.write(b"x")
            assert await side.rest() == b""
        side.writer.close()
        await until(client, "tunnels", lambda count: count == 0)


async def test_nothing_is_left_to_collect() -> None:
    """The collector runs rarely: a gateway's requests leave no cycles."""
    kinds = (tunnel.Tunnel, tunnel.TunnelEnd, InboundConnection, UpstreamConnection, InboundRequest)

    def only_the_client_is_left() -> bool:
        # The client keeps the connection by which it asks for metrics. Its last request can end after the answer has arrived.
        left = [each for each in gc.get_objects() if isinstance(each, kinds)]
        return len(left) <= 1 and all(type(each) is InboundConnection for each in left)

    async with Upstream(echoing) as upstream, served(upstream.url) as (client, _):
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                side = Side(*await asyncio.open_connection("127.0.0.1", client.base_url.port))
                side.writer.write(HANDSHAKE)
                await side.head()
                side.writer.close()
            await until(client, "tunnels", lambda count: count == 0)
            await condition(only_the_client_is_left, "a gateway without cycles")
        finally:
            gc.enable()


async def test_one_that_carries_nothing_ends_in_order() -> None:
    limit, loop = 0.5, asyncio.get_running_loop()
    async with speaking(echoing, tunnel_timeout=limit) as (side, _, client, _):
        await side.head()
        for _ in range(3):
            side.writer.write(b"ping")
            began = loop.time()
            assert await side.take(4) == b"ping"
        assert await side.rest() == b""
        assert loop.time() - began >= limit
        side.writer.close()
        await until(client, "tunnels", lambda count: count == 0)


async def test_one_side_that_has_ended_does_not_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "HALF_CLOSED_SECONDS", 0.1)
    monkeypatch.setattr(tunnel, "ENDING_SECONDS", 0.1)

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(SWITCHING)
        peer.writer.write_eof()
        await peer.hang()

    async with speaking(behave) as (side, upstream, client, _):
        await side.head()
        assert await side.rest() == b""  # and sends no end of its own
        await until(client, "tunnels", lambda count: count == 0)
        await upstream.gone()


async def closing(side: Side) -> bytes:
    """What comes until the end; then it closes, too."""
    try:
        return await side.rest()
    finally:
        side.writer.close()


async def test_a_stop_ends_them_in_order() -> None:
    """What was read is flushed, both see an end and no reset, and the server ends by itself."""
    ended = asyncio.Event()

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(SWITCHING + NOISE)
        assert await peer.reader.read() == b"abc"
        ended.set()

    async with Upstream(behave) as upstream:
        sides = []
        async with served(upstream.url) as (client, _):
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
                writer.write(HANDSHAKE + b"abc")
                sides.append(Side(reader, writer))
                await sides[-1].head()
            await until(client, "tunnels", lambda count: count == 20)
            ending = [asyncio.create_task(closing(side)) for side in sides]
        for task in ending:
            assert await within(task) == NOISE
        await within(ended.wait())


async def test_a_stop_resets_nobody_who_still_sends() -> None:
    """What they send is read until they close: a connection that is closed with something unread is reset."""
    reads, flood = asyncio.Event(), Flood(FLOOD)

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(SWITCHING + NOISE)
        await reads.wait()
        await peer.hang()

    async with Upstream(behave) as upstream:
        async with served(upstream.url) as (client, _):
            side = Side(*await asyncio.open_connection("127.0.0.1", client.base_url.port))
            side.writer.write(HANDSHAKE)
            await side.head()
            pouring = asyncio.create_task(flood.pour(side.writer))
            await flood.stuck()
            ending = asyncio.create_task(closing(side))
            asyncio.get_running_loop().call_later(0.1, reads.set)
        assert await ending == NOISE
        await asyncio.gather(pouring, return_exceptions=True)
        await upstream.gone()


async def test_one_that_is_agreed_to_while_the_server_stops_ends_at_once() -> None:
    answers = asyncio.Event()

    async def behave(peer: Peer) -> None:
        await peer.request()
        await answers.wait()
        await peer.send(SWITCHING + b"abc")
        await peer.hang()

    async with Upstream(behave) as upstream:
        async with served(upstream.url) as (client, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            writer.write(HANDSHAKE)
            await upstream.received(1)
            asyncio.get_running_loop().call_later(0.05, answers.set)
            ending = asyncio.create_task(within(reader.read()))
            ending.add_done_callback(lambda _: writer.close())
        assert (await ending).endswith(b"\r\n\r\nabc")


async def test_a_side_that_never_closes_does_not_hold_up_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "ENDING_SECONDS", 0.1)
    async with Upstream(echoing) as upstream:
        async with served(upstream.url) as (client, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            writer.write(HANDSHAKE)
            await within(reader.readuntil(b"\r\n\r\n"))
        assert await within(reader.read()) == b""
        writer.close()


async def test_to_an_upstream_over_tls_and_over_a_socket(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    for upstream in (Upstream(echoing, tls=context), Upstream(echoing, path=tmp_path / "socket")):
        async with upstream, served(upstream.url, upstream_ca=str(tmp_path / "ca.pem")) as (client, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            side = Side(reader, writer)
            writer.write(HANDSHAKE + NOISE)
            await side.head()
            assert await side.take(len(NOISE)) == NOISE
            writer.close()
            await until(client, "tunnels", lambda count: count == 0)
