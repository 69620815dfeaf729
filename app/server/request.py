"""One client's request and its response: ASGI's ``receive`` and ``send`` of the gateway's server.

The head of a response waits for its first piece of body, so that both are one write; it waits no longer than the event loop's
next round, so that a stream whose first piece is late still sends its head at once. What is sent to a client that has left is
dropped silently: the app learns of it by ``http.disconnect``.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from oncegate.app.field_lines import line_of
from oncegate.app.last_head import LastHead
from oncegate.app.server.channel import Channel
from oncegate.cache.fields import BODILESS, fields_of
from oncegate.middleware.http.asgi import Message, respond
from oncegate.middleware.rules.headers.request_id import ids
from oncegate.middleware.rules.keys.key import LastCaller

if TYPE_CHECKING:
    from oncegate.app.server.connection import InboundConnection

log = logging.getLogger("oncegate.inbound")

_ONE_WRITE: Final = 65536
"""Above it, copying a body behind its head costs more than a second write."""
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
_STATUS_LINES: Final = [f"HTTP/1.1 {status} {_PHRASES.get(status, '')}".encode() for status in range(600)]
_FRAMING: Final = frozenset({b"connection", b"content-length", b"transfer-encoding"})
_HAS_NO_BODY: Final = [
    status in BODILESS for status in range(600)
]  # compiled, a set of numbers makes an object of each
Headers = list[tuple[bytes, bytes]]
# Numbers: given bytes, ``in`` first tries them as a number, and the error that this raises costs more than the search.
_LF: Final = 10
_CR: Final = 13
_NUL: Final = 0
_GO_AHEAD: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_FAILED: Final = (
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 21\r\n"
    b"connection: close\r\n\r\nInternal Server Error"
)


class InboundRequest:
    """``upgrades``: it requests a WebSocket. ``fields`` are its header fields by name, the last one where a name comes twice.

    ``begun``: something of the response may have been written; ``gone``: the client has left. ``keep_alive``: the connection may
    carry another request behind it; ``expects_go_ahead``: its client waits for a ``100 Continue``. ``caller`` is who sent the
    request before on its connection, where that is known.
    """

    __slots__ = (
        "_body",
        "_chunked",
        "_complete",
        "_connection",
        "_head",
        "_is_head",
        "_left",
        "_more",
        "_news",
        "begun",
        "caller",
        "expects_go_ahead",
        "fields",
        "gone",
        "is_whole",
        "keep_alive",
        "loop",
        "on_end",
        "scope",
        "status",
        "task",
        "upgrades",
    )

    def __init__(
        self,
        connection: "InboundConnection",
        scope: dict[str, Any],
        fields: dict[bytes, bytes],
        keep_alive: bool,
        expects_go_ahead: bool,
        upgrades: bool,
    ) -> None:
        self.scope = scope
        self.fields = fields
        self.begun = False
        self.gone = False
        self.upgrades = upgrades
        self.caller: LastCaller | None = None
        self.status = 0
        """The response's, once it has one."""
        self.on_end: Callable[[int], None] | None = None
        """Called once with the status when the response has ended, or its client has left: 0 where there was none by then."""
        self.task: asyncio.Task[None] | None = None
        self.loop = connection.loop
        self._connection = connection
        self.keep_alive = keep_alive
        self.expects_go_ahead = expects_go_ahead
        self._is_head = scope["method"] == "HEAD"
        self.is_whole = False
        """Whether all of it has arrived, so that it can be answered without waiting for its client."""
        self._body: bytes | bytearray = b""
        self._more: bool | None = True
        """Whether more of it will come; ``None`` once all of it was received."""
        self._news: asyncio.Event | None = None
        self._head = b""
        self._complete = False
        self._chunked = False
        self._left = -1
        """Bytes of the declared length still to come; below 0 where none was declared."""

    @property
    def last_head(self) -> LastHead:
        """What the last head of its connection became on its way on."""
        return self._connection.last_head

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Answer by ``work``, as a task. A response that it leaves unfinished is an error, and closes the connection."""
        self.task = task = self._connection.loop.create_task(self._run(work))
        self._connection.tasks.add(task)

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        raised: Exception | None = None
        try:
            await work
        except Exception as error:  # noqa: BLE001 - logged by `finish`
            raised = error
        finally:
            self._connection.tasks.discard(self.task)
            self.finish(raised)

    def finish(self, error: Exception | None = None) -> None:
        """The answering task has ended, perhaps by an error. An unfinished response becomes an error if nothing was sent yet."""
        if error is not None:
            log.error("a request failed", exc_info=error, extra=ids(self.scope, self._connection.served.unshown))
        if not self._complete and not self.gone:
            self._break_off()

    # -- the request --------------------------------------------------------------------------------------------------

    @property
    def body(self) -> bytes:
        """The part of the body that has arrived and was not received yet."""
        body = self._body
        return body if isinstance(body, bytes) else bytes(body)

    def take(self) -> None:
        """The body of a request that `is_whole` was taken: `receive` gives it no more."""
        self._body, self._more = b"", None

    def feed(self, body: bytes) -> int:
        """Take a piece of body; how many bytes wait now to be received."""
        if self._complete or self.gone:
            return 0
        if not self._body:
            self._body = body
        else:
            if not isinstance(self._body, bytearray):
                self._body = bytearray(self._body)
            self._body += body
        if self._news is not None:
            self._news.set()
        return len(self._body)

    def feed_end(self) -> None:
        """The body is whole."""
        self._more = False
        self.is_whole = not self.expects_go_ahead
        if self._news is not None:
            self._news.set()

    def leave(self) -> None:
        """The client is gone."""
        self.gone = not self._complete
        if self.on_end is not None:
            self._notify_end()
        self._wake()

    async def receive(self) -> Message:
        """ASGI ``receive``: the body, once, in as many pieces as needed; then waits until the client left or is answered."""
        if self.expects_go_ahead and not self.begun:
            self.expects_go_ahead = False
            self._connection.write(_GO_AHEAD)
        while not (self._body or self.gone or self._complete or self._more is False):
            self._connection.resume_reading()
            if self._news is None:
                self._news = asyncio.Event()
            await self._news.wait()
            self._news.clear()
        if self.gone or self._complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), b""
        more = self._more is True
        if not more:
            self._more = None
        return {"type": "http.request", "body": body, "more_body": more}

    async def until_left(self) -> Message:
        """ASGI ``receive`` of a request whose body is another protocol's: waits until the client left, or is answered."""
        while not (self.gone or self._complete):
            if self._news is None:
                self._news = asyncio.Event()
            await self._news.wait()
            self._news.clear()
        return {"type": "http.disconnect"}

    def switch(self) -> Channel | None:
        """Hand over the connection to another protocol, which is the answer. ``None``: the client has left."""
        if self.gone:
            return None
        channel = self._connection.hand_over(self.body)
        if channel is not None:
            self._body = b""
            self._complete = True
            if self.on_end is not None:
                self.status = 101
                self._notify_end()
            self._wake()
        return channel

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()

    # -- the response -------------------------------------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """ASGI ``send``. Raises ``RuntimeError`` for messages out of turn, and for a body that is not of the declared length."""
        connection = self._connection
        if connection.writable is not None:
            await self._until_writable(len(message.get("body", b"")))
        if self.gone:
            return
        kind = message["type"]
        if kind == "http.response.body" and self.begun and not self._complete:
            more = message.get("more_body", False)
            data = self._framed(message.get("body", b""), more)
            head, self._head = self._head, b""
            if len(data) > _ONE_WRITE:
                written = connection.write(head, data)
            else:
                written = not (head or data) or connection.write(head + data)
            if not written:
                self.leave()
            elif not more:
                self._complete = True
                if self.on_end is not None:
                    self._notify_end()
                self._wake()
                connection.answered(self.keep_alive)
        elif kind == "http.response.start" and not self.begun:
            self._head = self._framed_head(message["status"], message.get("headers", ()))
            self.begun = True
            connection.loop.call_soon(self.write_head)
        else:
            raise RuntimeError(f"{kind} is out of turn")

    async def _until_writable(self, size: int) -> None:
        """Wait for the client to read what was written before; ``size`` bytes are held meanwhile."""
        connection = self._connection
        connection.unsent.hold(size)
        while connection.writable is not None and not self.gone:
            await connection.writable.wait()

    def respond(self, status: int, headers: Headers, body: bytes, ready: bytes = b"") -> None:
        """Send the whole response at once. While the client is behind in reading, it waits until there is room.

        What is ``ready`` are fields too, as lines, each behind a CRLF, and come first: all that they say of the connection and
        its framing is the body's length. Raises as `send` does.
        """
        connection = self._connection
        if self.gone:
            return
        if connection.writable is not None:
            connection.unsent.hold(len(body))
            self.start(respond(self.send, status, [*fields_of(ready), *headers], body))
            return
        if ready:
            self._left = len(body)
        lines = self._head_lines(status, headers)
        if ready:
            lines[0] += ready
        if self._left != len(body) or self._is_head:
            body = self._framed(body, False)
        self.begun = True
        lines.append(b"")
        if len(body) > _ONE_WRITE:
            lines.append(b"")
            written = connection.write(b"\r\n".join(lines), body)
        else:
            lines.append(body)
            written = connection.write(b"\r\n".join(lines))
        if written:
            self._complete = True
            if self.on_end is not None:
                self._notify_end()
            if self._news is not None:
                self._news.set()
            connection.answered(self.keep_alive)
        else:
            self.leave()

    def write_head(self) -> None:
        """Write the head that waits for its body."""
        head, self._head = self._head, b""
        if head and not self.gone and not self._connection.write(head):
            self.leave()

    def _framed_head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """A whole head, with the framing that the body will have."""
        return b"\r\n".join([*self._head_lines(status, list(headers)), b"", b""])

    def _head_lines(self, status: int, headers: Headers) -> list[bytes]:
        """Status line and fields without their ends, with the framing that the body will have."""
        self.status = status
        lines = [_STATUS_LINES[status]]
        for field in headers:
            name = field[0]
            if name not in _FRAMING:
                lines.append(line_of(field))
            elif name == b"content-length":
                lines.append(line_of(field))
                self._left = int(field[1])
            elif name == b"connection":
                self.keep_alive = self.keep_alive and b"close" not in field[1].lower()
            # Neither of the other two passes: the connection is ours, and which coding the body gets is no business of the app's.
        if self._is_head or _HAS_NO_BODY[status]:
            self._left = 0
        elif self._left < 0:
            self._frame_open_end(lines)
        is_last = self._connection.stopping and not self._connection.has_more
        if is_last or (self.expects_go_ahead and self._more):
            # A client that got no ``100 Continue`` may send its body or the next request: there is no telling which.
            self.keep_alive = False
        if not self.keep_alive:
            lines.append(b"connection: close")
        # A line break within a line would begin a field, or a response, that the app did not mean.
        content = b"".join(lines)
        if _LF in content or _CR in content or _NUL in content:
            raise RuntimeError("a header field holds a line break or a NUL")
        return lines

    def _frame_open_end(self, lines: list[bytes]) -> None:
        """The body's length is not known beforehand."""
        if self.scope["http_version"] == "1.1":
            self._chunked = True
            lines.append(b"transfer-encoding: chunked")
        else:
            # The end of the body is the connection's (RFC 9112 section 6.1); `ab` and old nginx ask in version 1.0.
            self.keep_alive = False

    def _framed(self, body: bytes, more: bool) -> bytes:
        """A piece of body as it goes over the wire."""
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return data if more else data + b"0\r\n\r\n"
        if self._is_head:
            return b""
        if self._left >= 0:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the body is not as long as its Content-Length says")
        return body

    def _notify_end(self) -> None:
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end(self.status)

    def _break_off(self) -> None:
        """The app has ended before its response: answer an error where nothing was sent yet, and close."""
        if self.begun:
            self.write_head()
        else:
            self._connection.write(self._failure())
        if self.on_end is not None:
            self._notify_end()
        self._connection.close()

    def _failure(self) -> bytes:
        failure = self._connection.failure
        if failure is None:
            self.status = 500
            return _FAILED
        answer = failure(self.scope)
        self.keep_alive = False
        head = self._framed_head(answer.status, answer.headers)
        return head if self._is_head else head + answer.body
