"""The server's side of a client's connection: framing, order, what an app leaves undone, and clients that take nothing.

Rules of docs/contract.md: R9.10, R9.13.
"""

import asyncio

import pytest

from oncegate.app.server import connection as inbound
from oncegate.middleware.http.asgi import Message, Receive, Scope, Send
from testing.listening import CLOSE, GET, echo, head, piece, serving
from testing.upstreams import PATIENCE, reset

pytestmark = pytest.mark.both_loops


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    post = b"POST /posted HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    async with serving(echo) as (reader, writer):
        writer.write(GET % b"one" + post + GET % b"three" + CLOSE)
        answers = (await reader.read()).split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [answer.partition(b"\r\n\r\n")[2] for answer in answers] == [
        b"/one ",
        b"/posted abcde",
        b"/three ",
        b"/last ",
    ]
    assert [b"connection: close" in answer for answer in answers] == [False, False, False, True]


async def test_a_long_burst_is_answered_in_its_order_and_whole() -> None:
    """Twice what one read brings: parsed in pieces, each of which ends somewhere within a request."""
    number = 512 * 1024 // len(GET % bytes(100))
    burst = b"".join(GET % b"%0100d" % each for each in range(number))
    body = bytes(range(256)) * 1200
    post = b"POST /posted HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    async with serving(echo) as (reader, writer):
        writer.write(burst + post + CLOSE)
        answers = (await reader.read()).split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [answer.partition(b"\r\n\r\n")[2] for answer in answers] == [
        *(b"/%0100d " % each for each in range(number)),
        b"/posted " + body,
        b"/last ",
    ]


async def test_what_is_malformed_does_not_take_away_the_answer_before_it() -> None:
    go_on = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await go_on.wait()
        await echo(scope, receive, send)

    async with serving(slow) as (reader, writer):
        writer.write(GET % b"good" + GET % b"waiting" + b"NONSENSE\r\n\r\n" + GET % b"behind")
        await asyncio.sleep(0)
        go_on.set()
        got = await reader.read()
    assert got.count(b"HTTP/1.1") == 2
    assert got.startswith(b"HTTP/1.1 200 OK")
    assert got.endswith(b"connection: close\r\n\r\n/waiting ")


async def test_a_head_is_shown_at_once_where_its_body_is_late() -> None:
    go_on = asyncio.Event()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await send(head(content_length=4))
        await go_on.wait()
        await send(piece(b"late"))

    async with serving(late) as (reader, writer):
        writer.write(GET % b"")
        reading = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        shown, _ = await asyncio.wait([reading], timeout=PATIENCE / 2)
        go_on.set()
        assert b"content-length: 4\r\n" in await reading
        assert await reader.readexactly(4) == b"late"
    assert shown, "the head waited for its body"


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_body_without_a_length_ends_as_its_version_can_tell(version: bytes) -> None:
    async def unframed(scope: Scope, receive: Receive, send: Send) -> None:
        await send(head())
        await send(piece(b"abc", more=True))
        await send(piece(more=True))
        await send(piece(b"de"))

    async with serving(unframed) as (reader, writer):
        writer.write(b"GET / HTTP/%b\r\nhost: a\r\nconnection: close\r\n\r\n" % version)
        fields, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert body == (b"abcde" if version == b"1.0" else b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    assert (b"transfer-encoding: chunked" in fields) == (version == b"1.1")


async def test_an_app_ends_the_connection_and_has_no_say_in_the_coding() -> None:
    async def framed(scope: Scope, receive: Receive, send: Send) -> None:
        await send(head(transfer_encoding="chunked", connection="X, Close", content_length=2, x="y"))
        await send(piece(b"ok"))

    async with serving(framed) as (reader, writer):
        writer.write(GET % b"" + GET % b"behind")
        got = await reader.read()
    assert got == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx: y\r\nconnection: close\r\n\r\nok"


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_a_response_without_content_ends_with_its_head(method: str, status: int) -> None:
    async def empty(scope: Scope, receive: Receive, send: Send) -> None:
        await send(head(status, content_length=10) if method == "HEAD" else head(status))
        await send(piece(b"0123456789" if method == "HEAD" else b""))

    async with serving(empty) as (reader, writer):
        writer.write(method.encode() + b" / HTTP/1.1\r\nhost: a\r\n\r\n" + CLOSE.replace(b"GET", method.encode()))
        got = await reader.read()
    assert got.count(b"HTTP/1.1 %d" % status) == 2
    assert got.endswith(b"\r\n\r\n")
    assert b"chunked" not in got


ERROR_500 = b"HTTP/1.1 500 Internal Server Error\r\n"


@pytest.mark.parametrize(
    ("messages", "answer"),
    [
        ([], ERROR_500),
        ([piece(b"out of turn")], ERROR_500),
        ([head(x="a\r\nset-cookie: b")], ERROR_500),
        ([head(x="a\nset-cookie: b")], ERROR_500),
        ([head(x="a\rset-cookie: b")], ERROR_500),
        ([head(x="a\0set-cookie: b")], ERROR_500),
        ([head(content_length="many")], ERROR_500),
        ([head(content_length=3)], b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n"),
        ([head(content_length=3), piece(b"abcd")], b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n"),
        ([head(content_length=3), piece(b"ab")], b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n"),
        ([head(), piece(b"abc", more=True)], b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"),
    ],
)
@pytest.mark.parametrize("raises", [False, True])
async def test_a_response_that_an_app_leaves_undone_closes_the_connection(
    messages: list[Message], answer: bytes, raises: bool
) -> None:
    async def undone(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)
        if raises:
            raise LookupError

    async with serving(undone) as (reader, writer):
        writer.write(GET % b"" + GET % b"behind")
        got = await reader.read()
    assert got.startswith(answer)
    assert got.count(b"HTTP/1.1") == 1
    assert b"set-cookie" not in got


async def test_an_app_hears_of_a_client_that_leaves_and_may_still_send() -> None:
    received: list[str] = []
    begun, ended = asyncio.Event(), asyncio.Event()

    async def patient(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        received.extend([(await receive())["type"], (await receive())["type"]])
        await send(head())
        await send(piece(b"for nobody"))
        ended.set()

    async with serving(patient) as (_, writer):
        writer.write(GET % b"")
        await begun.wait()
        reset(writer)  # one who only says no more may still be there
        await ended.wait()
    assert received == ["http.request", "http.disconnect"]


async def test_a_large_upload_waits_for_the_app_to_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "HIGH_WATER", 1000)
    sizes: list[int] = []

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            await asyncio.sleep(0.001)
            message = await receive()
            sizes.append(len(message["body"]))
            more = message["more_body"]
        await send(head(content_length=0))
        await send(piece())

    async with serving(counting) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5000000\r\n\r\n" + b"x" * 5_000_000)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert sum(sizes) == 5_000_000
    assert max(sizes) < 1_000_000  # one read of the event loop's, on top of what may wait


async def test_a_client_that_takes_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "STALL_SECONDS", 0.2)
    sent = asyncio.Event()

    async def long(scope: Scope, receive: Receive, send: Send) -> None:
        await send(head())
        for _ in range(300):
            await send(piece(b"x" * 100_000, more=True))
        sent.set()

    async with serving(long) as (_, writer):
        writer.write(CLOSE)
        await sent.wait()  # once it is dropped, what is sent goes nowhere, and so is not held up


async def test_a_client_that_takes_a_little_now_and_then_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "STALL_SECONDS", 4.0)  # longer than a machine stands still
    # One piece that takes longer than that as a whole: writing is paused from its first byte to nearly its last.

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await send(head(content_length=8_000_000))
        await send(piece(b"x" * 8_000_000))

    async with serving(large) as (reader, writer):
        writer.write(CLOSE)
        begun = asyncio.get_running_loop().time()
        await reader.readuntil(b"\r\n\r\n")
        got = 0
        while asyncio.get_running_loop().time() < begun + 5:
            got += len(await reader.read(32768))
            await asyncio.sleep(0.05)
        while chunk := await reader.read(65536):
            got += len(chunk)
    assert got == 8_000_000
