"""The connection pool of the upstream: opens connections, and keeps idle ones for a short time.

An idle connection that the upstream closes as a request goes out can cost a command its key (it was sent, no answer came: outcome
unknown; docs/decisions/0013-sent-again.md). So idle ones are kept for a shorter time than common upstreams keep them, and are
checked right before their use.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from oncegate.app.settings.certificates import Certificate
from oncegate.app.upstream.connection import UpstreamConnection
from oncegate.app.upstream.opening import Connector
from oncegate.middleware.outcome.errors import NotProcessed

KEEPALIVE_MARGIN: Final = 0.5
"""Seconds by which we close an idle connection before the time that the upstream announced."""


class Upstream:
    """The connections to one upstream, of which the idle ones are kept, the last used on top.

    ``connect_timeout`` (seconds) covers looking up the name, every address that it has, and TLS. Idle connections are kept for
    ``keepalive`` seconds, or less where the upstream announces less; 0 keeps none.
    ``max_idle`` is how many: room for as many as are in use at once, since each one without room costs a new
    connection a moment later. ``ca_file``: PEM, instead of the system's. ``certificate``: what the upstream is shown of us.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout: float,
        keepalive: float,
        ca_file: str | None = None,
        certificate: Certificate | None = None,
        max_idle: int = 1024,
    ) -> None:
        self._connector = Connector(url, timeout=connect_timeout, ca_file=ca_file, certificate=certificate)
        self.address = self._connector.address
        self._keepalive = keepalive
        self._max_idle = max_idle
        self._idle: list[UpstreamConnection] = []
        self.connections: set[UpstreamConnection] = set()
        """Those that are open, in use or idle."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def idle(self) -> int:
        """The number of idle connections."""
        return len(self._idle)

    def take(self, is_checked: bool = True) -> UpstreamConnection | None:
        """An idle connection that can be written to at once, if it ``is_checked``; ``None``: `ready` opens one."""
        loop = self._loop
        if loop is None or not loop.is_running():  # looking up the running loop would cost more
            loop = self._bind()
        while self._idle:
            connection = self._idle.pop()
            if connection.lost or connection.expires <= loop.time():
                connection.close()
            elif is_checked and connection.is_stale():
                connection.abort()
            else:
                return connection
        return None

    async def ready(
        self, confirm: Callable[[], Awaitable[None]] | None = None, *, new: bool = False
    ) -> UpstreamConnection:
        """A connection that can be written to at once, after ``confirm`` has agreed. ``new``: none that was idle.

        Raises `NotProcessed` where none can be had, or what ``confirm`` raises: nothing was sent then.
        """
        while True:
            connection, is_new = None if new else self.take(is_checked=False), False
            if connection is None:
                connection, is_new = await self._connect(), True
            if confirm is not None:
                try:
                    await confirm()
                except BaseException:  # whatever ends the confirmation, a cancellation too: the connection goes back
                    self._keep(connection, self._keepalive)  # unused: as good as it was
                    raise
            # Checked last, since confirming may take a while. A kept one that went stale costs nothing: take another.
            if not (connection.lost if is_new else connection.is_stale()):
                return connection
            connection.abort()
            if is_new:
                raise NotProcessed(f"{self.address.where} closed the connection before anything was sent")

    def give_back(self, connection: UpstreamConnection) -> None:
        """Ends a connection's exchange: keeps it for the next one, or closes it where it can't be used again."""
        if not connection.finish():
            connection.close()
            return
        seconds, announced = self._keepalive, connection.response.head.idle_timeout
        if announced is not None:
            seconds = min(seconds, announced - KEEPALIVE_MARGIN)
        self._keep(connection, seconds)

    async def probe(self) -> None:
        """Opens a connection and closes it again. Raises `NotProcessed`."""
        (await self._connect()).close()

    async def close(self) -> None:
        """Closes every idle connection now, and the others when their exchange ends."""
        self._closed = True
        self._bind()
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        closing = [connection.closed for connection in self.connections if connection.lost]
        if closing:
            await asyncio.wait(closing, timeout=1)

    def _bind(self) -> asyncio.AbstractEventLoop:
        """The running loop. Connections belong to one: those of another (a test client makes one per request) are forgotten."""
        if self._loop is None or not self._loop.is_running():
            self._idle.clear()
            self.connections.clear()
            self._sweeper = None
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _keep(self, connection: UpstreamConnection, seconds: float) -> None:
        loop = self._loop
        if seconds <= 0 or self._closed or connection.lost or len(self._idle) >= self._max_idle or loop is None:
            connection.close()
            return
        connection.expires = loop.time() + seconds
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._keepalive, self._sweep)

    def _sweep(self) -> None:
        """Closes what has expired; runs only while there is something idle."""
        self._sweeper = None
        if self._loop is None:
            return
        now = self._loop.time()
        kept = []
        for connection in self._idle:
            if connection.lost or connection.expires <= now:
                connection.close()
            else:
                kept.append(connection)
        self._idle = kept
        if kept:
            soonest = min(connection.expires for connection in kept)
            self._sweeper = self._loop.call_at(soonest + 0.01, self._sweep)

    async def _connect(self) -> UpstreamConnection:
        self._bind()
        connection = await self._connector.open()
        self.connections.add(connection)
        connection.closed.add_done_callback(lambda _: self.connections.discard(connection))
        return connection
