"""What one gateway has to do with replacements: it may replace a running one, and may be replaced itself later."""

import mmap
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence

from oncegate.app.replacement.control import NotReplaced
from oncegate.app.replacement.predecessor import Predecessor
from oncegate.app.replacement.running import ControlSocket


class Replacement:
    """Made before any fork. The first ``http`` of ``sockets`` are for requests.

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
        self._serving: ControlSocket | None = None

    @property
    def is_replaced(self) -> bool:
        """Whether another gateway serves in this one's place; true in all its processes then."""
        return self._replaced[0] == 1

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

    def start(self) -> None:
        """This process serves: from now on its gateway can be replaced, by way of the first worker."""
        if self.index == 0 and self.control is not None:
            self._serving = ControlSocket(self.control, self._sockets, self._http, self.pid, self._set_replaced)
            self._serving.start()

    async def stop(self) -> None:
        """It serves no more, and can't be replaced."""
        if self._serving is not None:
            await self._serving.stop()
        if self.control is not None:
            self.control.close()

    def _set_replaced(self) -> None:
        self._replaced[0] = 1
        if os.getpid() != self.pid:
            os.kill(self.pid, signal.SIGCHLD)  # which has the parent look what became of its workers
