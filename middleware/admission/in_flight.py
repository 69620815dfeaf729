"""The attempts in flight of one process: counts and owns them."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from oncegate.cache.store import Cache
from oncegate.middleware.admission.attempt import Attempt, Runtime, notify
from oncegate.middleware.admission.callers import CallerLimits
from oncegate.middleware.admission.observe import NOBODY, WATCH_FAILED, Watch
from oncegate.middleware.admission.owed import OwedOutcomes
from oncegate.middleware.admission.slots import Slots

log = logging.getLogger("oncegate.attempt")

Running = TypeVar("Running", bound=asyncio.Future[None])

_CLAIM_POLL: Final = 0.01


class InFlight(Runtime):
    """Owns the tasks of a process's attempts, so that no client and no cancelled request can end them.

    ``slots`` has the claims under way and the attempts that run, unless set `free`: at most ``max_in_flight``, and of each caller
    what ``callers`` say, where they are limited. ``closing`` is set by `drain`: a cancellation is the process's end from then on.
    """

    def __init__(
        self, cache: Cache, max_in_flight: int, watch: Watch | None = None, callers: CallerLimits | None = None
    ) -> None:
        super().__init__(cache, watch or NOBODY)
        self.slots = Slots(max_in_flight, callers)
        self._freed = 0
        self.closing = False
        self._attempts: dict[bytes, Attempt] = {}
        self.owed = OwedOutcomes(lambda: self.watch)

    def by_token(self, token: bytes) -> Attempt | None:
        """The attempt of this process and event loop that owns ``token``, while its task runs."""
        attempt = self._attempts.get(token)
        return attempt if attempt is not None and attempt.loop is asyncio.get_running_loop() else None

    def run(self, attempt: Attempt, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Execute ``work`` as the attempt's task, on the running loop; its slot is free again when the task ends."""
        self.begin(attempt, asyncio.get_running_loop())
        return self.go_on(attempt, work)

    def go_on(self, attempt: Attempt, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """The same for an attempt that was begun already."""
        return self._keep(attempt, asyncio.get_running_loop().create_task(work))

    def hold(self, attempt: Attempt) -> asyncio.Future[None]:
        """The attempt's command runs elsewhere, until the future is given a result; ``attempt_timeout`` cancels it."""
        loop = asyncio.get_running_loop()
        self.begin(attempt, loop)
        return self._keep(attempt, loop.create_future())

    def begin(self, attempt: Attempt, loop: asyncio.AbstractEventLoop, lasts: Callable[[], None] | None = None) -> None:
        """The attempt runs, until `end`.

        ``lasts`` is called once it has taken longer than most. Up to then the lease is not renewed and no time limit holds, so
        that who is over before needs no timer of its own; from then on it takes `Attempt.keep`.
        """
        self._attempts[attempt.claim.token] = attempt
        attempt.start(loop, lasts)
        if not self.is_watched:
            return
        try:
            self.watch.attempt_began(attempt.policy.route)
        except Exception:  # as `notify`, which each request would pay for
            log.exception(WATCH_FAILED)

    def _keep(self, attempt: Attempt, running: Running) -> Running:
        attempt.keep(running)
        running.add_done_callback(attempt.ran)
        return running

    def end(self, attempt: Attempt) -> None:
        """The attempt runs no more: its slot is free as soon as its outcome is ``visible``. Later calls do nothing."""
        if attempt.settled and not attempt.visible:
            attempt.is_over = True
            return
        if self._attempts.pop(attempt.claim.token, None) is None:
            return
        if attempt.has_slot:
            self.slots.leave(attempt.first_key)
        else:
            self._freed -= 1
        if attempt.lasts:
            notify(self.watch.outcome_known, attempt.record)
        if not self.is_watched:
            return
        try:
            self.watch.attempt_ended(attempt.policy.route)
        except Exception:  # as `notify`
            log.exception(WATCH_FAILED)

    def free(self, attempt: Attempt) -> None:
        """The attempt runs on, but gives up its slot: how long it takes depends on its client."""
        if attempt.has_slot:
            attempt.has_slot = False
            self.slots.leave(attempt.first_key)
            self._freed += 1

    def keep_trying(self, attempt: Attempt) -> None:
        """Retry recording the outcome of ``attempt`` until the cache takes it."""
        attempt.recording = self.in_background(self.owed.add(attempt).last())

    def owes(self, key: str) -> bool:
        """Whether this process still has an outcome to write to the record, so that the cache's state of it is out of date."""
        return key in self.owed.by_key

    def withdraw(self, attempt: Attempt) -> None:
        """Give back a claim whose caller is gone, won or not: releasing is fenced, and tried until the cache has answered."""
        attempt.settled = True
        self.keep_trying(attempt)

    async def drain(self, timeout: float) -> int:
        """Wait for every claim and attempt, and for every outcome still to be recorded, at most ``timeout`` seconds.

        Returns how many attempts were left: their records read unknown once their leases have lapsed. Those of other event
        loops can't be waited for from here, and count as left.
        """
        self.closing = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while (tasks := self._tasks_of(loop)) or self.slots.taken + self._freed > len(self._attempts):
            left = deadline - loop.time()
            if left <= 0:
                break
            if tasks:
                await asyncio.wait(tasks, timeout=left)
            else:  # a claim is under way whose client has left: nothing else waits for it, and it may be won
                await asyncio.sleep(min(left, _CLAIM_POLL))
        return len(self._attempts)

    def _tasks_of(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Future[None]]:
        attempts = [attempt for attempt in self._attempts.copy().values() if attempt.loop is loop]
        tasks = [attempt.task for attempt in attempts if not attempt.is_over]
        running = [task for task in tasks if task is not None and not task.done()]
        ending = [loop.create_task(attempt.ended()) for attempt in attempts if attempt.task is None or attempt.settled]
        return [*running, *ending, *(task for task in self._background.copy() if task.get_loop() is loop)]
