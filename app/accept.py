"""Accepts waiting connections many at a time.

libuv, and so uvloop, accepts one connection per turn of its loop. Where clients connect all at once (a load balancer that
starts anew, a deployment) while those already there keep the process busy, each turn takes as long as all their requests,
and on a busy machine the last of 256 was accepted after most of a second. nginx has ``multi_accept`` for this.

The loop's own accepting stays: it takes one connection, and what it leaves is taken here, on a duplicate of the listening
socket, in the same turn.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

log = logging.getLogger("oncegate.serve")

MOST = 64
"""Connections that one turn accepts; with several workers, the others shall get theirs."""


class Acceptor:
    """Accepts on ``sockets``, which listen already, from `start` to `stop`; ``make`` makes a connection's protocol."""

    def __init__(self, sockets: Sequence[socket.socket], make: Callable[[], asyncio.Protocol]) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = [each.dup() for each in sockets]
        self._make = make
        self._opening: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Accept from now on."""
        for each in self._sockets:
            each.setblocking(False)
            self._loop.add_reader(each.fileno(), self._accept, each)

    def stop(self) -> None:
        """Accept nothing more, so that the port closes once the sockets themselves are closed."""
        while self._sockets:
            each = self._sockets.pop()
            self._loop.remove_reader(each.fileno())
            each.close()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(MOST):
            try:
                connection, _address = listening.accept()
            except OSError:  # nobody waits any more, or no descriptor is free: the loop's own accepting deals with that
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection)
        except OSError as error:
            log.debug("a connection broke before it was open: %s", error)
            connection.close()
