"""The supervisor's side of a start: sockets that it has opened, and what it is notified of (systemd's protocols).

A socket that the supervisor holds outlives the process: while nothing accepts, connections wait in its queue, and none is
refused. ``sd_listen_fds(3)``: `LISTEN_FDS` sockets from descriptor 3 on, for the process `LISTEN_PID`, named by
`LISTEN_FDNAMES`. ``sd_notify(3)``: lines to the datagram socket `NOTIFY_SOCKET`.
"""

import logging
import os
import socket
from collections.abc import MutableMapping

log = logging.getLogger("oncegate.serve")

FIRST = 3
"""The first descriptor that is handed over."""
HTTP, OPS = "http", "ops"
"""The names (``FileDescriptorName=``) of sockets for requests, and for operations. One without a name, or with any other one, as
systemd gives it the unit's, is for operations where it listens on ``ops_port``, else for requests."""


class UnusableSockets(OSError):
    """The supervisor's sockets can't be served on. The text is one line for the operator."""


def given_sockets(ops_port: int, environment: MutableMapping[str, str] = os.environ) -> tuple[list[socket.socket], ...]:
    """The supervisor's sockets for requests, and those for operations; neither where it has handed over none.

    Takes its variables out of ``environment``, so that no child believes them to be its own. Raises `UnusableSockets`.
    """
    pid, count, names = (environment.pop(f"LISTEN_{name}", "") for name in ("PID", "FDS", "FDNAMES"))
    if pid != str(os.getpid()):
        return [], []
    if not count.isdecimal() or not int(count):
        raise UnusableSockets("LISTEN_FDS: is no number of sockets above 0")
    kinds = names.split(":") if names else []
    if len(kinds) not in (0, int(count)):
        raise UnusableSockets(f"LISTEN_FDNAMES: names {len(kinds)} sockets, and LISTEN_FDS says {count}")
    found: dict[str, list[socket.socket]] = {HTTP: [], OPS: []}
    for index in range(int(count)):
        given = _listening(FIRST + index)
        kind = OPS if given.getsockname()[1] == ops_port else HTTP
        name = kinds[index] if kinds else ""
        if name in found and name != kind:
            on_ops_port = "listens on ops_port" if kind == OPS else "does not listen on ops_port"
            raise UnusableSockets(f"LISTEN_FDNAMES: the socket named {name} {on_ops_port} ({ops_port})")
        found[kind].append(given)
    if not found[HTTP]:
        raise UnusableSockets("LISTEN_FDS: has no socket for requests, only for ops_port")
    return found[HTTP], found[OPS]


def _listening(descriptor: int) -> socket.socket:
    where = f"LISTEN_FDS: descriptor {descriptor}"
    try:
        given = socket.socket(fileno=descriptor)
    except OSError:
        raise UnusableSockets(f"{where} is no socket") from None
    if given.family not in (socket.AF_INET, socket.AF_INET6) or given.type != socket.SOCK_STREAM:
        raise UnusableSockets(f"{where} is no TCP socket (ListenStream= with a port)")
    if not given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise UnusableSockets(f"{where} does not listen; a unit's Accept= must be no")
    given.set_inheritable(False)
    return given


def notify(*lines: str) -> None:
    """Notify the supervisor of ``lines`` such as ``READY=1``, if it wants to know."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address[0] == "@":  # of Linux's abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)
            channel.sendto("\n".join(lines).encode(), address)
    except OSError as error:
        log.warning("NOTIFY_SOCKET can't be notified: %s", error.strerror or error)
