"""One HTTP/1.1 connection of a client, as uvicorn's server runs it: bytes in, one `InboundRequest` after the other out.

It stands in for uvicorn's own protocol, which writes head and body apart (two system calls), sets up a timer and an event
for each request, and lacks bounds that an app which decides about money needs. httptools parses; what it lets pass, or
reads otherwise, is judged here:

- it buffers a field line until it ends, however long it is: heads and trailers are bounded, and so is the time for a head;
- it hands trailers over like header fields: they are dropped, so that nothing is added to a request behind the checks;
- it takes the body of a request with ``Upgrade`` for another protocol: nothing behind such a request is read;
- it takes a request line that a bare LF ends for one of HTTP/0.9, and passes on versions that nobody speaks: refused;
- it has no opinion on which host is meant: one clear `Host` is asked for, and a target's own authority counts.

Pipelined requests wait for their turn, and nothing more is read meanwhile. One timer serves all time limits: it goes by a
deadline that each request moves, since setting up a timer costs more than to look at the clock.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from oncegate.app.inbound_head import (
    HeadTooLarge,
    VersionRefused,
    asks_to_go_ahead,
    scope_of,
    without_authority,
    without_offer,
)
from oncegate.app.inbound_request import InboundRequest
from oncegate.app.inbound_socket import address_of, unacknowledged

MAX_HEAD_BYTES: Final = 64 * 1024
"""Of a request's line and header fields together; the same for trailers. Beyond: 431, and the connection is closed."""
HEAD_SECONDS = 15.0
"""For a head to arrive once it has begun."""
KEEP_ALIVE_SECONDS = 75.0
"""An idle connection is kept for longer than common load balancers keep theirs (60 s), so that they are the ones to
close it: a close that crosses a request on its way makes the sender wonder whether it was processed."""
STALL_SECONDS = 60.0
"""A client that takes nothing of its response for so long is dropped; so is one that sends nothing more of a body that is
waited for. (The body of an enforced request has a limit of its own, as a whole.)"""
HIGH_WATER = 65536
"""Bytes of a request's body that wait to be received; with more, reading pauses."""

_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_MALFORMED: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 31\r\n"
    b"connection: close\r\n\r\nInvalid HTTP request received.\n"
)


class InboundConnection(asyncio.Protocol):
    """One connection of a client. Made, counted and shut down by uvicorn's server (its protocol's interface)."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # noqa: ARG002 - part of uvicorn's interface; nothing is kept in it here
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.app = config.loaded_app
        self._direct: Callable[[InboundRequest], bool] | None = getattr(self.app, "direct", None)
        self.loop = _loop or asyncio.get_running_loop()
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # uvicorn's server looks at it, too
        self.tasks = server_state.tasks
        self._connections = server_state.connections
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # what follows a `close` is ignored
        self._server: tuple[str, int] | None = None
        self._client: tuple[str, int] | None = None
        self._scheme = "http"
        # The request that is being read, the one that is being answered, and those that wait for it.
        self._url = b""
        self._host = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._reading: InboundRequest | None = None
        self._answering: InboundRequest | None = None
        self._to_begin = False
        self._pipelined: deque[InboundRequest] = deque()
        # What bounds it.
        self._in_message = False
        self._in_head = False
        self._too_large = False
        self._deaf = False
        self._stopping = False
        self._fed = 0
        self._quiet = 0  # bytes since the message began or a piece of body was handed on: a head's, or trailers'
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._unsent = 0
        self._read_paused = False
        self.writable: asyncio.Event | None = None
        """What is to be awaited before more is written; ``None``: nothing."""
        self.gone: Callable[[], None] | None = None
        """Called when the connection is gone."""

    # -- the transport's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected: it has a while to say something."""
        self.transport = transport  # type: ignore[assignment]  # uvloop's are none of asyncio's classes
        self._connections.add(self)  # type: ignore[arg-type]  # the set is for uvicorn's own protocols; ours acts like one
        channel = transport.get_extra_info("socket")
        self._server, self._client = address_of(channel.getsockname), address_of(channel.getpeername)
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        self._within(KEEP_ALIVE_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - told alike, whatever broke it
        """The connection is gone: the requests on it are told, and end as they see fit."""
        self._connections.discard(self)
        if self.gone is not None:
            self.gone()
        if self._timer is not None:
            self._timer.cancel()
        for request in (self._answering, self._reading):
            if request is not None:
                request.leave()
        self._pipelined.clear()
        if self.writable is not None:
            self.writable.set()
            self.writable = None
        self._parser = None  # type: ignore[assignment]  # it refers back to us: without it the collector has nothing to do

    def data_received(self, data: bytes) -> None:
        """Parse, then judge what is still unfinished."""
        if self._deaf:
            return  # behind an Upgrade (another protocol's, or a body that isn't seen as one), or behind what was refused
        if not self._in_message and data.find(b"h2c") >= 0:
            data = without_offer(data)
        self._fed = len(data)
        self._quiet += self._fed
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the gateway answers it
        except httptools.HttpParserError:
            self._refuse()
        self._begin_waiting()
        if self._in_message and not self.transport.is_closing():
            if self._quiet > MAX_HEAD_BYTES:
                self._too_large = True
                self._refuse()
            elif not self._in_head:
                if self.writable is None:
                    self._within(STALL_SECONDS)
            elif self._answering is None and self._deadline == math.inf:
                self._within(HEAD_SECONDS)

    def eof_received(self) -> None:
        """The client says no more, by which we take it that it has left (as most servers do): the transport closes."""
        self._watch_the_rest()

    def pause_writing(self) -> None:
        """The client takes less than it is given: see to it that it takes something."""
        self.writable = asyncio.Event()
        self._unsent = unacknowledged(self.transport)
        self._within(STALL_SECONDS)

    def resume_writing(self) -> None:
        """The client takes more again."""
        if self.writable is not None:
            self.writable.set()
            self.writable = None
            self._deadline = math.inf
            if self.transport.is_closing():
                self._watch_the_rest()
            elif self._answering is None:
                self._idle()

    # -- the parser's side --------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._url = b""
        self._headers = []
        self._in_message = self._in_head = True
        self._quiet = 0
        if self.writable is None:
            self._deadline = math.inf

    def on_url(self, url: bytes) -> None:
        """A piece of the request's target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field of the head. (Of trailers, too: the list is one that nobody reads by then.)"""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole: its size is known exactly, and the request can begin."""
        self._in_head = False
        if self.writable is None:
            self._deadline = math.inf  # what is left of the time for a head must not end its request
        parser = self._parser
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            # 0.9 is what the parser makes of a request line that a bare LF ends, with the rest of the line as a field;
            # 2.0 is what nobody speaks in this form. Whoever stands before us may have read either in another way.
            raise VersionRefused
        headers = self._headers
        fields = dict(headers)
        host = fields.get(b"host", b"")
        if not host or host != self._host or len(fields) != len(headers) or self._url[:1] != b"/":
            self._url = without_authority(self._url, parser.get_method(), version, headers)
            self._host = host  # as a rule it is the same in all requests of a connection
        expects_go_ahead = b"expect" in fields and version == "1.1" and asks_to_go_ahead(headers)
        if self._quiet + self._fed > MAX_HEAD_BYTES:
            size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in headers)
            if size > MAX_HEAD_BYTES:
                self._too_large = True
                raise HeadTooLarge
        keep_alive = version == "1.1" and parser.should_keep_alive()
        if parser.should_upgrade():
            # The parser takes what follows for another protocol, a body that was announced too. The gateway refuses, and
            # nothing more may be read: a body would be taken for the next request.
            self._deaf = True
            keep_alive = False
        scope = scope_of(self._url, parser.get_method(), version, headers)
        scope["server"], scope["client"], scope["scheme"] = self._server, self._client, self._scheme
        request = InboundRequest(self, scope, keep_alive, expects_go_ahead, upgrades=b"upgrade" in fields)
        self._reading = request
        self._quiet = 0
        self._headers = []  # trailers go into this one (RFC 9110 section 6.5.1: they must not be merged)
        if self._answering is None:
            self._answering = request
            self._to_begin = True  # when all that has arrived is parsed: usually all of it is there by then
        else:
            self.pause_reading()
            self._pipelined.append(request)

    def on_body(self, body: bytes) -> None:
        """A piece of body: its size is the middleware's and the forwarder's business."""
        self._quiet = 0
        if self._reading is not None and self._reading.feed(body) > HIGH_WATER:
            self.pause_reading()

    def on_message_complete(self) -> None:
        """The last byte of a request, trailers included."""
        self._in_message = False
        if self._reading is not None:
            self._reading.feed_end()
            self._reading = None
        if self.writable is None:
            self._deadline = math.inf
            if self._answering is None:
                self._idle()

    # -- the requests' side -------------------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether the request that is being answered is the last one."""
        return self._stopping and not self._pipelined

    def write(self, data: bytes) -> bool:
        """Hand bytes to the transport. False: the client is gone."""
        transport = self.transport
        if transport.is_closing():
            return False
        try:
            transport.write(data)
        except (OSError, RuntimeError):  # uvloop raises where asyncio only logs: no business of who happens to write
            transport.abort()
            return False
        return True

    def pause_reading(self) -> None:
        """Take nothing more from the client for now."""
        if not self._read_paused and not self.transport.is_closing():
            self._read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Take more again."""
        if self._read_paused and not self.transport.is_closing():
            self._read_paused = False
            self.transport.resume_reading()

    def answered(self, keep_alive: bool) -> None:
        """The response has been written: on to the next request, if there may be one."""
        self._answering = None
        if self.transport.is_closing():
            return
        if keep_alive and self._pipelined:
            self._answering = self._pipelined.popleft()
            self._to_begin = True
            self.loop.call_soon(self._begin_waiting)  # not from here: thousands may wait, each within the other
        elif not keep_alive or self._stopping:
            self.close()
        else:
            if self._read_paused:
                self.resume_reading()
            if self._deadline == math.inf:
                self._idle()

    def _begin_waiting(self) -> None:
        request = self._answering
        if not self._to_begin or request is None:
            return
        self._to_begin = False
        if self.transport.is_closing():  # refused while its body was read, or gone
            request.leave()
            return
        try:
            if self._direct is not None and not request.upgrades and request.is_whole and self._direct(request):
                return
        except Exception as error:  # noqa: BLE001 - told as of an app that raises, which is what a task would do
            request.end(error)
            return
        request.start(self.app(request.scope, request.receive, request.send))

    def shutdown(self) -> None:
        """The server stops: an idle connection is closed at once, another one after the response that is under way."""
        self._stopping = True
        self._pipelined.clear()
        if self._answering is None:
            self.close()

    def close(self) -> None:
        """Close the connection once its client has taken what was written: it must take something now and then."""
        self.transport.close()
        self._watch_the_rest()

    # -- bounds -------------------------------------------------------------------------------------------------------

    def _refuse(self) -> None:
        """Refuse what can't be parsed, and close; 431 where it is only too large. Never into a response that has begun."""
        self._in_message = False
        if self._answering is not None and self._answering is not self._reading:
            # What came before it keeps its answers; this one gets none, and neither does anything behind it.
            self._deaf = self._stopping = True
            if self._reading is not None and self._pipelined:
                self._pipelined.pop()  # its head was in order, its body isn't
            return
        if not (self._reading is not None and self._reading.begun):
            self.write(_TOO_LARGE if self._too_large else _MALFORMED)
        self.close()

    def _idle(self) -> None:
        """Nothing is being answered: the next request, or the rest of its head, has a while to come."""
        self._within(HEAD_SECONDS if self._in_head else KEEP_ALIVE_SECONDS)

    def _is_awaited(self) -> bool:
        """Whether it is for the client to go on: its request is not whole, and we take what comes and have nothing to say."""
        request = self._answering
        return request is self._reading and request is not None and not request.begun and not self._read_paused

    def _watch_the_rest(self) -> None:
        if self.transport.get_write_buffer_size():
            self._unsent = unacknowledged(self.transport)
            self._within(STALL_SECONDS)

    def _within(self, seconds: float) -> None:
        self._deadline = self.loop.time() + seconds
        if self._deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = self._deadline
            self._timer = self.loop.call_at(self._deadline, self._look)

    def _look(self) -> None:
        """The timer fired: at the deadline, or at one that has been moved since."""
        self._timer, self._timer_at = None, math.inf
        if self._deadline > self.loop.time():
            if self._deadline < math.inf:
                self._within(self._deadline - self.loop.time())
            return
        if self.writable is not None or self.transport.is_closing():
            unsent = unacknowledged(self.transport)
            if unsent < self._unsent:  # it does take something, if slowly
                self._unsent = unsent
                self._within(STALL_SECONDS)
                return
            self.transport.abort()
            return
        if self._in_message and not self._in_head and self._answering is not None and not self._is_awaited():
            self._within(STALL_SECONDS)
            return
        self.close()
