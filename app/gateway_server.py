"""The server of one of the gateway's processes: its start, and a stop that finishes what was begun.

SIGTERM, SIGINT or SIGQUIT: not ready from now on; after ``drain_delay`` the port closes; attempts in flight end, those whose
clients have left too; exit code 0. What is still running after ``shutdown_timeout`` is left to its lease.

A gateway that was replaced (`oncegate.app.replacement`) lets its connections end before that.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from oncegate.app.gateway.gateway import Gateway
from oncegate.app.operators.heartbeats import MINUTES, Heartbeat, shortened
from oncegate.app.processes import log_ignored_signals
from oncegate.app.reload.link import Link
from oncegate.app.reload.running import Running
from oncegate.app.reload.worker import OwnReload, WorkerReload
from oncegate.app.replacement.control import NotReplaced
from oncegate.app.replacement.replacement import Replacement
from oncegate.app.server.accept import Acceptor, Balance
from oncegate.app.server.connection import KEEP_ALIVE_SECONDS, InboundConnection
from oncegate.app.settings.gateway import redact
from oncegate.app.supervisor import notify
from oncegate.middleware.admission.request import gateway_id

log = logging.getLogger("oncegate.serve")

BACKLOG = 2048
COLLECT_AFTER = 50_000
"""Objects made and not dropped, until the garbage collector looks at them."""
LAST_WORDS_SECONDS = 1.0
"""After ``shutdown_timeout``, for closing connections in an orderly way."""


def server_config(gateway: Gateway | Running) -> uvicorn.Config:
    """uvicorn's configuration for a gateway: nothing added to responses, no forwarding header trusted, heads bounded."""
    return uvicorn.Config(
        gateway,
        interface="asgi3",
        http=connection_class(gateway),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
    )


def connection_class(gateway: Gateway | Running) -> type[InboundConnection]:
    """The protocol of clients' connections."""
    if gateway.access_log is None:
        return InboundConnection
    from oncegate.app.server.followed import FollowedConnection  # where nothing is followed, it is not loaded

    return FollowedConnection


class GatewayServer(uvicorn.Server):
    """uvicorn's server with our stop: unready first, bounded as a whole, and together with its parent."""

    def __init__(
        self,
        config: uvicorn.Config,
        running: Running,
        *,
        announce: Callable[[str], None] | None,
        balance: Balance | None = None,
        link: Link | None = None,
        replacement: Replacement | None = None,
    ) -> None:
        super().__init__(config)
        self._connection_class = connection_class(running)
        self._balance = balance
        self._replacement = replacement
        self._running = running
        self._link = link
        self._hung_up = False
        self._parent = os.getppid()
        self._announce = announce
        self._acceptor: Acceptor | None = None
        self._loading: asyncio.Future[None] | None = None
        self._index = 0 if replacement is None else replacement.index
        self._heartbeat = Heartbeat(
            running.gateway.lasting.cache, running.settings.namespace, gateway_id(), self._entry
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept on ``sockets``, and announce it. Ends the process where it can't take the place of a running one."""
        await super().startup([])  # given the sockets, it would accept beside the acceptor for a moment
        if not self.started or not sockets:
            return
        if self._replacement is not None:
            await self._begin(self._replacement)
        if self.should_exit:
            return
        for each in sockets:
            each.listen(BACKLOG)
        running = self._running
        self._acceptor = Acceptor(sockets, self._connection, self.server_state.connections, self._balance, running.tls)
        self._acceptor.start()
        self._take_reloads()
        _spare_the_collector()
        settings = running.settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        scheme = "http" if running.tls is None else "https"
        url = f"{scheme}://{host}:{sockets[0].getsockname()[1]}"
        log.info("listening on %s, upstream %s, cache %s", url, redact(settings.upstream), redact(settings.cache))
        if settings.ops_port:
            log.info("metrics and records on %s://%s:%d%s", scheme, host, settings.ops_port, settings.prefix)
        if self._announce:
            self._announce(url)
        self._loading = asyncio.ensure_future(self._load_operations())
        self._heartbeat.start()
        if self._replacement is not None:
            self._replacement.start()
            if self._balance is None and self._replacement.can_be_replaced:
                asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, self._replacement.start_successor)
            self._notify("READY=1", f"MAINPID={self._replacement.pid}")

    async def _entry(self) -> dict[str, Any]:
        """This process's entry in the cache, by which others see it."""
        running = self._running
        first = os.getpid() if self._balance is None else self._parent
        entry = {
            "kind": "gateway",
            "gateway": f"{gateway_id().rpartition('/')[0]}/{first}",
            "configuration": running.digest,
        }
        if self._index:
            return entry
        return entry | {"decisions": shortened(await running.gateway.lasting.recent.listing(MINUTES))}

    def note_hangup(self, *_: object) -> None:
        """SIGHUP came during the start: the configuration may have been read before it was written."""
        self._hung_up = True

    def _take_reloads(self) -> None:
        if not self._running.reloads:
            log_ignored_signals()
        elif self._link is None:
            own = OwnReload(self._running)
            own.start()
            log_ignored_signals(own.on_signal)
            if self._hung_up:
                own.on_signal()
        else:
            WorkerReload(self._running, self._link).start()
            log_ignored_signals(partial(log.info, "SIGHUP is for the parent process, which reloads"))

    def _notify(self, *lines: str) -> None:
        """Notify the supervisor, in the name of all workers."""
        if self._replacement is not None and self._replacement.index == 0:
            notify(*lines)

    async def _begin(self, replacement: Replacement) -> None:
        try:
            await replacement.begin(self._ready, lambda: self.should_exit)
        except NotReplaced as refusal:
            self._running.gateway.lifespan.refusal = str(refusal)
            await self.lifespan.shutdown()
            sys.exit(STARTUP_FAILURE)

    async def _ready(self) -> dict[str, str]:
        await self._running.gateway.operations.load()
        _, states = await self._running.gateway.lasting.readiness.check()
        return states

    async def _load_operations(self) -> None:
        """After the start, which would take longer; before anybody waits for it."""
        await self._running.gateway.operations.load()
        _spare_the_collector()

    def _connection(self) -> asyncio.Protocol:
        connection = self._connection_class(self.config, self.server_state, self.lifespan.state)
        if self._balance is not None and self._acceptor is not None:
            connection.on_lost = self._acceptor.publish  # what is held no more must not count in the others' parts
        return connection

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop; called by uvicorn ten times a second."""
        if self._balance is not None and os.getppid() != self._parent:
            log.error("the parent process is gone: stopping")
            self.should_exit = True
        if self._acceptor is not None:
            self._acceptor.publish()
        if self._replacement is not None and self._replacement.is_replaced:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop in order, within ``drain_delay`` and ``shutdown_timeout``."""
        is_replaced = self._replacement is not None and await self._replacement.stop()
        if is_replaced:
            await self._retire(sockets)
        else:
            self._notify("STOPPING=1")
        self._running.gateway.lasting.readiness.draining = True
        log.info("stopping: attempts in flight are finished first")
        delay = 0.0 if is_replaced or self._acceptor is None else self._running.settings.drain_delay
        until = asyncio.get_running_loop().time() + delay
        while asyncio.get_running_loop().time() < until and not self.force_exit:  # noqa: ASYNC110  # a signal handler sets it
            await asyncio.sleep(0.05)  # force_exit is set by a signal handler: there is nothing to await
        if self._acceptor is not None:
            self._acceptor.stop()
        await self._heartbeat.stop()
        cut = asyncio.get_running_loop().call_later(self._running.settings.shutdown_timeout, self._cut)
        try:
            async with asyncio.timeout(self._running.settings.shutdown_timeout + LAST_WORDS_SECONDS):
                await super().shutdown(sockets)
        except TimeoutError:
            log.warning("shutdown_timeout is over: what is still running will read unknown once its lease lapses")
        finally:
            cut.cancel()

    async def _retire(self, sockets: list[socket.socket] | None) -> None:
        """Another gateway has the sockets: let connections end by themselves.

        Each gets one more response, which says that it is the last; none is closed while a request may be on its way to it.
        """
        log.info("replaced: connections and attempts in flight end first")
        if self._acceptor is not None:
            self._acceptor.stop()
        for each in sockets or ():
            each.close()
        connections: Any = self.server_state.connections  # ours, not those of uvicorn that it is declared for
        until = asyncio.get_running_loop().time() + max(KEEP_ALIVE_SECONDS, self._running.settings.shutdown_timeout)
        while asyncio.get_running_loop().time() < until and not self._captured_signals:
            for connection in list(connections):
                connection.retire()
            await asyncio.sleep(0.05)
            if not connections:  # not before a pause: one that was just accepted is not among them yet
                return

    def _cut(self) -> None:
        """Break what is still open. uvicorn's own time-out would answer 500, and a client would take that for a failure."""
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


def _spare_the_collector() -> None:
    """Exempt what exists by now from garbage collection, since it stays. Requests leave no cycles behind, so that collecting
    now and then is enough. In our own process alone: another's settings are not ours to change.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 50)
