"""Bounds what slow clients leave unread: each must read something now and then, and all together may hold so much."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Final, Protocol

from oncegate.app.server.socket import unacknowledged
from oncegate.middleware.admission.buffers import Unread

_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""Of a socket that is closed: nothing is sent any more."""


class Writing(Protocol):
    """The connection whose client is to read it."""

    transport: asyncio.Transport
    writable: asyncio.Event | None


class Unsent:
    """Of one ``connection``. ``unread`` counts it while writing is paused, beyond what each connection may have anyway.

    A large write is counted as a whole until its last byte is taken: the transport keeps all of it until then. To learn of
    that, writing pauses for what is left of it, however little.
    """

    __slots__ = ("_at_last_look", "_at_turn", "_connection", "_large", "_unread")

    def __init__(self, connection: Writing, unread: Unread | None) -> None:
        self._connection = connection
        self._unread = unread
        self._large = 0
        """Bytes of the large write that is under way."""
        self._at_last_look = self._at_turn = 0

    def write(self, head: bytes, body: bytes) -> None:
        """Hand a large ``body`` to the transport, behind ``head``. Raises what that raises."""
        transport = self._connection.transport
        self._large = len(body)
        transport.set_write_buffer_limits(0)
        transport.writelines((head, body))
        if self._connection.writable is None:  # the kernel has all of it
            self._large = 0
            transport.set_write_buffer_limits()

    def stalls(self) -> None:
        """Writing is paused."""
        self.look()
        self._at_turn = self._at_last_look
        self.hold(max(self._large, self._connection.transport.get_write_buffer_size()))

    def goes_on(self) -> None:
        """Writing is paused no more."""
        if self._unread is not None:
            self._unread.release(self)
        if self._large:
            self._large = 0
            if not self._connection.transport.is_closing():
                self._connection.transport.set_write_buffer_limits()

    def close(self) -> None:
        """The connection is gone."""
        self.goes_on()
        self._connection = None  # type: ignore[assignment]  # it refers to us: without it the collector has nothing to do

    def hold(self, size: int) -> None:
        """So many bytes wait until writing goes on."""
        if self._unread is not None:
            self._unread.hold(self, size)

    def look(self) -> None:
        """Note what is unread now: `shrinks` compares with it."""
        self._at_last_look = unacknowledged(self._connection.transport)

    def shrinks(self) -> bool:
        """Whether the client has taken something since the last `look`; if so, this counts as the next one."""
        now = unacknowledged(self._connection.transport)
        if now >= self._at_last_look:
            return False
        self._at_last_look = now
        return True

    def has_taken(self) -> bool:
        """See `oncegate.middleware.admission.buffers.Reader`."""
        before, self._at_turn = self._at_turn, unacknowledged(self._connection.transport)
        return self._at_turn < before

    def drop(self) -> None:
        """See `oncegate.middleware.admission.buffers.Reader`. The kernel's buffer, which holds megabytes of it, is freed too."""
        transport = self._connection.transport
        with suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        transport.abort()
