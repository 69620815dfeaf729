"""Outcomes that the cache has not taken yet: known here, tried again until it takes them, for as long as the process lives.

Strategy. Each has a task, whose pauses grow. A pause ends early where the cache is seen to write again, and where a request
claims the same record: what is owed of it goes out first, since by what the cache holds meanwhile, the command that has
succeeded might be executed once more. Two tries of one outcome never overlap.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Final

from oncegate.cache.backoff import Backoff
from oncegate.cache.errors import CacheError, RecordUnreadable
from oncegate.cache.record import Record, body_bytes
from oncegate.middleware.admission.shared import Shared, notify

if TYPE_CHECKING:
    from oncegate.middleware.admission.attempt import Attempt

log = logging.getLogger("oncegate.attempt")

MAX_UNSAVED_BYTES: Final = 64 * 1024 * 1024
"""Bodies that wait for the cache to come back; beyond, outcomes are kept without their bodies."""
_PAUSES: Final = Backoff(0.05, 5.0, least=0.6)
_BETWEEN_WAKES: Final = 0.05
"""Seconds: a cache that takes some writes and refuses others must not be tried with all that is owed at each request."""


class OwedOutcomes:
    """The outcomes that one process owes its cache, by look-up key. ``by_key`` is empty as a rule: look there first."""

    def __init__(self, shared: Shared) -> None:
        self.by_key: dict[str, list[OwedOutcome]] = {}
        self._shared = shared
        self._bytes = 0
        self._woken = 0.0

    def add(self, attempt: "Attempt") -> "OwedOutcome":
        """The outcome of ``attempt`` is owed from now on; bounded in bytes: beyond, it is kept without its body."""
        size = body_bytes(attempt.outcome)
        if self._bytes + size > MAX_UNSAVED_BYTES and attempt.outcome and attempt.outcome.response:
            log.warning(
                "record %s: too much waits for the cache; kept without its body",
                attempt.named,
                extra=attempt.lease.ids(),
            )
            attempt.outcome = replace(attempt.outcome, response=attempt.outcome.response._replace(body=None))
            size = 0
        owed = OwedOutcome(self, attempt, size)
        self._bytes += size
        self.by_key.setdefault(attempt.key, []).append(owed)
        watch = self._shared.watch
        notify(watch.outcomes_waiting, 1)
        notify(watch.outcome_pending, attempt.record)
        return owed

    def remove(self, owed: "OwedOutcome") -> None:
        """It is recorded, or never will be. Later calls do nothing."""
        attempt = owed.attempt
        waiting = self.by_key.get(attempt.key, [])
        if owed not in waiting:
            return
        waiting.remove(owed)
        if not waiting:
            del self.by_key[attempt.key]
        self._bytes -= owed.size
        watch = self._shared.watch
        notify(watch.outcome_known, attempt.record)
        notify(watch.outcomes_waiting, -1)

    async def go_out(self, *keys: str) -> Record | None:
        """Try once, now, to record what is owed of these look-up keys.

        Returns the outcome of an attempt that the cache still doesn't take. Raises `CacheError` where that is a release.
        """
        left: Record | None = None
        for key in keys:
            for owed in self.by_key.get(key, [])[:]:
                if not await owed.go_out():
                    left = owed.attempt.outcome
                    if left is None:
                        raise owed.error
        return left

    def wake(self) -> None:
        """The cache has just taken a write: it is back. Everything that is owed goes out now."""
        now = monotonic()
        if now - self._woken < _BETWEEN_WAKES:
            return
        self._woken = now
        for waiting in [*self.by_key.values()]:
            for owed in waiting:
                owed.end_pause()


class OwedOutcome:
    """One of them: its tries, and the pauses between them."""

    def __init__(self, all_owed: OwedOutcomes, attempt: "Attempt", size: int) -> None:
        self.attempt = attempt
        self.size = size
        self.error: Exception = CacheError("the outcome of the last attempt is not recorded yet")
        self._all = all_owed
        self._is_recorded = False
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.Future[None] | None = None
        self._try: asyncio.Task[bool] | None = None

    async def last(self) -> None:
        """Return once no further try is needed; the outcome may be seen after the first one that the cache has answered."""
        tries = 0
        try:
            while not await self.go_out():
                tries += 1
                self._pause = pause = self._loop.create_future()
                await asyncio.wait([pause], timeout=_PAUSES.pause(tries))
        finally:
            self._all.remove(self)

    async def go_out(self) -> bool:
        """Try once, or await the try that is under way; whether no further one is needed."""
        if self._is_recorded:
            return True
        if asyncio.get_running_loop() is not self._loop:  # a task of another loop can't be awaited
            return await self._tried()
        if self._try is None or self._try.done():
            self._try = self._loop.create_task(self._tried())
        return await asyncio.shield(self._try)

    def end_pause(self) -> None:
        """The next try is due now."""
        pause = self._pause
        if pause is not None and not pause.done() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_end, pause)

    async def _tried(self) -> bool:
        attempt = self.attempt
        try:
            await attempt.write_outcome()
        except RecordUnreadable as damage:
            log.error("record %s: the outcome can't be recorded: %s", attempt.named, damage, extra=attempt.lease.ids())
            attempt.refused = True
        except CacheError as error:
            self.error = error
            return False
        except Exception as fault:  # noqa: BLE001  # a cache of one's own may raise anything: it is tried again
            log.warning(
                "record %s: the outcome is not recorded yet: %s", attempt.named, fault, extra=attempt.lease.ids()
            )
            return False
        else:
            self._all.wake()
        self._is_recorded = True
        self._all.remove(self)
        self.end_pause()
        if asyncio.get_running_loop() is self._loop:
            attempt.show()
        else:
            self._loop.call_soon_threadsafe(attempt.show)
        return True


def _end(pause: "asyncio.Future[None]") -> None:
    if not pause.done():
        pause.set_result(None)
