"""Sockets: those that a server listens on; of a client's, its address, and how many bytes written are not acknowledged."""

import asyncio
import socket
import struct
from collections.abc import Callable
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Any


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets on every address of ``host``, not listening yet: until the gateway has started, connections are refused."""
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            bound = socket.socket(family, kind, protocol)
            sockets.append(bound)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # With port 0, all addresses get the port that the first one was given.
            wanted = port or (sockets[0].getsockname()[1] if len(sockets) > 1 else 0)
            bound.bind((address[0], wanted, *address[2:]))
    except OSError:
        for bound in sockets:
            bound.close()
        raise
    return sockets


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
