"""What a replay carries, what isn't stored, and that the record is complete before the last byte leaves.

Rules of docs/contract.md: R3.11, R3.12, R3.13, R3.14, R3.16, R4.6.
"""

import asyncio
import gzip
from typing import Any

import pytest

from oncegate.cache.record import State
from oncegate.middleware.rules.headers.added_headers import ON_REPLAYS
from testing.asgi_client import Client
from testing.waiting import until
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering, Call, Door


def upstreams(call: Client) -> list[tuple[bytes, bytes]]:
    return [line for line in call.headers if line[0] not in ON_REPLAYS]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        pytest.param(201, bytes(range(256)) * 3, id="binary"),
        pytest.param(200, gzip.compress(b"text" * 99), id="compressed"),
        pytest.param(201, b"", id="empty"),
        pytest.param(204, b"", id="no content"),
        pytest.param(303, b"see other", id="redirect"),
        pytest.param(200, b'{"id": 1234567890123456789, "rate": 1.10, "list": []}', id="digits of JSON"),
    ],
)
async def test_replay_is_byte_for_byte(door: MakeDoor, status: int, body: bytes) -> None:
    lines = [
        (b"content-length", b"%d" % len(body)),
        (b"link", b"<a>; rel=next"),
        (b"x-latin", b"caf\xe9"),
        (b"link", b"<b>; rel=prev"),
        (b"X-Upper", b"Kept In Case"),
        (b"vary", b""),
        (b"link", b"<a>; rel=next"),
    ]
    app = Answering(status, body=body, headers=lines)
    there = door(app)
    first, replay = await there.send(), await there.send()
    assert replay.replayed
    assert (replay.status, replay.body) == (first.status, first.body) == (status, body)
    assert upstreams(replay) == upstreams(first) == [(name.lower(), value) for name, value in lines]
    assert app.calls == 1


@pytest.mark.parametrize(
    "line",
    [
        b"Connection: keep-alive",
        b"Keep-Alive: timeout=5",
        b"Proxy-Connection: close",
        b"Proxy-Authenticate: Basic",
        b"TE: trailers",
        b"Trailer: x-sum",
        b"Transfer-Encoding: chunked",
        b"Upgrade: h2c",
        b"Date: Mon, 01 Jan 2024 00:00:00 GMT",
        b"Set-Cookie: session=secret",
    ],
)
async def test_not_stored(door: MakeDoor, line: bytes) -> None:
    name, _, value = line.partition(b": ")
    there = door(Answering(201, headers=[(name, value), (name, value), (b"x-kept", b"1")]))
    first, replay = await there.send(), await there.send()
    assert first.values(name.lower()) == [value, value], "its own client gets it"
    assert upstreams(replay) == [(b"x-kept", b"1")]


async def test_not_stored_is_what_connection_nominates(door: MakeDoor) -> None:
    lines = [(b"Connection", b"X-One, x-two"), (b"x-one", b"1"), (b"connection", b" X-THREE "), (b"x-two", b"2")]
    there = door(Answering(201, headers=[*lines, (b"x-three", b"3"), (b"x-four", b"4")]))
    await there.send()
    assert upstreams(await there.send()) == [(b"x-four", b"4")]


async def test_not_stored_is_what_drop_headers_adds(door: MakeDoor) -> None:
    there = door(Answering(201, headers=[(b"X-Trace", b"1"), (b"x-kept", b"2")]), drop_headers=["x-TRACE"])
    assert (await there.send()).value("x-trace") == "1"
    assert upstreams(await there.send()) == [(b"x-kept", b"2")]


def streaming(*chunks: bytes, status: int = 201, length: bytes | None = None) -> Any:
    headers = [] if length is None else [(b"Content-Length", length)]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await others_go_on()
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await others_go_on()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


async def others_go_on() -> None:
    """Whoever relays the response may get ahead of the app here."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_replay_of_a_streamed_response_holds_every_chunk(door: MakeDoor) -> None:
    there = door(streaming(b"one", b"", b"two", b"three"))
    assert (await there.send()).body == b"onetwothree"
    assert (await there.send()).body == b"onetwothree"


class Late:
    """An app whose body comes when it is told to go on."""

    def __init__(self, *headers: tuple[bytes, bytes]) -> None:
        self.headers = headers
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": self.headers})
        self.begun.set()
        await self.go_on.wait()
        await send({"type": "http.response.body", "body": b"late"})


@pytest.mark.parametrize("headers", [(), ((b"content-length", b"1000000"),)], ids=["of any length", "long"])
async def test_head_is_shown_at_once_where_its_body_is_late(
    door: MakeDoor, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    app = Late(*headers)
    call = door(app).begin()
    await app.begun.wait()
    await others_go_on()
    shown = call.status
    app.go_on.set()
    assert (await call.answered()).body == b"late"
    assert shown == 201, "the head waited for its body"


@pytest.mark.parametrize("lease", [0.3, 60.0])
async def test_head_of_a_short_response_waits_for_its_body_until_it_lasts(door: MakeDoor, lease: float) -> None:
    app = Late((b"content-length", b"4"))
    call = door(app, lease=lease).begin()
    await app.begun.wait()
    await others_go_on()
    if lease < 1:  # a third of it is soon over
        await until(lambda: call.status == 201)
    else:
        assert not call.status
    app.go_on.set()
    answer = await call.answered()
    assert (answer.status, answer.body) == (201, b"late")


class Watching(Call):
    """A client that looks at the record whenever something reaches it."""

    there: Door
    seen: list[tuple[bytes, State]]

    async def send(self, message: dict[str, Any]) -> None:
        await super().send(message)
        self.seen.append((self.body, await self.there.state()))


async def watched(there: Door) -> Watching:
    call = Watching("POST", b"/payments", [(b"idempotency-key", b"k-1")])
    call.there, call.seen = there, []
    call.go(there.middleware)
    await call.answered()
    return call


@pytest.mark.parametrize(
    ("app", "body", "bytes_end_it"),
    [
        pytest.param(Answering(201, body=b"abc"), b"abc", False, id="in one message"),
        pytest.param(streaming(b"a", b"bc"), b"abc", False, id="chunked"),
        pytest.param(streaming(b"a", b"bc", length=b"3"), b"abc", True, id="of a declared length"),
        pytest.param(streaming(length=b"0"), b"", True, id="of declared length 0"),
        pytest.param(streaming(status=204), b"", True, id="without a body by its status"),
    ],
)
async def test_record_is_complete_before_the_last_byte_leaves(
    door: MakeDoor, app: Any, body: bytes, bytes_end_it: bool
) -> None:
    """The last byte is the one that tells the client that the response is whole, be it by length or by an end of chunks."""
    call = await watched(door(app))
    whole = [state for seen, state in call.seen if bytes_end_it and seen == body]
    assert call.body == body
    assert {*whole, call.seen[-1][1]} == {State.SUCCEEDED}


async def test_oversize_response_reaches_its_client_whole(door: MakeDoor) -> None:
    body = bytes(range(256)) * 1024
    there = door(streaming(*[body[at : at + 5000] for at in range(0, len(body), 5000)]), max_result=1000)
    assert (await there.send()).body == body
    record = await there.record()
    assert record.response is not None
    assert record.response.body is None


async def test_oversize_retry_is_a_duplicate_without_the_body(door: MakeDoor) -> None:
    app = Answering(201, body=b"x" * 1001, headers=[(b"location", b"/payments/1")])
    there = door(app, max_result=1000)
    first = await there.send()
    assert (first.value("cache-status"), len(first.body)) == ("oncegate; fwd=miss; stored; ttl=86400", 1001)
    retry = await there.send()
    assert (retry.status, retry.code, retry.problem["retryable"]) == (409, "duplicate", False)
    original = retry.problem["original_result"]
    assert original["body_omitted"] is True
    assert "body" not in original
    assert (original["status"], original["headers"]) == (201, [["location", "/payments/1"]])
    assert app.calls == 1


async def test_response_of_exactly_the_cap_is_kept(door: MakeDoor) -> None:
    there = door(Answering(201, body=b"x" * 1000), max_result=1000)
    await there.send()
    assert (await there.send()).body == b"x" * 1000
