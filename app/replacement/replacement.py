"""A gateway's part in replacements: it may replace a running one, and may be replaced itself later."""

import logging
import mmap
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from oncegate.app.replacement.control import NotReplaced
from oncegate.app.replacement.predecessor import Predecessor
from oncegate.app.replacement.running import ControlSocket

log = logging.getLogger("oncegate.serve")


class Replacement:
    """A gateway's replacements, made before any fork. The first ``http`` of ``sockets`` are for requests.

    ``predecessor`` is the gateway that this one replaces; by ``control`` another one can replace this one. Both are optional.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        http: int,
        control: socket.socket | None,
        predecessor: Predecessor | None = None,
    ) -> None:
        self.pid = os.getpid()
        """The process id of the gateway, which is the parent's where there are several workers."""
        self.index = 0
        """Which worker this process is."""
        self.control = control
        self._sockets = sockets
        self._http = http
        self._predecessor = predecessor
        self._replaced = mmap.mmap(-1, 1)  # shared by all forks
        self._refusals, writes = os.pipe()  # one byte: one of them takes it
        os.write(writes, b".")
        os.close(writes)
        self._serving: ControlSocket | None = None
        self._child = 0

    @property
    def is_replaced(self) -> bool:
        """Whether another gateway serves in this one's place; true in all its processes then."""
        return self._replaced[0] == 1

    @property
    def can_be_replaced(self) -> bool:
        """Whether another gateway can take its place."""
        return self.control is not None

    async def begin(self, ready: Callable[[], Awaitable[dict[str, str]]], is_given_up: Callable[[], bool]) -> None:
        """Wait until this process is to serve; at once, where its gateway replaces none. Raises `NotReplaced`.

        ``ready`` returns the states of upstream and cache: one that can't reach them replaces nobody.
        """
        if self._predecessor is None or self._predecessor.has_left:
            return
        states = await ready()
        for part in ("upstream", "cache"):
            if states[part] not in ("reachable", "available"):
                raise NotReplaced(f"the {part} is {states[part]} from here, and the running gateway goes on")
        await self._predecessor.leave(self.index, is_given_up)

    def is_first_refusal(self) -> bool:
        """Whether this is its gateway's first process that is refused: that one alone writes why the gateway does not start."""
        return os.read(self._refusals, 1) != b""

    def start(self) -> None:
        """This process serves: from now on its gateway can be replaced, by way of the first worker."""
        if self.index == 0 and self.control is not None:
            self._serving = ControlSocket(self.control, self._sockets, self._http, self.pid, self._set_replaced)
            self._serving.start()

    def start_successor(self) -> None:
        """Start this program anew, in this gateway's place; as a child, so that a supervisor counts it to this service."""
        if self._child:
            with suppress(ChildProcessError):  # the parent of workers has taken note of its end already
                os.waitpid(self._child, os.WNOHANG)
        arguments = [sys.executable, *sys.orig_argv[1:], *(() if "--replace" in sys.orig_argv else ("--replace",))]
        # Without the mask and the dispositions of signals here, which it would inherit.
        signals = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}
        try:
            self._child = os.posix_spawn(sys.executable, arguments, os.environ, setsigmask=(), setsigdef=signals)
        except OSError as error:
            log.error("%s can't be started: %s", sys.executable, error.strerror or error)

    async def stop(self) -> bool:
        """This process serves no more, and can't be replaced. Returns whether its gateway was."""
        if self._serving is not None:
            await self._serving.stop()
        if self.control is not None:
            self.control.close()
        return self.is_replaced

    def _set_replaced(self) -> None:
        self._replaced[0] = 1
        if os.getpid() != self.pid:
            os.kill(self.pid, signal.SIGCHLD)  # which has the parent look what became of its workers
