"""The attempts in flight of one process, which counts and owns them: no client and no cancelled request can end one."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final, TypeVar

from oncegate.cache.store import Cache
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.limits.callers import CallerLimits, CallerSlots
from oncegate.middleware.admission.limits.slots import Slots
from oncegate.middleware.admission.observe import NOBODY, WATCH_FAILED, Watch
from oncegate.middleware.admission.owed import OwedOutcomes
from oncegate.middleware.admission.shared import Shared, notify

log = logging.getLogger("oncegate.attempt")

Running = TypeVar("Running", bound=asyncio.Future[None])

_CLAIM_POLL: Final = 0.01


class InFlight:
    """The attempts of a process in flight. It owns their tasks, so that no client and no cancelled request can end them.

    ``slots`` has the claims under way and the attempts that run, unless set `free`: at most ``max_in_flight``, and of each caller
    what ``callers`` say, where they are limited. ``closing`` is set by `drain`: a cancellation is the process's end from then on.
    """

    def __init__(
        self, cache: Cache, max_in_flight: int, watch: Watch | None = None, callers: CallerLimits | None = None
    ) -> None:
        self.shared = Shared(cache, watch or NOBODY)
        self.slots = Slots(max_in_flight) if callers is None else CallerSlots(max_in_flight, callers)
        self._freed = 0
        self.closing = False
        self._attempts: dict[bytes, Attempt] = {}
        self.owed = OwedOutcomes(self.shared)

    def limit(self, max_in_flight: int, max_per_caller: int, new_keys: str) -> None:
        """These are the limits from now on. What runs goes on, and counts."""
        slots = self.slots
        if isinstance(slots, CallerSlots):
            slots.callers.limit(max_per_caller, new_keys)
        elif max_per_caller or new_keys:
            self.slots = slots = CallerSlots.in_place_of(slots, CallerLimits(max_per_caller, new_keys))
        slots.limit(max_in_flight)

    def by_token(self, token: bytes) -> Attempt | None:
        """The attempt of this process and event loop that owns ``token``, while its task runs."""
        attempt = self._attempts.get(token)
        return attempt if attempt is not None and attempt.lease.loop is asyncio.get_running_loop() else None

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
        that who is over before needs no timer of its own; from then on it takes `Lease.keep`.
        """
        self._attempts[attempt.claim.token] = attempt
        attempt.lease.start(loop, lasts)
        shared = self.shared
        if not shared.is_watched:
            return
        try:
            shared.watch.attempt_began(attempt.policy.route)
        except Exception:  # as `notify`, which each request would pay for
            log.exception(WATCH_FAILED)

    def _keep(self, attempt: Attempt, running: Running) -> Running:
        attempt.lease.keep(running)
        running.add_done_callback(attempt.ran)
        return running

    def end(self, attempt: Attempt) -> None:
        """The attempt runs no more: its slot is free as soon as its outcome is ``visible``. Later calls do nothing."""
        if attempt.settled_at > 0.0 and not attempt.visible:
            attempt.is_over = True
            return
        if self._attempts.pop(attempt.claim.token, None) is None:
            return
        slot, shared = attempt.slot, self.shared
        if slot is not None:
            slot.leave()
        else:
            self._freed -= 1
        if attempt.lease.is_noted:
            notify(shared.watch.outcome_known, attempt.record)
        if not shared.is_watched:
            return
        try:
            shared.watch.attempt_ended(attempt.policy.route)
        except Exception:  # as `notify`
            log.exception(WATCH_FAILED)

    def free(self, attempt: Attempt) -> None:
        """The attempt runs on, but gives up its slot: how long it takes depends on its client."""
        slot = attempt.slot
        if slot is not None:
            attempt.slot = None
            slot.leave()
            self._freed += 1

    def keep_trying(self, attempt: Attempt) -> None:
        """Retry recording the outcome of ``attempt`` until the cache takes it."""
        attempt.recording = self.shared.in_background(self.owed.add(attempt).last())

    def owes(self, key: str) -> bool:
        """Whether this process still has an outcome to write to the record, so that the cache's state of it is out of date."""
        return key in self.owed.by_key

    def withdraw(self, attempt: Attempt) -> None:
        """Give back a claim whose caller is gone, won or not: releasing is fenced, and tried until the cache has answered."""
        attempt.settled_at = monotonic()
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
        attempts = [attempt for attempt in self._attempts.copy().values() if attempt.lease.loop is loop]
        tasks = [attempt.lease.task for attempt in attempts if not attempt.is_over]
        running = [task for task in tasks if task is not None and not task.done()]
        ending = [
            loop.create_task(attempt.ended()) for attempt in attempts if attempt.lease.task is None or attempt.settled
        ]
        return [*running, *ending, *(task for task in self.shared.background.copy() if task.get_loop() is loop)]
