"""How long a client's connection may last in each of its phases, and what must never end one that does nothing wrong.

Rules of docs/contract.md: R9.10, R9.13.
"""

import asyncio

import pytest

from oncegate.app.server import connection as inbound
from oncegate.app.server.connection import InboundConnection
from oncegate.middleware.http.asgi import Receive, Scope, Send
from testing.listening import CLOSE, GET, Heeding, echo, head, piece, serving

pytestmark = pytest.mark.both_loops

POST = b"POST /posted HTTP/1.1\r\nhost: a\r\n"
LARGE = 8_000_000


async def slow(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(0.5)  # longer than a head may take, in the test of half a head
    await echo(scope, receive, send)


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    await send(head(content_length=LARGE))
    await send(piece(b"x" * LARGE))


async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
    await send(head(400, content_length=0))
    await send(piece())


async def test_the_time_for_a_head_does_not_end_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "HEAD_SECONDS", 4.0)  # longer than a machine stands still

    async def lasting(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(4.5)  # longer than the time for a head
        await echo(scope, receive, send)

    async with serving(lasting) as (reader, writer):
        writer.write(CLOSE[:20])
        await asyncio.sleep(0.05)
        writer.write(CLOSE[20:])
        assert (await reader.read()).endswith(b"/last ")


async def test_half_a_head_behind_others_does_not_take_away_their_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "HEAD_SECONDS", 0.2)
    async with serving(slow) as (reader, writer):
        writer.write(GET % b"one" + GET % b"two" + CLOSE[:20])
        got = await reader.read()  # once they are answered, the rest of the head has its time, and no longer
    assert got.count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize(
    "before", [b"", b"\r\n", GET % b"one"], ids=["first", "behind an empty line", "behind another"]
)
async def test_a_head_that_has_begun_has_less_time_than_an_idle_connection(
    monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    monkeypatch.setattr(inbound, "HEAD_SECONDS", 0.2)
    async with serving(echo) as (reader, writer):
        writer.write(before)
        if before.strip():
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len(b"/one "))
        for octet in CLOSE[:5]:
            writer.write(bytes([octet]))
            await asyncio.sleep(0.01)
        assert b" 408 " in await reader.read()


async def test_a_connection_is_idle_once_its_client_has_taken_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(large) as (reader, writer):
        writer.write(GET % b"")
        await reader.readuntil(b"\r\n\r\n")
        monkeypatch.setattr(inbound, "KEEP_ALIVE_SECONDS", 0.3)  # not yet, while its request was to come
        await reader.readexactly(LARGE)
        assert await reader.read() == b""


@pytest.mark.parametrize("sends_eof", [False, True])
async def test_a_client_that_does_not_take_its_last_response_is_dropped(
    monkeypatch: pytest.MonkeyPatch, sends_eof: bool
) -> None:
    monkeypatch.setattr(inbound, "STALL_SECONDS", 0.2)
    dropped = asyncio.Event()
    lost = InboundConnection.connection_lost

    def connection_lost(self: InboundConnection, exc: Exception | None) -> None:
        lost(self, exc)
        dropped.set()

    monkeypatch.setattr(InboundConnection, "connection_lost", connection_lost)
    async with serving(large) as (_, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # not in typeshed's class
        writer.write(GET % b"" if sends_eof else CLOSE)
        if sends_eof:
            writer.write_eof()
        await dropped.wait()


async def test_an_upload_may_take_its_time_while_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(inbound, "STALL_SECONDS", 4.0)  # longer than a machine stands still
    async with serving(echo) as (reader, writer):
        writer.write(POST + b"content-length: 8\r\nconnection: close\r\n\r\n")
        for _ in range(8):
            await asyncio.sleep(0.6)  # in all longer than it may stand still
            writer.write(b"x")
        assert (await reader.read()).endswith(b"/posted xxxxxxxx")


async def test_an_upload_that_does_not_go_on_is_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "STALL_SECONDS", 0.2)
    app = Heeding()
    async with serving(app) as (reader, writer):
        writer.write(POST + b"content-length: 8\r\n\r\nhalf")
        assert await reader.read() == b""
    assert app.received == ["http.request", "http.disconnect"]


async def test_an_upload_that_waits_for_us_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "STALL_SECONDS", 0.5)

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(1.2)  # its client waits for us for longer than it may stand still
        monkeypatch.setattr(inbound, "STALL_SECONDS", 60.0)  # from its next look on: now we wait for the client
        await asyncio.sleep(0.8)  # past the next look
        await echo(scope, receive, send)

    async with serving(late) as (reader, writer):
        writer.write(POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % LARGE + b"x" * LARGE)
        body = (await reader.read()).partition(b"\r\n\r\n")[2]
    assert len(body) == len("/posted ") + LARGE


async def test_a_request_whose_body_turns_out_malformed_is_never_begun() -> None:
    begun: list[str] = []

    async def slowly(scope: Scope, receive: Receive, send: Send) -> None:
        begun.append(scope["path"])
        await slow(scope, receive, send)

    async with serving(slowly) as (reader, writer):
        writer.write(GET % b"one" + POST + b"transfer-encoding: chunked\r\n\r\n3\r\nabcXX\r\n")
        assert (await reader.read()).endswith(b"/one ")
    assert begun == ["/one"]


async def test_nothing_is_said_behind_an_answer_that_came_before_the_end_of_its_request() -> None:
    async with serving(refusing) as (reader, writer):
        writer.write(POST + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"malformed\r\n")
        assert await reader.read() == b""


async def test_a_client_that_was_not_told_to_go_on_can_only_begin_anew() -> None:
    # Its next request would be taken for the body, or its body for the next request, by whoever guesses wrong.
    async with serving(refusing) as (reader, writer):
        writer.write(POST + b"expect: 100-continue\r\ncontent-length: 40\r\n\r\n")
        got = await reader.read()
    assert got.endswith(b"connection: close\r\n\r\n")


@pytest.mark.parametrize(("version", "continues"), [(b"1.0", 0), (b"1.1", 1)])
async def test_only_a_client_that_knows_of_it_is_told_to_go_on(version: bytes, continues: int) -> None:
    async with serving(echo) as (reader, writer):
        writer.write(
            b"POST / HTTP/%b\r\nhost: a\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n"
            % version
        )
        await asyncio.sleep(0.05)
        writer.write(b"a")
        got = await reader.read()
    assert got.count(b"HTTP/1.1 100 Continue\r\n\r\n") == continues
    assert got.endswith(b"/ a")
