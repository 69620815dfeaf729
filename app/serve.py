"""Runs the gateway: sockets, processes, signals. What each process does, its stop too, is `oncegate.app.gateway_server`.

SIGHUP: the configuration is read anew (`oncegate.app.reload`).
"""

import logging
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial

import uvicorn

from oncegate.app import version
from oncegate.app.gateway_server import GatewayServer, server_config
from oncegate.app.listening import Listening
from oncegate.app.processes import (
    REFUSED,
    STOPPING,
    Processes,
    ignore_signals,
    unblock_signals,
)
from oncegate.app.reload.parent import ParentReload, WorkerLinks
from oncegate.app.reload.running import Read, Running
from oncegate.app.replacement.control import NotReplaced
from oncegate.app.server.accept import Balance
from oncegate.app.settings.advice import settings_advice
from oncegate.app.settings.certificates import ListenerTls, certificates
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import ConfigurationError, gateway_admin_token
from oncegate.app.telemetry import logs, observers
from oncegate.middleware.http.door import Observing

log = logging.getLogger("oncegate.serve")

USAGE = 2
"""The exit code for wrong configuration."""


def serve(
    settings: GatewaySettings,
    *,
    observe: Observing = observers.logged,
    announce: Callable[[str], None] | None = None,
    replace: bool = False,
    read: Read | None = None,
) -> int:
    """Run the gateway until it is stopped; returns the exit code. ``announce`` is called with its URL once it listens.

    ``replace``: in the place of the one that runs there, if one does. ``read`` reads the settings anew, for a reload; without it
    there is none.
    """
    logs.configure(settings.log_level, settings.log_format)
    try:
        tls = ListenerTls.of(settings)
        # Made before any fork: nothing in it has a connection, a thread or an event loop yet.
        running = Running(
            settings, admin_token=gateway_admin_token(), observe=observe, read=read, parts=[_prepare_logs], tls=tls
        )
    except ConfigurationError as error:
        return _refused(str(error), USAGE)
    try:
        listening = Listening(settings, replace=replace)
    except (OSError, NotReplaced) as error:
        return _refused(str(error))
    log.info("%s", version.running())
    for line in (*settings_advice(settings), *[line for each in certificates(settings) for line in each.advice()]):
        log.warning("%s", line)
    log.info("configuration %s", running.digest)
    balance = Balance(settings.workers) if settings.workers > 1 else None
    links = WorkerLinks() if running.reloads and balance is not None else None
    work = partial(_work, running, listening, announce, balance, links)
    try:
        if balance is None:
            return work(0)
        return _processes(running, listening, balance, links, work).run()
    finally:
        listening.close()


def _processes(
    running: Running, listening: Listening, balance: Balance, links: WorkerLinks | None, work: Callable[[int], int]
) -> Processes:
    def died(index: int) -> tuple[int, list[str]]:
        balance.died(index)
        return running.gateway.lasting.metrics.worker_died(index)

    processes = partial(
        Processes, running.settings.workers, work, listening.opened, died, successor=listening.replacement
    )
    if links is None:
        return processes()
    return processes(forking=links.open, forked=links.keep, hangup=ParentReload(running, links).reload)


def _prepare_logs(settings: GatewaySettings) -> Callable[[], None]:
    return partial(logs.configure, settings.log_level, settings.log_format)


def _work(
    running: Running,
    listening: Listening,
    announce: Callable[[str], None] | None,
    balance: Balance | None,
    links: WorkerLinks | None,
    index: int,
) -> int:
    """One process's life: of worker ``index``, or of a process that is alone, without a ``balance``."""
    link = links.enter() if links is not None else None
    replacement = listening.replacement
    replacement.index = index
    server = GatewayServer(
        server_config(running), running, announce=announce, balance=balance, link=link, replacement=replacement
    )
    # uvicorn raises the signal again when it has shut down: into these, which do nothing by then. Before it installs
    # its own, they make it stop as soon as it has started.
    for caught in STOPPING:
        signal.signal(caught, server.handle_exit)
    ignore_signals()
    if running.reloads and link is None:
        signal.signal(signal.SIGHUP, server.note_hangup)
    if balance is not None:
        running.gateway.lifespan.enter(index)
        balance.enter(index)
        unblock_signals()
    try:
        _run(server, list(listening.sockets), running)
    except SystemExit:  # how uvicorn reports that it could not start
        if replacement.is_first_refusal():  # workers are refused for the same reason: one line, not one per worker
            _refused(running.gateway.lifespan.refusal or "could not start")
        return REFUSED
    except OSError as error:
        settings = running.settings
        return _refused(f"can't listen on {settings.host}:{settings.port}: {error.strerror or error}")
    return 0


def _run(server: uvicorn.Server, sockets: list[socket.socket], running: Running) -> None:
    try:
        server.run(sockets=sockets)
    finally:
        if running.access_log is not None:
            running.access_log.lines.close()  # what the end has broken off has lines, too


def _refused(line: str, code: int = REFUSED) -> int:
    sys.stderr.write(f"oncegate: {line}\n")
    return code
