"""What the kernel knows of a client's socket: its address, and how many bytes written are not acknowledged."""

import asyncio
import struct
from collections.abc import Callable
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Any


def address_of(name: Callable[[], Any]) -> tuple[str, int] | None:
    """Host and port, where the socket has them: one that is gone already has none."""
    try:
        address = name()
    except OSError:
        return None
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None


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
