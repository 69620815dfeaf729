"""Calls about HTTP/1.1, for `tests.builds.driver`.

Connections are handed their bytes, and their transports keep what is written.
"""

import asyncio
import socket
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from uvicorn.server import ServerState

from oncegate.app.http1 import RequestWriter, TrustedPeers
from oncegate.app.server.connection import InboundConnection
from oncegate.app.upstream.connection import UpstreamConnection
from oncegate.app.upstream.response import ResponseReader

PROPERTIES = (
    "status",
    "headers",
    "head.has_date",
    "head.sent",
    "complete",
    "failure",
    "surplus",
    "persistent",
    "head.idle_timeout",
    "buffered",
)
"""What a `ResponseReader` shows of the response that it reads."""


class Wire(asyncio.Transport):
    """A transport that keeps what happens to it. ``breaks_at``: writing fails from that write on."""

    def __init__(self, channel: socket.socket, breaks_at: int = 10**9) -> None:
        super().__init__({"socket": channel})
        self.seen: list[Any] = []
        self._left = breaks_at
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("broken")
        self.seen.append(bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True
        self.seen.append("close")

    def abort(self) -> None:
        self._closing = True
        self.seen.append("abort")

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.seen.append("eof")

    def pause_reading(self) -> None:
        self.seen.append("pause")

    def resume_reading(self) -> None:
        self.seen.append("resume")

    def get_write_buffer_size(self) -> int:
        return 0


async def _turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def _answer(seen: list[Any], scope: Any, receive: Any, send: Any) -> None:
    details = {name: value for name, value in scope.items() if name not in ("server", "client")}
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            seen.append((details, "left"))
            return
        body += message["body"]
        more = message["more_body"]
    seen.append((details, body))
    if body.startswith(b"raise"):
        raise ValueError("as asked")
    if body.startswith(b"nothi"):
        return
    headers = [(b"x-length", b"%d" % len(body))]
    if not body.startswith(b"strea"):
        headers.append((b"content-length", b"%d" % (len(body) + body.startswith(b"short"))))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body[:3], "more_body": True})
    await send({"type": "http.response.body", "body": body[3:]})


async def inbound(pieces: list[bytes], breaks_at: int, stops: bool) -> Any:
    """What is written for a client's bytes, and what the app saw of its requests."""
    seen: list[Any] = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire = Wire(ours, breaks_at)
        config: Any = SimpleNamespace(loaded_app=partial(_answer, seen))
        connection = InboundConnection(config, ServerState(), {})
        connection.connection_made(wire)
        for piece in pieces:
            if wire.is_closing():
                break
            connection.data_received(piece)
            await _turns(2)
        if stops:
            connection.shutdown()
        await _turns(12)
        if not wire.is_closing():
            connection.eof_received()
        connection.connection_lost(None)
        await _turns(6)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    return seen, wire.seen, len(left)


def response(exchanges: list[tuple[bool, list[bytes], bool]]) -> Any:
    """What a reader says at each piece of responses that come one after the other."""
    reader = ResponseReader()
    states: list[Any] = []
    for is_head, pieces, ends in exchanges:
        reader.expect(is_head=is_head)
        for piece in pieces:
            reader.feed(piece)
            states.append([attrgetter(name)(reader) for name in PROPERTIES])
        if ends:
            reader.feed_eof()
            states.append([attrgetter(name)(reader) for name in PROPERTIES])
        states.append(reader.take())
    reader.release()
    reader.feed(b"more")
    return states


async def connection(is_head: bool, pieces: list[bytes], how: str, breaks_at: int) -> Any:
    """What a connection to the upstream gives of a response that comes in pieces, and ends in some way."""
    ours, theirs = socket.socketpair()
    outcomes: list[Any] = []
    with ours, theirs:
        wire = Wire(ours, breaks_at)
        there = UpstreamConnection("upstream")
        there.connection_made(wire)
        outcomes.append(there.is_stale())
        there.begin(is_head=is_head)
        there.write(b"head", b"body")
        news: list[int] = []
        if how == "then":
            there.then = SimpleNamespace(on_response=lambda: news.append(there.response.buffered))
        reading = asyncio.get_running_loop().create_task(_read(there))
        for piece in pieces:
            there.data_received(piece)
            outcomes.append((there.is_soon_whole, there.error is not None))
            await _turns(2)
        if how == "forget":
            there.then = SimpleNamespace(on_response=news.clear)
            there.forget()
        if how != "lost":
            there.eof_received()
        there.connection_lost(ConnectionResetError() if how == "reset" else None)
        there.then = None
        there.resume_writing()
        await _turns(4)
        reading.cancel()
        ended = await asyncio.gather(reading, return_exceptions=True)
        outcomes += [
            repr(ended),
            there.finish(),
            there.is_stale(),
            there.lost,
            there.closed.done(),
            there.is_full,
            news,
        ]
    return outcomes, wire.seen


async def _read(there: UpstreamConnection) -> list[Any]:
    given: list[Any] = []
    try:
        await there.head()
        given += [there.response.status, list(there.response.headers)]
        while piece := await there.read():
            given.append(piece)
    except Exception as error:
        given.append(f"{type(error).__name__}: {error}")
    return given


def head(scope: dict[str, Any], trusted: list[str], names: list[str], body: bytes, more: bool) -> Any:
    """The request that goes out for a scope."""
    written = RequestWriter(b"/base", b"upstream:80", TrustedPeers(trusted), names).head(scope)
    return written, written.framed(body, more)
