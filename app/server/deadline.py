"""A movable deadline: the one timer of a client's connection."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import math
from collections.abc import Callable


class Deadline:
    """``then`` is called once ``at`` has been reached, on the loop's clock. It may be moved at any time, `math.inf` for never.

    Moving it later costs nothing: the timer that fires too early is set anew.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> None:
        self.at = math.inf
        self._loop = loop
        self._then: Callable[[], None] | None = then
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = math.inf

    def within(self, seconds: float) -> None:
        """Move it to so long from now."""
        self.at = self._loop.time() + seconds
        if self.at < self._fires_at:
            if self._timer is not None:
                self._timer.cancel()
            self._fires_at = self.at
            self._timer = self._loop.call_at(self.at, self._look)

    def close(self) -> None:
        """Never call ``then`` again, and drop the reference to it."""
        self._then = None
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """The timer fired: at the deadline, or at one that has been moved since."""
        self._timer, self._fires_at = None, math.inf
        if self.at > self._loop.time():
            if self.at < math.inf:
                self.within(self.at - self._loop.time())
        elif self._then is not None:
            self._then()
