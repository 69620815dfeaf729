"""Flow control of a client's connection: what was read and waits to be parsed, what was written and waits to be taken.

A long read is parsed in pieces, so that other connections are served in between. Slow clients must each take something now and
then, and all together may leave only so much untaken.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import socket
import struct
from contextlib import suppress
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import TYPE_CHECKING, Final

from oncegate.middleware.admission.buffers import Unread

if TYPE_CHECKING:
    from oncegate.app.server.connection import InboundConnection

PIECE_BYTES: Final = 8192
"""The most that is parsed at once. A read may bring 256 KiB, in which there is room for 10,000 requests, or 40,000 chunks."""
ABORTED: Final = struct.pack("ii", 1, 0)
"""The option of a socket that is closed at once: nothing is sent any more."""


class Pieces:
    """The bytes that one connection has read and not parsed yet. Until they are parsed, nothing more is read."""

    __slots__ = ("_connection", "_scheduled", "_unparsed")

    def __init__(self, connection: "InboundConnection") -> None:
        self._connection = connection
        self._unparsed = b""
        self._scheduled = False

    def __bool__(self) -> bool:
        return len(self._unparsed) > 0

    @property
    def rest(self) -> bytes:
        """Those that are left."""
        return self._unparsed

    def first(self, data: bytes) -> bytes:
        """The part of ``data`` to be parsed now. The rest follows, as reads of their own, in the event loop's next rounds."""
        self._unparsed = data[PIECE_BYTES:]
        transport = self._connection.transport
        if self._unparsed and not transport.is_closing():
            transport.pause_reading()
            self.go_on()
        return data[:PIECE_BYTES]

    def go_on(self) -> None:
        """Have the next piece parsed soon."""
        if not self._scheduled:
            self._scheduled = True
            self._connection.loop.call_soon(self._next)

    def drop(self) -> None:
        """The connection is gone."""
        self._unparsed = b""
        self._connection = None  # type: ignore[assignment]  # it refers to us: without it the collector has nothing to do

    def _next(self) -> None:
        self._scheduled = False
        if self._unparsed and self._connection.takes_more:
            data, self._unparsed = self._unparsed, b""
            self._connection.data_received(data)
            self._read_on()

    def _read_on(self) -> None:
        connection: InboundConnection | None = self._connection  # gone perhaps
        if not self._unparsed and connection is not None and connection.takes_more:
            connection.transport.resume_reading()


class Unsent:
    """The bytes that one ``connection`` has not sent yet; ``unread`` counts them while writing is paused.

    Counted is what goes beyond what each connection may have anyway.
    A large write is counted as a whole until its last byte is taken: the transport keeps all of it until then. To learn of
    that, writing pauses for what is left of it, however little.
    """

    __slots__ = ("_at_turn", "_connection", "_large", "_unread", "_unread_before")

    def __init__(self, connection: "InboundConnection", unread: Unread | None) -> None:
        self._connection = connection
        self._unread = unread
        self._large = 0
        """Bytes of the large write that is under way."""
        self._unread_before = self._at_turn = 0

    def write(self, head: bytes, body: bytes) -> None:
        """Hand a large ``body`` to the transport, behind ``head``. Raises what that raises."""
        transport = self._connection.transport
        self._large = len(body)
        transport.set_write_buffer_limits(0)
        transport.writelines((head, body))
        if self._connection.writable is None and transport.get_write_buffer_size():
            # In Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 asyncio's own writelines doesn't pause writing. This does.
            transport.set_write_buffer_limits(0)
        if self._connection.writable is None:  # the kernel has all of it
            self._large = 0
            transport.set_write_buffer_limits()

    def stalls(self) -> None:
        """Writing is paused."""
        self.note_unread()
        self._at_turn = self._unread_before
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
        """Count ``size`` bytes that wait until writing goes on."""
        if self._unread is not None:
            self._unread.hold(self, size)

    def note_unread(self) -> None:
        """Note what is unread now: `shrinks` compares with it."""
        self._unread_before = unacknowledged(self._connection.transport)

    def shrinks(self) -> bool:
        """Whether the client has taken something since the last `note_unread`; if so, this counts as the next one."""
        now = unacknowledged(self._connection.transport)
        if now >= self._unread_before:
            return False
        self._unread_before = now
        return True

    def has_taken(self) -> bool:
        """See `oncegate.middleware.admission.buffers.Reader`."""
        before, self._at_turn = self._at_turn, unacknowledged(self._connection.transport)
        return self._at_turn < before

    def drop(self) -> None:
        """See `oncegate.middleware.admission.buffers.Reader`. The kernel's buffer, which holds megabytes of it, is freed too."""
        transport = self._connection.transport
        with suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORTED)
        transport.abort()


def unacknowledged(transport: asyncio.Transport) -> int:
    """How many bytes the client has not taken yet, as far as it can be known.

    The kernel's part counts: it holds megabytes, and takes more only once a third of them is gone, which for a slow client that
    does nothing wrong takes minutes.
    """
    waiting = transport.get_write_buffer_size()
    try:
        (sent,) = struct.unpack("i", ioctl(transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4)))
    except OSError:
        return waiting
    return waiting + int(sent)
