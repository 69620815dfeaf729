"""The server protocol: one client's HTTP/1.1 connection, run by uvicorn's server; makes one `InboundRequest` after the other.

It replaces uvicorn's own protocol, which writes head and body apart (two system calls), sets up a timer and an event
for each request, and lacks bounds that a gateway for payments needs. httptools parses; what it is too lenient with is
checked here:

- it buffers a field line until it ends, however long it is: heads and trailers are bounded, and so is the time for a head;
- it hands trailers over like header fields: they are dropped, so that nothing is added to a request behind the checks;
- it reads a request line that ends in a bare LF as HTTP/0.9, and lets unknown versions pass: refused;
- it leaves white space behind a field's value: removed (RFC 9110 section 5.5), in `oncegate.app.server.parser`;
- it speaks RTSP, and takes what follows an ``Upgrade`` for another protocol: see `oncegate.app.server.parser`;
- it doesn't check the host: one valid `Host` is required, and a target's own authority counts.

Pipelined requests wait for their turn, and nothing more is read meanwhile. One timer serves all time limits: it goes by a
deadline that each request moves, since setting up a timer costs more than to look at the clock.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from oncegate.app.last_head import LastHead
from oncegate.app.server.channel import Channel
from oncegate.app.server.flow import PIECE_BYTES, Pieces, Unsent
from oncegate.app.server.head import MALFORMED, NO_SUCH_METHOD, TIMED_OUT, TOO_LARGE
from oncegate.app.server.parser import InboundParser, is_unknown_method
from oncegate.app.server.request import InboundRequest
from oncegate.app.server.scope import shared_scope
from oncegate.app.server.served import Served
from oncegate.middleware.admission.limits.deadlines import Deadline

HEAD_SECONDS = 15.0
"""The time for a head to arrive once it has begun."""
KEEP_ALIVE_SECONDS = 75.0
"""An idle connection is kept for longer than common load balancers keep theirs (60 s), so that they are the ones to
close it: a close that crosses a request on its way makes the sender wonder whether it was processed."""
STALL_SECONDS = 60.0
"""A client that takes nothing of its response for so long is dropped; so is one that sends nothing more of a body that is
waited for. (The body of an enforced request has a limit of its own, as a whole.)"""
HALF_CLOSED_SECONDS = 60.0
"""A client that has shut its sending side is answered, but looks like one that has left: after so long without anything
to be written it counts as gone."""
_NEVER: Final = math.inf
HIGH_WATER = 65536
"""Bytes of a request's body that wait to be received; with more, reading pauses."""
LINGERING_SECONDS = 30.0
PAUSE_SECONDS = 5.0
"""A client that sends nothing for so long has seen the answer, or never will."""
LINGERING_BYTES = 64 * 1024 * 1024
MOST_LINGERING = 1000
"""Connections of one process at a time; what goes beyond is closed at once."""

_lingering: set[object] = set()


class InboundConnection(asyncio.Protocol):
    """One connection of a client. Made, counted and shut down by uvicorn's server (its protocol's interface)."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # noqa: ARG002 - part of uvicorn's interface; nothing is kept in it here
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        app = config.loaded_app
        served: Served | None = getattr(app, "served", None)
        self.served = Served(app) if served is None else served
        self.failure = self.served.failure
        """How the app of the request that is being answered does so where it failed itself."""
        self.loop = _loop or asyncio.get_running_loop()
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # uvicorn's server looks at it, too
        self.tasks = server_state.tasks
        self._connections = server_state.connections
        self._parser = InboundParser(self)
        self._is_tls = False
        self.last_head = LastHead()
        """What its last request's head became on its way on."""
        # The request that is being read, the one that is being answered, and those that wait for it.
        self._reading: InboundRequest | None = None
        self._answering: InboundRequest | None = None
        self._to_begin = False
        self._pipelined: deque[InboundRequest] = deque()
        # What bounds it.
        self._discards = self._half_closed = self._read_paused = False
        self.stopping = False
        """Whether no request is taken behind those that wait for their turn."""
        self._retires = False
        self._lingering: Lingering | None = None
        self._deadline = Deadline(self.loop, self._on_deadline)
        self.unsent = Unsent(self, getattr(app, "unread", None))
        self._unparsed = Pieces(self)
        self.writable: asyncio.Event | None = None
        """The event to be awaited before more is written; ``None``: nothing."""
        self.on_lost: Callable[[], None] | None = None
        """Called when the connection is gone."""

    # -- the transport's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected: its first request's head is due in time."""
        self.transport = transport  # type: ignore[assignment]  # uvloop's are none of asyncio's classes
        self._connections.add(self)  # type: ignore[arg-type]  # the set is for uvicorn's own protocols; ours acts like one
        channel = transport.get_extra_info("socket")
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        self._parser.shared = shared_scope(
            _address(channel.getsockname), _address(channel.getpeername), "https" if self._is_tls else "http"
        )
        self._deadline.within(KEEP_ALIVE_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - treated alike, whatever broke it
        """The connection is gone: its requests are notified, and end by themselves."""
        self._connections.discard(self)
        self.unsent.close()
        if self.on_lost is not None:
            self.on_lost()
        self._deadline.close()
        if self._lingering is not None:
            self._lingering.close()
        self._leave()
        self._unparsed.drop()
        self._parser.close()

    def _leave(self) -> None:
        """No request is answered any more."""
        for request in (self._answering, self._reading):
            if request is not None:
                request.leave()
        self._pipelined.clear()
        if self.writable is not None:
            self.writable.set()
            self.writable = None

    def data_received(self, data: bytes) -> None:
        """Parse, then judge what is still unfinished."""
        if self._discards:  # behind an Upgrade, or behind what was refused
            if self._lingering is None:
                self.came_behind(data)
            elif not self.transport.is_closing():
                self._linger_on(len(data))
            return
        if len(data) > PIECE_BYTES:
            data = self._unparsed.first(data)
        parser = self._parser
        try:
            parser.feed(data)
        except httptools.HttpParserError as error:
            self._refuse(NO_SUCH_METHOD if is_unknown_method(error) else MALFORMED)
        if self._to_begin:
            self._begin_waiting()
        if parser.in_message and not self.transport.is_closing():
            if parser.is_too_large:
                self._refuse(TOO_LARGE)
            elif self.writable is None:
                self._wait_for_rest()

    def _wait_for_rest(self) -> None:
        """A request isn't whole: set the time for more of its body, or for its head as a whole."""
        parser = self._parser
        if not parser.in_head:
            self._deadline.within(STALL_SECONDS)
        elif self._answering is None and (parser.has_just_begun or self._deadline.at == _NEVER):
            self._deadline.within(HEAD_SECONDS)

    def eof_received(self) -> bool:
        """The client has closed its side. Complete requests are answered; an incomplete one is no request.

        (Behind a pipelined request nothing is read, its end neither: this is about the last one.)
        """
        self._half_closed = True
        if self._lingering is not None or self._answering is None or self._reading is not None or self._is_tls:
            self._watch_the_rest()
            return False  # the transport closes
        self._discards = self.stopping = True
        self._parser.in_message = False
        if self.writable is None:
            self._deadline.within(HALF_CLOSED_SECONDS)
        return True

    def pause_writing(self) -> None:
        """The client reads slower than we write: require that it reads something."""
        self.writable = asyncio.Event()
        self._deadline.within(STALL_SECONDS)
        self.unsent.stalls()

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self.writable is not None:
            self.unsent.goes_on()
            self.writable.set()
            self.writable = None
            self._deadline.at = _NEVER
            if self.transport.is_closing():
                self._watch_the_rest()
            elif self._half_closed:
                self._deadline.within(HALF_CLOSED_SECONDS)
            elif self._answering is None and self._lingering is None:
                self._idle()

    # -- the parser's side --------------------------------------------------------------------------------------------

    def head_is_complete(self, request: InboundRequest, ends: bool) -> None:
        """``request`` can begin. ``ends``: what follows is another protocol's."""
        if self.writable is None:
            self._deadline.at = _NEVER  # what is left of the time for a head must not end its request
        self._discards = ends
        self._reading = request
        if self._answering is None:
            self._answering = request
            self._to_begin = True  # when all that has arrived is parsed: usually all of it is there by then
        else:
            self.pause_reading()
            self._pipelined.append(request)

    def body_came(self, body: bytes) -> None:
        """A piece of body: its size is the middleware's and the forwarder's business."""
        if self._reading is not None and self._reading.feed(body) > HIGH_WATER:
            self.pause_reading()

    def came_behind(self, data: bytes) -> None:
        """Bytes that a client has sent behind a request for another protocol: kept for that, within bounds."""
        request = self._pipelined[-1] if self._pipelined else self._answering
        if request is not None and request.upgrades and request.feed(data) > HIGH_WATER:
            self.pause_reading()

    def request_is_whole(self) -> None:
        """The last byte of a request, trailers included."""
        if self._reading is not None:
            self._reading.feed_end()
            self._reading = None
        if self.writable is None:
            self._deadline.at = _NEVER
            if self._answering is None:
                self._idle()

    # -- the requests' side -------------------------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """Whether requests wait for their turn: where it is ``stopping``, this one is the last without."""
        return len(self._pipelined) > 0

    @property
    def takes_more(self) -> bool:
        """Whether what the client sends is parsed now; false while earlier requests wait for their turn."""
        return not self._read_paused and not self.transport.is_closing()

    def write(self, data: bytes, large: bytes = b"") -> bool:
        """Write ``data``, and behind it ``large``, which is counted until it is taken. False: the client is gone."""
        transport = self.transport
        if transport.is_closing() or self._lingering is not None:
            return False
        if self._half_closed and self.writable is None:
            self._deadline.within(HALF_CLOSED_SECONDS)
        try:
            if large:
                self.unsent.write(data, large)
            else:
                transport.write(data)
        except (OSError, RuntimeError):  # uvloop raises where asyncio only logs: not the writer's concern
            transport.abort()
            return False
        return True

    def pause_reading(self) -> None:
        """Read nothing more from the client for now."""
        if not self._read_paused and not self.transport.is_closing():
            self._read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self._read_paused and not self._half_closed and not self.transport.is_closing():
            self._read_paused = False
            if self._unparsed:
                self._unparsed.go_on()
            else:
                self.transport.resume_reading()

    def hand_over(self, early: bytes) -> Channel | None:
        """Leave the transport to another protocol, with ``early`` and what is not parsed yet. ``None``: its client has left."""
        transport = self.transport
        if self._half_closed or transport.is_closing():
            transport.abort()  # who sends no more can speak no other protocol
            return None
        early += self._unparsed.rest
        channel = Channel(
            transport,
            early,
            self.writable is not None,
            self.stopping and not self._retires,
            cast(set[Any], self._connections),
            self.on_lost,
        )
        self.on_lost = None
        self._answering = None
        self.connection_lost(None)
        return channel

    def answered(self, keep_alive: bool) -> None:
        """The response has been written: on to the next request, if there may be one."""
        self._answering = None
        if self.transport.is_closing():
            return
        if not keep_alive or (self.stopping and not self._pipelined and (self._discards or not self._retires)):
            self.close()
        elif self._pipelined:
            self._answering = self._pipelined.popleft()
            self._to_begin = True
            self.loop.call_soon(self._begin_waiting)  # not from here: thousands may wait, each within the other
        else:
            if self._read_paused:
                self.resume_reading()
            if self._deadline.at == _NEVER:
                self._idle()

    def _begin_waiting(self) -> None:
        request = self._answering
        if not self._to_begin or request is None:
            return
        self._to_begin = False
        if self.transport.is_closing():  # refused while its body was read, or gone
            request.leave()
            return
        served = self.served
        self.failure, direct = served.failure, served.direct
        try:
            if served.begun is not None:
                served.begun(request)
            if direct is not None and not request.upgrades and request.is_whole and direct(request):
                return
        except Exception as error:  # noqa: BLE001 - logged as of an app that raises, which is what a task would do
            request.finish(error)
            return
        request.start(served.app(request.scope, request.receive, request.send))

    def retire(self) -> None:
        """Another process serves from now on: the next response that begins is the last one, and says so.

        Until then an idle connection stays open: closed by us, it would take along a request that is on its way.
        """
        self.stopping = self._retires = True

    def shutdown(self) -> None:
        """The server stops: an idle connection is closed at once, another one after the response that is under way."""
        self.stopping = True
        self._retires = False
        self._pipelined.clear()
        if self._answering is None:  # a client that is still sending does not wait for an answer
            self._close()

    def close(self) -> None:
        """Close the connection once its client has read what was written; it must read something now and then."""
        may_send_more = (self._parser.in_message or self._discards) and not self._half_closed
        if (
            may_send_more
            and self._lingering is None
            and not self.transport.is_closing()
            and len(_lingering) < MOST_LINGERING
        ):
            self._linger()
            return
        self._close()

    def _close(self) -> None:
        if not self.transport.is_closing():  # asyncio's TLS forgets itself at a second one
            self.transport.close()
        self._watch_the_rest()

    def _linger(self) -> None:
        self._leave()
        self._answering = self._reading = None
        self._discards = self.stopping = True
        self._parser.in_message = self._to_begin = False
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._lingering = Lingering(self, self.loop)
        self.resume_reading()
        self._linger_on(0)

    def _linger_on(self, size: int) -> None:
        """Its client has sent ``size`` bytes more, which are dropped."""
        seconds = 0.0 if self._lingering is None else self._lingering.drop(size)
        if not seconds:
            self._close()
        elif self.transport.get_write_buffer_size():
            if not size:
                self._watch_the_rest()
        else:
            self._deadline.within(seconds)

    # -- bounds -------------------------------------------------------------------------------------------------------

    def _refuse(self, answer: bytes) -> None:
        """Refuse what can't be parsed, and close; 431 where it is only too large. Never into a response that has begun."""
        self._parser.in_message = False
        if self._answering is not None and self._answering is not self._reading:
            # Requests before it are still answered; this one isn't, and neither is anything behind it.
            self._discards = self.stopping = True
            if self._reading is not None and self._pipelined:
                self._pipelined.pop()  # its head was in order, its body isn't
            return
        if not (self._reading is not None and self._reading.begun):
            self.answer_plainly(TOO_LARGE if self._parser.is_too_large else answer)
        self._discards = True
        self.close()

    def answer_plainly(self, answer: bytes) -> None:
        """Write the ``answer`` to a message that is no request: one that is not HTTP as it should be, or was not sent in time."""
        self.write(answer)

    def _idle(self) -> None:
        """No request is being answered: set the time for the next request, or for the rest of its head."""
        self._deadline.within(HEAD_SECONDS if self._parser.in_head else KEEP_ALIVE_SECONDS)

    def _is_awaited(self) -> bool:
        """Whether we wait for the client: its request is not whole, we are reading, and no response is under way."""
        request = self._answering
        return request is self._reading and request is not None and not request.begun and not self._read_paused

    def _watch_the_rest(self) -> None:
        if self.transport.get_write_buffer_size():
            self.unsent.note_unread()
            self._deadline.within(STALL_SECONDS)

    def _on_deadline(self) -> None:
        """The deadline was reached."""
        transport = self.transport
        lingers = self._lingering is not None
        if self.writable is not None or transport.is_closing() or (lingers and transport.get_write_buffer_size()):
            if self.unsent.shrinks():  # it reads, if slowly
                self._deadline.within(STALL_SECONDS)
                return
            transport.abort()
            return
        parser = self._parser
        in_body = parser.in_message and not parser.in_head
        if in_body and self._answering is not None and not self._is_awaited():
            self._deadline.within(STALL_SECONDS)
            return
        if lingers or self._half_closed or in_body:
            transport.close()  # a request that was not sent whole, or is answered already, gets no error
            return
        if parser.in_message and self._answering is None:
            self.answer_plainly(TIMED_OUT)
        self.close()


def _address(name: Callable[[], Any]) -> tuple[str, int] | None:
    """Host and port, where the socket has them: one that is gone already has none."""
    try:
        address = name()
    except OSError:
        return None
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None


class Lingering:
    """The last of a ``connection``, until `close`.

    A connection that is closed with bytes unread is reset (RFC 9112 section 9.6): its client, which as a rule reads only once it
    has sent everything, would find an error instead of the answer. So where a client may still be sending, we write the answer,
    close our side (half-close), and read and drop what comes until the client closes its side, within bounds.
    """

    def __init__(self, connection: object, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._until = loop.time() + LINGERING_SECONDS
        self._bytes = LINGERING_BYTES
        _lingering.add(connection)

    def drop(self, size: int) -> float:
        """Count ``size`` bytes more; returns for how many seconds to wait for more, 0: close now."""
        self._bytes -= size
        return max(0.0, min(PAUSE_SECONDS, self._until - self._loop.time())) if self._bytes >= 0 else 0.0

    def close(self) -> None:
        """The connection is gone."""
        _lingering.discard(self._connection)
