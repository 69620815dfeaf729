"""The parent's part of a reload: it reads, has every worker prepare, and only then has all of them switch.

Strategy, in the order that matters:

1. The parent reads the files, once for all, and builds a replacement itself: what is wrong with them ends here.
2. Every worker prepares the same settings, which the parent sends. One that can't, or does not answer, ends it: nobody switches.
   One that has died is not waited for.
3. The parent switches, so that a worker that is forked from now on begins with the new configuration.
4. The workers switch. One that dies before it has is replaced by one that begins with the new configuration.

The parent is one thread and forks nobody meanwhile: signals wait until it is done (`oncegate.app.processes`).
"""

import logging
import os
import select
import signal
import socket
from collections.abc import Mapping
from time import monotonic
from typing import Final

from oncegate.app.operators.reloading import Reloaded
from oncegate.app.processes import STOPPING
from oncegate.app.reload.link import Answered, DropNew, Installed, InstallNew, Link, Prepared, PrepareNew, Requested
from oncegate.app.reload.running import Running
from oncegate.app.settings.loading.sources import ConfigurationError

log = logging.getLogger("oncegate.reload")

PREPARE_SECONDS: Final = 30.0
"""The time for all workers to prepare: the keys of tokens, the cache and a busy event loop included."""
INSTALL_SECONDS: Final = 10.0
"""The time for them to switch. One that takes longer is stopped, and switches before anything else once it goes on."""
_LOOK_SECONDS: Final = 0.1
"""How often the parent looks whether it is to stop."""


class WorkerLinks:
    """The parent's links to its workers. For each fork: `open`, then `enter` in the worker and `keep` in the parent."""

    def __init__(self) -> None:
        self.by_index: dict[int, Link] = {}
        self.processes: dict[int, int] = {}
        self._ends: tuple[socket.socket, socket.socket] | None = None

    def open(self, index: int) -> None:
        """Make the pair for worker ``index``, in place of its predecessor's."""
        self.drop(index)
        self._ends = socket.socketpair()

    def keep(self, index: int, process: int) -> None:
        """Worker ``index``, which is ``process``, has its end: keep the other one."""
        self.processes[index] = process
        if self._ends is not None:
            ours, its = self._ends
            self.by_index[index] = Link(ours)
            its.close()
            self._ends = None

    def enter(self) -> Link:
        """This process is the worker: its end. The others' are not its own."""
        if self._ends is None:
            raise RuntimeError("no link was made for this worker")
        for link in self.by_index.values():
            link.close()
        ours, its = self._ends
        ours.close()
        return Link(its)

    def drop(self, index: int) -> None:
        """Worker ``index`` is gone."""
        link = self.by_index.pop(index, None)
        if link is not None:
            link.close()


class ParentReload:
    """The reload of a parent's gateway, and of the workers behind ``links``."""

    def __init__(self, running: Running, links: WorkerLinks) -> None:
        self._running = running
        self._links = links
        self._number = 0
        self._requests: list[tuple[int, int]] = []
        self._stuck: set[int] = set()

    def reload(self) -> None:
        """Read the configuration anew, and have all processes serve by it, or none."""
        self._receive(0.0)  # who has asked by now is answered: later ones are sent another signal
        requests, self._requests = self._requests, []
        try:
            reloaded = self._reloaded()
        except ConfigurationError as error:
            reloaded = self._running.refused(str(error))
        except Exception as error:  # a fault of ours must not end the parent, and with it every worker
            log.exception("a reload failed")
            reloaded = self._running.refused(f"a fault of the gateway's own: {type(error).__name__}")
        for index, request in requests:
            self._send(index, Answered(request, reloaded))

    def _reloaded(self) -> Reloaded:
        running, before = self._running, self._running.settings
        new = running.read()
        replacement = running.build(new.settings)
        self._number += 1
        self._stuck.clear()
        for index in [*self._links.by_index]:
            self._send(index, PrepareNew(self._number, new.settings))
        refusal = self._prepared()
        if refusal:
            for index in [*self._links.by_index]:
                self._send(index, DropNew(self._number))
            return running.refused(refusal)
        running.install(replacement)
        for index in [*self._links.by_index]:
            self._send(index, InstallNew(self._number))
        self._installed()
        return running.applied(before, new.wait)

    def _prepared(self) -> str:
        """Wait until every worker that lives is ready. Why one is not, empty where all are."""
        until = monotonic() + PREPARE_SECONDS
        ready: set[int] = set()
        if self._stuck:
            return f"worker {min(self._stuck)} takes no message: it is replaced; reload again then"
        while missing := self._links.by_index.keys() - ready:
            if signal.sigpending() & {*STOPPING}:
                return "the gateway is stopping"
            if monotonic() >= until:
                return f"worker {min(missing)} did not answer within {PREPARE_SECONDS:g} s"
            for index, message in self._receive(_LOOK_SECONDS):
                if isinstance(message, Prepared) and message.number == self._number:
                    if message.refusal:
                        return message.refusal
                    ready.add(index)
        return "" if self._links.by_index else "no worker lives that could check it; reload again once one does"

    def _installed(self) -> None:
        until = monotonic() + INSTALL_SECONDS
        done: set[int] = set()
        while missing := self._links.by_index.keys() - done:
            if monotonic() >= until:
                log.warning("worker %d has not switched yet: it stands still, and will once it goes on", min(missing))
                return
            for index, message in self._receive(_LOOK_SECONDS):
                if message == Installed(self._number):
                    done.add(index)

    # -- links --------------------------------------------------------------------------------------------------------

    def _receive(self, seconds: float) -> list[tuple[int, object]]:
        """The messages that arrive within ``seconds``, by the worker; what operators want is noted besides."""
        by_channel: Mapping[socket.socket, int] = {link.channel: index for index, link in self._links.by_index.items()}
        readable, _, _ = select.select([*by_channel], [], [], seconds)
        found: list[tuple[int, object]] = []
        for channel in readable:
            index = by_channel[channel]
            try:
                messages = self._links.by_index[index].receive()
            except EOFError:
                self._links.drop(index)
                continue
            for message in messages:
                if isinstance(message, Requested):
                    self._requests.append((index, message.request))
                else:
                    found.append((index, message))
        return found

    def _send(self, index: int, message: object) -> None:
        link = self._links.by_index.get(index)
        if link is None:
            return
        try:
            link.send(message)
        except TimeoutError:  # a part of the message is there: no other one can follow, so the worker must not stay
            log.error("worker %d takes no message: it is to end, and is replaced", index)
            self._stuck.add(index)
            self._links.drop(index)
            os.kill(self._links.processes[index], signal.SIGTERM)
        except OSError:  # it is dead
            self._links.drop(index)
