"""Tunnels: what a client and the upstream send each other after a 101 (WebSocket), passed on both ways, unread.

The two transports get protocols of their own, so that nothing of HTTP's is left in the way. Each end takes what the other one
reads. Where it is behind, the other one's reading pauses: what a tunnel holds is one read each way, counted in ``max_unread``.

A close is passed on once all that came before has been: the side that ends is answered by the other's end. Where both don't end
(idle for too long, the server stops), both get an orderly one from here: what was read is flushed, then FIN, then what they
still send is dropped for a while, since a close with bytes unread would reset the connection and take away what was flushed.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from oncegate.app.server.channel import UPGRADING, Channel
from oncegate.app.server.flow import ABORTED, unacknowledged
from oncegate.app.server.request import InboundRequest
from oncegate.app.upstream.forward import Forwarder
from oncegate.app.upstream.upgrade import Switched
from oncegate.middleware.admission.buffers import Unread
from oncegate.middleware.admission.limits.deadlines import Deadline
from oncegate.middleware.http.asgi import Scope, Send
from oncegate.middleware.rules.policies import Policies

log = logging.getLogger("oncegate.tunnel")

HALF_CLOSED_SECONDS: Final = 60.0
"""A side that has seen the other one's end, and neither sends nor ends, is closed after so long."""
ENDING_SECONDS: Final = 5.0
"""After an end from here: a side that takes nothing more of what it was sent, and doesn't close, is broken off."""


class Tunnels:
    """The gateway's tunnels. ``timeout``: seconds after which one that carries nothing is closed.

    What waits for slow readers counts in ``unread``; ``count`` is called with changes of their number.
    """

    def __init__(
        self,
        forwarder: Forwarder,
        policies: Policies,
        *,
        timeout: float,
        unread: Unread,
        count: Callable[[int], None],
    ) -> None:
        self._forwarder = forwarder
        self._policies = policies
        self.timeout = timeout
        self.unread = unread
        self.count = count

    def take(self, scope: Scope) -> InboundRequest | None:
        """The request, if it may have a tunnel: it is a WebSocket's handshake, and not under enforcement."""
        # Popped, since it refers to its scope, too: requests leave nothing to the garbage collector.
        request: InboundRequest | None = scope.pop(UPGRADING, None)
        if request is None or self._policies.match(scope["method"], scope["path"], scope["raw_path"]) is not None:
            return None
        return request

    async def answer(self, request: InboundRequest, send: Send) -> None:
        """Forward it: a tunnel begins by the upstream's 101, any other answer is passed on. Raises as the forwarder does."""

        def join(switched: Switched) -> None:
            channel = request.switch()
            if channel is None:
                switched.transport.abort()
                switched.lost(None)
            else:
                Tunnel(self, channel, switched)

        await self._forwarder.upgrade(request.scope, request.until_left, send, join)


class Tunnel:
    """One tunnel, from the 101 to the end of both connections. To uvicorn's server it is one of its connections."""

    def __init__(self, tunnels: Tunnels, channel: Channel, switched: Switched) -> None:
        self._tunnels = tunnels
        self._connections = channel.connections
        self._client_lost = channel.on_lost
        self._upstream_lost = switched.lost
        self.transport = channel.transport
        """The client's: the server's stop breaks it off when its time is over."""
        self.has_moved = False
        """Whether bytes have been passed on since the deadline was set."""
        self.is_ending = False
        self._seconds = tunnels.timeout
        self._unsent = 0
        self._deadline = Deadline(asyncio.get_running_loop(), self._on_deadline)
        self._client = TunnelEnd(self, channel.transport, tunnels.unread)
        self._upstream = TunnelEnd(self, switched.transport, tunnels.unread)
        self._client.other, self._upstream.other = self._upstream, self._client
        self._connections.add(self)
        tunnels.count(1)
        self._deadline.within(self._seconds)
        self._client.begin(switched.head + switched.early, is_full=channel.is_full)
        self._upstream.begin(channel.early, is_full=False)
        if channel.stopping:
            self.shutdown()

    def retire(self) -> None:
        """Another process serves from now on: it goes on here, until one of its sides ends it."""

    def shutdown(self) -> None:
        """End it from here, both ways, in order."""
        if self.is_ending:
            return
        self.is_ending = True
        self._client.finish()
        self._upstream.finish()
        self._seconds = ENDING_SECONDS
        self._deadline.within(self._seconds)

    def on_end(self) -> None:
        """A side has ended, and the other one has been sent that."""
        if not self.is_ending:
            self._seconds = min(self._seconds, HALF_CLOSED_SECONDS)
            self._deadline.within(self._seconds)

    def on_lost(self) -> None:
        """A side's connection is gone."""
        if not (self._client.lost and self._upstream.lost):
            self.on_end()
            return
        self._deadline.close()
        self._connections.discard(self)
        self._tunnels.count(-1)
        self._upstream_lost(None)
        if self._client_lost is not None:
            self._client_lost()

    def _on_deadline(self) -> None:
        unsent = sum(unacknowledged(end.transport) for end in (self._client, self._upstream) if not end.lost)
        moves, self.has_moved = self.has_moved or unsent < self._unsent, False
        self._unsent = unsent
        if moves:
            self._deadline.within(self._seconds)
        elif self.is_ending:
            for end in (self._client, self._upstream):
                if not end.lost:
                    end.transport.abort()
        else:
            log.info("a tunnel was closed that had carried nothing for %g s", self._seconds)
            self.shutdown()


class TunnelEnd(asyncio.Protocol):
    """One end of a tunnel, and a reader of what the ``other`` end brings."""

    __slots__ = ("_at_turn", "_full", "_has_ended", "_tls", "_tunnel", "_unread", "lost", "other", "transport")

    def __init__(self, tunnel: Tunnel, transport: asyncio.Transport, unread: Unread) -> None:
        self.other: TunnelEnd | None = None
        self.transport = transport
        self.lost = False
        self._tunnel = tunnel
        self._unread = unread
        self._at_turn = 0
        self._full = False
        self._has_ended = False
        self._tls = transport.get_extra_info("sslcontext") is not None

    def begin(self, data: bytes, *, is_full: bool) -> None:
        """Send ``data``, and take over. ``is_full``: writing was paused before."""
        self.transport.set_protocol(self)
        if is_full:
            self.pause_writing()
        self.write(data)
        if self.other is not None and not self.other._full:
            self.transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Hand ``data`` to the transport."""
        if not data or self.transport.is_closing():
            return
        try:
            self.transport.write(data)
        except (OSError, RuntimeError):  # uvloop raises where asyncio only logs
            self.transport.abort()

    def close(self) -> None:
        """Close behind what was written."""
        if not self.transport.is_closing():  # asyncio's TLS forgets itself at a second one
            self.transport.close()

    def finish(self) -> None:
        """Send the end behind what was written. Over TLS there is no half of it: the connection closes."""
        transport = self.transport
        if transport.is_closing():
            return
        if self._has_ended or not transport.can_write_eof():
            transport.close()
            return
        with suppress(OSError, RuntimeError):  # the connection has just broken
            transport.write_eof()
            if self._tunnel.is_ending:  # what it still sends is read, to be dropped
                transport.resume_reading()

    # -- the transport's side -----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        tunnel, other = self._tunnel, self.other
        if other is not None and not tunnel.is_ending:
            tunnel.has_moved = True
            other.write(data)

    def eof_received(self) -> bool:
        """This side has ended: so does the other, behind what was passed on."""
        self._has_ended = True
        other = self.other
        if other is not None:
            other.finish()
            if other._has_ended or self._tunnel.is_ending:
                self.close()
        self._tunnel.on_end()
        return not self._tls

    def pause_writing(self) -> None:
        """This side is behind in reading: nothing more is read of the other one."""
        self._full = True
        self._at_turn = unacknowledged(self.transport)
        self._unread.hold(self, self.transport.get_write_buffer_size())
        other = self.other
        if other is not None and not other._has_ended and not other.transport.is_closing():
            other.transport.pause_reading()

    def resume_writing(self) -> None:
        """This side has caught up."""
        self._full = False
        self._unread.release(self)
        other = self.other
        if other is not None and not other._has_ended and not other.transport.is_closing():
            other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - what broke it is not the other side's concern
        """The connection is gone: the other one closes, once it has what was read before."""
        self.lost = True
        self._unread.release(self)
        other, tunnel = self.other, self._tunnel
        if other is not None and not other.lost:
            other.close()
        tunnel.on_lost()
        self.other = None  # they refer to each other: without it the collector has something to do
        self._tunnel = None  # type: ignore[assignment]  # the same

    # -- a reader's: see `oncegate.middleware.admission.buffers.Reader` --------------------------------------------------

    def has_taken(self) -> bool:
        """Whether it has taken something since the last call."""
        before, self._at_turn = self._at_turn, unacknowledged(self.transport)
        return self._at_turn < before

    def drop(self) -> None:
        """Break the connection off; the kernel's buffer is freed, too."""
        with suppress(OSError):
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORTED)
        self.transport.abort()
