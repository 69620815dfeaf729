"""What the kernel knows of a request that met the end of its connection (docs/decisions/0013-unread-requests.md).

A FIN acknowledges all that its sender had received by then. So where none of the request is acknowledged when the FIN is there,
the upstream had closed before the request came; and where a reset follows, it had closed both ways, so that nobody read it later.
"""

import asyncio
import fcntl
import select
import socket
import struct
import sys
import termios


def can_be_told(transport: asyncio.BaseTransport | None) -> bool:
    """Whether `unread` understands ``transport``: on Linux, TCP without TLS, whose own bytes would count too."""
    if transport is None or sys.platform != "linux" or transport.get_extra_info("sslcontext") is not None:
        return False
    return transport.get_extra_info("socket").family in (socket.AF_INET, socket.AF_INET6)


def unread(transport: asyncio.WriteTransport, poll: select.poll, length: int) -> bool | None:
    """Whether the last ``length`` bytes, written to a connection whose end has come, were never read; ``None``: ask later.

    ``poll`` watches its socket. May raise `OSError`.
    """
    # In this order: what comes between both can only make it known to have been read.
    was_reset = any(events & select.POLLERR for _, events in poll.poll(0))
    fd: int = transport.get_extra_info("socket").fileno()
    (unacknowledged,) = struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)))
    if unacknowledged < length or transport.get_write_buffer_size():
        return False
    return True if was_reset else None
