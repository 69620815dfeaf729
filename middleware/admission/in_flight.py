"""The attempts in flight of one process: counts and owns them, and records the outcomes that the cache has not taken yet."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, TypeVar

from oncegate.cache.backoff import Backoff
from oncegate.cache.errors import CacheError, RecordUnreadable
from oncegate.cache.record import body_bytes
from oncegate.cache.store import Cache
from oncegate.middleware.admission.attempt import Attempt, Runtime, notify
from oncegate.middleware.admission.callers import CallerLimits
from oncegate.middleware.admission.observe import NOBODY, WATCH_FAILED, Watch

log = logging.getLogger("oncegate.attempt")

Running = TypeVar("Running", bound=asyncio.Future[None])

MAX_UNSAVED_BYTES = 64 * 1024 * 1024
"""Bodies that wait for the cache to come back; beyond, outcomes are kept without their bodies."""
_PAUSES: Final = Backoff(0.05, 5.0, least=0.6)
_CLAIM_POLL: Final = 0.01


class InFlight(Runtime):
    """Owns the tasks of a process's attempts, so that no client and no cancelled request can end them.

    ``slots`` counts the claims under way and the attempts that run, unless set `free`;
    `oncegate.middleware.admission.admission.Admissions` keeps it at or below ``max_in_flight``, and each caller's to what
    ``callers`` say, where they are limited. ``closing`` is set by `drain`: a cancellation is the process's end from then on.
    """

    def __init__(
        self, cache: Cache, max_in_flight: int, watch: Watch | None = None, callers: CallerLimits | None = None
    ) -> None:
        super().__init__(cache, watch or NOBODY)
        self.max_in_flight = max_in_flight
        self.slots = 0
        self.callers = callers
        self._freed = 0
        self.closing = False
        self._attempts: dict[bytes, Attempt] = {}
        self._unsaved: set[Attempt] = set()
        self._unsaved_bytes = 0

    def enter(self, key: str) -> bool:
        """Take a slot for the record of the look-up key ``key``, if one is left, also for its caller."""
        if self.slots >= self.max_in_flight:
            return False
        callers = self.callers
        if callers is not None:
            if callers.wait(key) > 0:
                return False
            callers.take(key)
        self.slots += 1
        return True

    def leave(self, key: str) -> None:
        """A slot is free again that was taken for the record of the look-up key ``key``."""
        self.slots -= 1
        if self.callers is not None:
            self.callers.give_back(key)

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
            self.leave(attempt.first_key)
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
            self.leave(attempt.first_key)
            self._freed += 1

    def keep_trying(self, attempt: Attempt) -> None:
        """Retry recording the outcome of ``attempt`` until the cache takes it; bounded in bytes: then without the body."""
        size = body_bytes(attempt.outcome)
        if self._unsaved_bytes + size > MAX_UNSAVED_BYTES and attempt.outcome and attempt.outcome.response:
            log.warning("record %s: too much waits for the cache; kept without its body", attempt.named)
            attempt.outcome = replace(attempt.outcome, response=attempt.outcome.response._replace(body=None))
            size = 0
        self._unsaved_bytes += size
        self._unsaved.add(attempt)
        attempt.recording = self.in_background(self._write_until_done(attempt, size))

    def owes(self, key: str) -> bool:
        """Whether this process still has an outcome to write to the record, so that the cache's state of it is out of date."""
        return any(attempt.key == key for attempt in self._unsaved)

    def withdraw(self, attempt: Attempt) -> None:
        """Give back a claim whose caller is gone, won or not: releasing is fenced, and tried until the cache has answered."""
        attempt.settled = True
        self.keep_trying(attempt)

    async def _write_until_done(self, attempt: Attempt, size: int) -> None:
        tries = 0
        notify(self.watch.outcomes_waiting, 1)
        notify(self.watch.outcome_pending, attempt.record)
        try:
            while not await self._is_written(attempt):
                tries += 1
                await asyncio.sleep(_PAUSES.pause(tries))
        finally:
            self._unsaved.discard(attempt)
            self._unsaved_bytes -= size
            notify(self.watch.outcome_known, attempt.record)
            notify(self.watch.outcomes_waiting, -1)

    async def _is_written(self, attempt: Attempt) -> bool:
        """Try once more to record the outcome; whether no further try is needed."""
        try:
            await attempt.write_outcome()
        except RecordUnreadable as error:
            log.error("record %s: the outcome can't be recorded: %s", attempt.named, error)
            attempt.refused = True
        except CacheError:
            return False
        except Exception as fault:  # noqa: BLE001  # a cache of one's own may raise anything: it is tried again
            log.warning("record %s: the outcome is not recorded yet: %s", attempt.named, fault)
            return False
        return True

    async def drain(self, timeout: float) -> int:
        """Wait for every claim and attempt, and for every outcome still to be recorded, at most ``timeout`` seconds.

        Returns how many attempts were left: their records read unknown once their leases have lapsed. Those of other event
        loops can't be waited for from here, and count as left.
        """
        self.closing = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while (tasks := self._tasks_of(loop)) or self.slots + self._freed > len(self._attempts):
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
