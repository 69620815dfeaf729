"""Time limits that cost little, since almost none of them is ever reached."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from types import coroutine
from typing import Any, TypeVar

log = logging.getLogger("oncegate.attempt")

Result = TypeVar("Result")


async def within(seconds: float, work: Awaitable[Result]) -> Result:
    """Await ``work``. Raises ``TimeoutError`` where it takes longer than that.

    What ends without waiting for anything, as most of it does, gets no time-out: that would cost more than the work.
    """
    steps = work.__await__()
    try:
        waits_for = next(steps)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # what it returns travels in an exception without a type
    async with asyncio.timeout(seconds):
        return await _rest(steps, waits_for)


@coroutine
def _rest(steps: Generator[Any, Any, Result], waits_for: Any) -> Generator[Any, Any, Result]:
    """What ``await`` does with the steps of an awaitable, of which the first was taken by hand."""
    try:
        while True:
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - a cancellation, too: it is for the awaitable to deal with
                waits_for = steps.throw(error)
            else:
                waits_for = next(steps)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # see above


class Deadlines:
    """Time limits of one length, for many at once, on one timer of ``loop``: they are reached in the order they were set in.

    A timer for each would cost more than most of what it limits.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.loop = loop
        self._seconds = seconds
        self._set: dict[int, tuple[float, Callable[[], None]]] = {}
        self._last = 0
        self._is_timed = False

    def set(self, overdue: Callable[[], None]) -> int:
        """Have ``overdue`` called when the time is over, unless the number that is returned is given to `drop` before."""
        self._last += 1
        moment = self.loop.time() + self._seconds
        self._set[self._last] = moment, overdue
        if not self._is_timed:
            self._is_timed = True
            self.loop.call_at(moment, self._look)
        return self._last

    def drop(self, number: int) -> None:
        """Forget a limit; one that was reached or dropped already, too."""
        self._set.pop(number, None)

    def _look(self) -> None:
        self._is_timed = False
        now = self.loop.time()
        while self._set:
            number = next(iter(self._set))
            moment, overdue = self._set[number]
            if moment > now:
                self._is_timed = True
                self.loop.call_at(moment, self._look)
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

    def of(self, seconds: float) -> Deadlines:
        """Those of the running loop."""
        return self.on(asyncio.get_running_loop(), seconds)

    def on(self, loop: asyncio.AbstractEventLoop, seconds: float) -> Deadlines:
        """Those of ``loop``, which is running."""
        found = self._all.get((loop, seconds))
        if found is None:
            for key in [key for key in self._all.copy() if key[0].is_closed()]:
                self._all.pop(key, None)
            found = self._all[loop, seconds] = Deadlines(loop, seconds)
        return found
