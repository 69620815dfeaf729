"""Processes and signals: forks workers on one port, replaces those that die, stops them and waits for them.

A worker is a fork, made while the parent is a single thread without an event loop: the listening sockets are simply
inherited. The parent does nothing but wait for signals, so that it can't be what fails. uvicorn's own supervisor was not
used because it polls, kills a worker that is merely paused, keeps the port open while workers drain, and can't be
given another `Server`.

Some signals stop a process in an orderly way, and the usual others are ignored. By default SIGHUP, SIGUSR1 and SIGUSR2 end it at
once, and with it the requests under way. They come from a terminal that is closed, from scripts that rotate logs, from habits
with other servers.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

log = logging.getLogger("oncegate.workers")
signal_log = logging.getLogger("oncegate.signals")

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""Signals by which a process stops once what is in flight is finished; SIGQUIT as nginx and Ctrl-\\ have it."""
IGNORED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
REFUSED = 1
"""The exit code of a worker that could not start: another one would fail in the same way."""
_WATCHED = (*STOPPING, *IGNORED, signal.SIGCHLD)
_BLOCKED = (*_WATCHED, signal.SIGALRM)
_RESTART_PAUSE = 1.0
"""A worker that died younger than this is replaced only after as long: a crash loop must not eat the machine."""


class Successor(Protocol):
    """The gateway that may come in this one's place."""

    @property
    def is_replaced(self) -> bool:
        """Whether it has come."""

    @property
    def can_be_replaced(self) -> bool:
        """Whether one can be started."""

    def start_successor(self) -> None:
        """Start it."""


class Processes:
    """``count`` processes that each run ``work(index)`` and exit with what it returns.

    ``died`` is called with the index of each that ended unasked, before another one is started in its place; it returns how many
    outcomes died with it, and the ids of those records that are known. A ``successor`` may be started by SIGUSR2;
    once it has replaced them, they end by themselves.
    """

    def __init__(
        self,
        count: int,
        work: Callable[[int], int],
        sockets: Sequence[socket.socket],
        died: Callable[[int], tuple[int, list[str]]],
        successor: Successor | None = None,
    ) -> None:
        self._count = count
        self._work = work
        self._sockets = sockets
        self._died = died
        self._successor = successor
        self._running: dict[int, tuple[int, float]] = {}  # by process id: its index, and when it was started
        self._stopping = False
        self._exit_code = 0

    def run(self) -> int:
        """Start them and return when the last one has ended: 0 after a stop, 1 where they could not start."""
        # Blocked signals wait for sigwait, in the parent, and for `unblock_signals` in a child: none is lost in between.
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        for index in range(self._count):
            self._start(index)
        while self._running:
            received = signal.sigwait(_WATCHED)
            if received == signal.SIGCHLD:
                self._reap()
            elif received == signal.SIGUSR2 and self._successor is not None and self._successor.can_be_replaced:
                self._successor.start_successor()
            elif received in IGNORED:
                log.warning("%s is ignored", signal.Signals(received).name)
            else:
                self._stop(signal.Signals(received))
        return self._exit_code

    def _start(self, index: int) -> None:
        process = os.fork()
        if process == 0:
            code = 70  # the exit code of a crash
            try:
                code = self._work(index)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)  # nothing of the parent's must run in a child: no exit handlers, no callers
        self._running[process] = (index, monotonic())

    def _reap(self) -> None:
        if self._successor is not None and self._successor.is_replaced:
            self._close()
        while self._running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                return
            if process not in self._running:  # a successor that did not start
                continue
            index, started = self._running.pop(process)
            code = os.waitstatus_to_exitcode(status)
            if code == REFUSED and not self._stopping:
                self._exit_code = 1
                self._stop(signal.SIGTERM)
                continue
            if self._stopping and code in (0, REFUSED):
                continue
            self._count_death(index, process, code)
            if self._stopping:
                continue
            if monotonic() - started < _RESTART_PAUSE:
                # Not sigtimedwait: to a process that was stopped meanwhile, Python returns a signal that nobody has sent.
                signal.setitimer(signal.ITIMER_REAL, _RESTART_PAUSE)
                received = signal.sigwait((*STOPPING, signal.SIGALRM))
                signal.setitimer(signal.ITIMER_REAL, 0)
                if received != signal.SIGALRM:
                    self._stop(signal.Signals(received))
                    continue
            self._start(index)

    def _count_death(self, index: int, process: int, code: int) -> None:
        why = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        lost, records = self._died(index)
        then = "" if self._stopping else ": starting another"
        log.error("worker %d ended by itself (%s)%s; %d outcomes are unknown", process, why, then, lost)
        for record in records:
            log.error("record %s: the outcome is unknown, its worker %d died", record, process)

    def _stop(self, received: signal.Signals) -> None:
        """Pass the signal on; a second SIGINT makes workers end without waiting for anything."""
        self._close()
        for process in self._running:
            os.kill(process, received)

    def _close(self) -> None:
        """No worker is replaced any more."""
        self._stopping = True
        for listening in self._sockets:
            listening.close()  # as long as it is open, the kernel takes connections that no process would accept


def ignore_signals() -> None:
    """Have `IGNORED` do nothing from now on; before there is an event loop."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)


def log_ignored_signals() -> None:
    """Have `IGNORED` leave a line in the log from now on; in an event loop of the main thread."""
    loop = asyncio.get_running_loop()
    for number in IGNORED:
        loop.add_signal_handler(number, signal_log.warning, "%s is ignored", number.name)


def stop_by_signals(stop: Callable[[], None]) -> None:
    """The same, and `STOPPING` call ``stop``."""
    loop = asyncio.get_running_loop()
    for number in STOPPING:
        loop.add_signal_handler(number, stop)
    log_ignored_signals()


def unblock_signals() -> None:
    """Let signals through, once a worker's own handlers are in place."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
