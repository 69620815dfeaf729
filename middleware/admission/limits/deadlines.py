"""Cheap time limits, of which almost none is ever reached: one that is moved, and many waits of one length on one timer."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
import math
from collections.abc import Callable

log = logging.getLogger("oncegate.attempt")


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
            self._timer = self._loop.call_at(self.at, self._on_timer)

    def close(self) -> None:
        """Never call ``then`` again, and drop the reference to it."""
        self._then = None
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        """The timer fired: at the deadline, or at one that has been moved since."""
        self._timer, self._fires_at = None, math.inf
        if self.at > self._loop.time():
            if self.at < math.inf:
                self.within(self.at - self._loop.time())
        elif self._then is not None:
            self._then()


class Deadlines:
    """Time limits of one length, for many at once, on one timer of ``loop``: they are reached in the order they were set in.

    A timer for each would cost more than most of what it limits.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.loop = loop
        self.seconds = seconds
        self._set: dict[int, tuple[float, Callable[[], None]]] = {}
        self._last = 0
        self._is_timed = False

    def set(self, overdue: Callable[[], None]) -> int:
        """Have ``overdue`` called when the time is over, unless the number that is returned is given to `drop` before."""
        self._last += 1
        moment = self.loop.time() + self.seconds
        self._set[self._last] = moment, overdue
        if not self._is_timed:
            self._is_timed = True
            self.loop.call_at(moment, self._on_timer)
        return self._last

    def drop(self, number: int) -> None:
        """Forget a limit; one that was reached or dropped already, too."""
        self._set.pop(number, None)

    def _on_timer(self) -> None:
        self._is_timed = False
        now = self.loop.time()
        while self._set:
            number = next(iter(self._set))
            moment, overdue = self._set[number]
            if moment > now:
                self._is_timed = True
                self.loop.call_at(moment, self._on_timer)
                return
            del self._set[number]
            try:
                overdue()
            except Exception:  # those behind it must not wait for ever
                log.exception("a time limit could not be dealt with")


class LoopDeadlines:
    """`Deadlines` by event loop and length: an app may be called on several loops, and test clients make one per request."""

    def __init__(self) -> None:
        self._all: dict[tuple[asyncio.AbstractEventLoop, float], Deadlines] = {}
        self._last: Deadlines | None = None
        """Those that were wanted last: mostly they are wanted again."""

    def of(self, seconds: float) -> Deadlines:
        """The deadlines of the running loop."""
        return self.on(asyncio.get_running_loop(), seconds)

    def on(self, loop: asyncio.AbstractEventLoop, seconds: float) -> Deadlines:
        """The deadlines of ``loop``, which is running."""
        last = self._last
        if last is not None and last.loop is loop and last.seconds == seconds:
            return last
        found = self._all.get((loop, seconds))
        if found is None:
            for key in [key for key in self._all.copy() if key[0].is_closed()]:
                self._all.pop(key, None)
            found = self._all[loop, seconds] = Deadlines(loop, seconds)
        self._last = found
        return found
