"""Binds the sockets that a server listens on."""

import socket


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
