"""Listening sockets: binds them, accepts waiting connections many at a time, and leaves other workers their share.

libuv, and so uvloop, accepts one connection per turn of its loop. Where clients connect all at once (a load balancer that
starts anew, a deployment) while those already there keep the process busy, each turn takes as long as all their requests,
and on a busy machine the last of 256 was accepted after most of a second. nginx has ``multi_accept`` for this.

So this accepts in the loop's place, on duplicates of the listening sockets, all connections that wait; where there are
several workers, only its share (`Balance`). The rest is left to the others until they have taken it or are gone, for at most
`PATIENCE` checks.
"""

import asyncio
import errno
import logging
import socket
import struct
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from math import ceil
from time import monotonic
from typing import Final

from oncegate.app.settings.certificates import ListenerTls
from oncegate.app.telemetry.columns import SharedNumbers

log = logging.getLogger("oncegate.serve")

MOST = 64
"""Connections that one turn accepts: what is open is served in between."""
CHECK_SECONDS = 0.005
PATIENCE = 200
"""Checks of connections that are left to others, before some of them are accepted after all."""
RETRY_SECONDS = 1.0
"""The pause where no descriptor or no memory is free."""
HANDSHAKE_SECONDS = 15.0
"""The time for a TLS handshake, as for a request's head."""
CLOSING_SECONDS = 5.0
"""The time for a client to answer the end of TLS."""
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_TCP_INFO = getattr(socket, "TCP_INFO", None)  # Linux has it
_UNACKED = struct.Struct("@24xI")
"""``tcpi_unacked``: of a socket that listens, how many connections wait."""
_PROBABLY = 8
"""Connections that wait, where the kernel doesn't say."""
STALE_SECONDS: Final = 1.0
"""A worker that has published nothing for so long is stopped, or stuck, and gets no share. Workers publish ten times as often."""
_HELD, _AT = 0, 1


def bind(host: str, port: int, setting: str = "") -> list[socket.socket]:
    """Sockets on every address of ``host``, not listening yet: until the gateway has started, connections are refused.

    Raises `OSError`, with the reason in one line, which names the ``setting`` that ``port`` comes from.
    """
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
    except OSError as error:
        for bound in sockets:
            bound.close()
        named = f" ({setting})" if setting else ""
        raise OSError(f"can't listen on {host}:{port}{named}: {error.strerror or error}") from None
    return sockets


class Balance:
    """A count in shared memory of what each worker holds, so that none accepts more than its share.

    To be made before ``workers`` are forked; each then calls `enter`.

    A connection stays with the process that accepted it, and a load balancer keeps its pool for hours: the first worker to
    wake up must not take all of it. SO_REUSEPORT, by which the kernel would distribute them, gives each worker a queue of its
    own, and resets what waits in the queue of a worker that dies.
    """

    def __init__(self, workers: int) -> None:
        self._numbers = SharedNumbers(2, workers)

    def enter(self, index: int) -> None:
        """This process is worker ``index``. It has its share from now on, although it does not accept yet."""
        self._numbers.take(index)
        self.publish(0)

    def publish(self, held: int) -> None:
        """Publish how many connections this worker holds, and that it is alive."""
        row = self._numbers.row
        row[_HELD], row[_AT] = held, monotonic()

    def leave(self) -> None:
        """This worker accepts nothing, until it publishes again."""
        self._numbers.row[_AT] = 0

    def died(self, index: int) -> None:
        """Clear the counts of worker ``index``, which is gone. Called by the parent."""
        self._numbers.take(index)
        self.leave()

    def room(self, held: int, waiting: int) -> int:
        """How many of the connections that wait this worker, which holds ``held``, should accept; perhaps none."""
        self.publish(held)
        total, workers = self._totals(waiting)
        # No more than its fair share: a tenth more for each of three would leave the fourth two thirds of theirs.
        return max(0, ceil(total / workers) - held)

    def part(self, waiting: int) -> int:
        """This worker's share of ``waiting`` alone, once the others have had their time and did not accept."""
        return ceil(waiting / self._totals(0)[1])

    def _totals(self, waiting: int) -> tuple[float, int]:
        """All connections, and how many workers are alive: at least the calling one."""
        since = monotonic() - STALE_SECONDS
        there = [
            held for held, at in zip(self._numbers.column(_HELD), self._numbers.column(_AT), strict=True) if at > since
        ]
        return waiting + sum(there), max(1, len(there))


class Acceptor:
    """An acceptor of connections on ``sockets``, which listen already; ``make`` makes a connection's protocol.

    ``connections`` are the protocols of those that are open. Without a ``balance``, this process is alone. ``tls`` is what
    connections begin with, if they do.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        make: Callable[[], asyncio.Protocol],
        connections: AbstractSet[asyncio.Protocol] = frozenset(),
        balance: Balance | None = None,
        tls: ListenerTls | None = None,
    ) -> None:
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._sockets = [each.dup() for each in sockets]
        self._make = make
        self._connections = connections
        self._balance = balance
        self._opening: dict[asyncio.Task[None], asyncio.Protocol] = {}
        self._timers: dict[socket.socket, asyncio.TimerHandle] = {}
        self._is_scarce = False

    def start(self) -> None:
        """Begin to accept."""
        self.publish()
        for each in self._sockets:
            each.setblocking(False)
            self._watch(each)

    def stop(self) -> None:
        """Accept nothing more, so that the port closes once the sockets themselves are closed."""
        while self._sockets:
            each = self._sockets.pop()
            self._loop.remove_reader(each.fileno())
            each.close()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._balance is not None:
            self._balance.leave()

    def publish(self) -> None:
        """Publish the count, several times a second: workers leave connections only to those that published lately."""
        if self._balance is not None and self._sockets and not self._is_scarce:
            self._balance.publish(self._held())

    def _held(self) -> int:
        return len(self._connections) + sum(each not in self._connections for each in self._opening.values())

    def _watch(self, listening: socket.socket) -> None:
        self._timers.pop(listening, None)
        self._is_scarce = False
        self._loop.add_reader(listening.fileno(), self._on_waiting, listening)

    def _pause(self, listening: socket.socket, seconds: float, then: Callable[..., None], *arguments: object) -> None:
        self._loop.remove_reader(listening.fileno())
        self._timers[listening] = self._loop.call_later(seconds, then, listening, *arguments)

    def _on_waiting(self, listening: socket.socket) -> None:
        """Connections wait, or have waited until another worker took them."""
        if self._balance is None:
            self._accept(listening, MOST)
            return
        room = self._balance.room(self._held(), _waiting(listening))
        if room:
            self._accept(listening, room)
        else:
            self._pause(listening, CHECK_SECONDS, self._on_left, self._balance, PATIENCE)

    def _on_left(self, listening: socket.socket, balance: Balance, patience: int) -> None:
        """Look again at connections that were left to others."""
        waiting = _waiting(listening)
        room = balance.room(self._held(), waiting)
        if waiting and not room and patience > 1:
            self._pause(listening, CHECK_SECONDS, self._on_left, balance, patience - 1)
            return
        self._watch(listening)
        self._accept(listening, room or balance.part(waiting))

    def _accept(self, listening: socket.socket, count: int) -> None:
        for _ in range(min(count, MOST)):
            try:
                connection, _address = listening.accept()
            except BlockingIOError:  # no connection waits any more
                break
            except OSError as error:
                if error.errno not in _SCARCE:  # it broke while it waited
                    continue
                log.error("no more connections can be accepted for now: %s", error.strerror)
                self._is_scarce = True
                self._pause(listening, RETRY_SECONDS, self._watch)
                if self._balance is not None:
                    self._balance.leave()
                return
            connection.setblocking(False)
            protocol = self._make()
            task = self._loop.create_task(self._open(connection, protocol))
            self._opening[task] = protocol
            task.add_done_callback(self._opening.pop)
        self.publish()

    async def _open(self, connection: socket.socket, protocol: asyncio.Protocol) -> None:
        tls = self._tls
        try:
            if tls is None:
                await self._loop.connect_accepted_socket(lambda: protocol, connection)
            else:
                await self._loop.connect_accepted_socket(
                    lambda: protocol,
                    connection,
                    ssl=tls.context,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                    ssl_shutdown_timeout=CLOSING_SECONDS,
                )
        except OSError as error:
            log.debug("a connection broke before it was open: %s", error)
            connection.close()


def _waiting(listening: socket.socket) -> int:
    """How many connections wait to be accepted."""
    if _TCP_INFO is None:
        return _PROBABLY
    waiting: int = _UNACKED.unpack(listening.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _UNACKED.size))[0]
    return waiting
