"""The decision about a delivery; where it is to run, also the handle by which its outcome is recorded."""

import asyncio
import enum
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

from oncegate.cache.record import State, StoredResponse
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.consumers.delivery import Action, DeliveryDecision, Origin, SubscriptionSettings
from oncegate.middleware.consumers.transactional import RecordsLate
from oncegate.middleware.outcome.raised import kind_and_text
from oncegate.middleware.outcome.responses import now_ms
from oncegate.middleware.outcome.results import bounded, checked_response, error_form

log = logging.getLogger("oncegate.subscription")

_JSON = ((b"content-type", b"application/json"),)
_DONE = 200
FAILED_STATUS = 500
"""The status of a kept error that has none of its own."""
_DEFAULTS = SubscriptionSettings()


class Recording(enum.Enum):
    """Whether an outcome is in the cache. True where the message may be acknowledged for it."""

    RECORDED = "recorded"
    NO_RECORD = "no-record"
    """There is none to be written: no key, or no cache when it began, and the policy was to run all the same."""
    PENDING = "pending"
    """The cache does not answer. Recording is tried again while the process lives, and `Begun.recorded` waits for it."""
    REFUSED = "refused"
    """Too late: the lease had lapsed and another consumer took the command over, or an operator resolved it."""

    def __bool__(self) -> bool:
        return self in (Recording.RECORDED, Recording.NO_RECORD)


class Begun:
    """The decision of `Subscription.begin` about one delivery; where ``decision`` is ``RUN``, the handle of the attempt.

    ``action`` is for the broker: ``RUN`` until the outcome is known, then what follows from it. ``attempt``
    counts this consumer's attempts at the command, this one included, and those under its former names; 0 where nothing is
    counted. ``record`` is the command's id, fit for logs, empty without a key. ``reason`` is one line for logs and dead
    letters. ``response`` is what was kept of the success that a duplicate repeats, or of the error that used up the attempts.
    ``returned`` is what a handler returned, ``raised`` what it raised.
    """

    def __init__(
        self,
        decision: DeliveryDecision,
        record: str = "",
        *,
        attempt: int = 0,
        reason: str = "",
        response: StoredResponse | None = None,
    ) -> None:
        self.decision = decision
        self.action = decision.action
        self.record = record
        self.attempt = attempt
        self.reason = reason
        self.response = response
        self.returned: Any = None
        self.raised: BaseException | None = None
        self.sent_at: datetime | None = None
        """When the message was sent, as its `Delivery` has it."""
        self.aggregate = ""
        self.sequence: int | None = None
        """Which message about which aggregate it is, as its `Delivery` has it."""
        self.other: tuple[str, bytes] | None = None
        """The command's id and its payload's fingerprint by the other secret, while two are in use."""
        self.submitted = False
        """It came through the gateway, as its `Delivery` has it."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """In which its outcome is recorded; ``None`` where it doesn't run."""
        self.late_outcomes: RecordsLate | None = None
        """Records what becomes of it later, where its message is acknowledged before that."""
        self.origin = Origin()
        """The message's own ids, for logs and dead letters: ``message_id``, ``correlation``."""
        self.mismatch = False
        """Another payload came with the key, and was taken for the same all the same (``on_mismatch = "warn"``)."""
        self.after_a_crash = False
        """The last attempt's process died, or lost its lease: this command may have killed it."""
        self.settled = False
        """An outcome was given. It stands: what is given later changes nothing."""
        self.committed: set[str] = set()
        """The inboxes that have sent a COMMIT of what was done for it."""
        self.rolled_back = False
        """Nothing that the handler did was committed: whatever has ended it, the command was not done."""
        self.given_up = False
        """An inbox allows no attempt after this one, by its own count."""
        self._outcome: State | None = None
        self._attempt: Attempt | None = None
        self._running: asyncio.Future[None] | None = None
        self._settings = _DEFAULTS
        self._last = False
        self._dead_lettered: Callable[[str], None] | None = None
        self._abandoning: asyncio.Task[None] | None = None
        """Kept, since an event loop doesn't."""

    def hold(
        self,
        attempt: Attempt,
        running: "asyncio.Future[None]",
        settings: SubscriptionSettings,
        *,
        last: bool,
        dead_lettered: Callable[[str], None],
    ) -> None:
        """Become the handle of ``attempt`` (``last``: the last one that is allowed), until ``running`` has a result.

        ``dead_lettered`` is called with a reason where its failure means that nobody tries the command again.
        """
        self._attempt, self._running, self._settings, self._last = attempt, running, settings, last
        self._dead_lettered = dead_lettered
        self.loop = running.get_loop()

    @property
    def run(self) -> bool:
        """Whether this delivery is to be executed."""
        return self.decision is DeliveryDecision.RUN

    @property
    def named(self) -> str:
        """How a line of the log names the delivery: by its record, and by its message's own ids."""
        return (self.record or "-") + self.origin.line

    @property
    def last(self) -> bool:
        """Whether no attempt is allowed after this one."""
        return self._last or self.given_up

    @property
    def timeout(self) -> float:
        """Seconds that its handler has."""
        return self._settings.attempt_timeout

    @property
    def result(self) -> bytes | None:
        """The stored result that a duplicate repeats; ``None`` where there is none, or it was too large."""
        return self.response.body if self.response and self.decision is DeliveryDecision.DUPLICATE else None

    @property
    def fingerprint(self) -> bytes | None:
        """The fingerprint by which this delivery's payload is compared; ``None`` where it doesn't run, or has no key."""
        return self._attempt.claim.fingerprint if self._attempt is not None and self.record else None

    # -- of a delivery that runs --------------------------------------------------------------------------------------

    @property
    def succeeded(self) -> bool:
        """Whether the outcome that was given is a success; whether it is recorded is another matter."""
        return self._outcome is State.SUCCEEDED

    async def exhaust(self, error: StoredResponse, reason: str) -> None:
        """The claim was won, but no attempt is left: record the last error, so that all see the end."""
        self._begin_settling(State.FAILED)
        self.decision, self.reason, self.response = DeliveryDecision.EXHAUSTED, reason, error
        self.action = self.decision.action
        await self._settle(State.FAILED, error)

    async def withdraw(self, decision: DeliveryDecision, reason: str) -> None:
        """The claim was won, but can't be used: give it back."""
        self._begin_settling(None)
        self.decision, self.reason = decision, reason
        self.action = decision.action
        await self._settle(None, None)

    def overran(self) -> None:
        """The handler did not end in time, and can't be ended: the broker is to deliver again."""
        self.action, self.reason = Action.REDELIVER, "The handler ran into its time-out, and runs on."

    async def confirm(self) -> None:
        """Return once the lease is ours for half its length: to be awaited right before an effect that must not be late.

        Raises `oncegate.middleware.admission.attempt.LeaseLost` or ``Unconfirmed``: then do nothing.
        """
        if self._attempt is not None:
            await self._attempt.confirm()

    async def succeed(self, result: bytes | StoredResponse | None = None) -> Recording:
        """The command is done: never again. ``result`` is JSON, or a response as it is to be given.

        Returns once it is recorded, refused, or ``record_timeout`` is over (then recording goes on, and `recorded` waits for
        it). Acknowledge the message only where what is returned is true. Where the result is over ``max_result``, the
        success is recorded without it.
        """
        if self._begin_settling(State.SUCCEEDED):
            self.action = Action.REDELIVER  # until it is recorded
            await self._settle(State.SUCCEEDED, self._kept(result))
        return await self.recorded()

    async def fail(self, error: BaseException | str, *, final: bool = False, status: int = FAILED_STATUS) -> Recording:
        """The command was not done: the error's type and text are kept. ``final``: no further attempt would do better.

        ``action`` says what follows: ``REDELIVER``, or ``DEAD_LETTER`` where it is final or no attempt is left. The broker
        may get that even while recording is pending; where it is refused, redeliver.
        """
        dead = final or self.last
        first = self._begin_settling(State.FAILED)
        if first:
            self.action = Action.DEAD_LETTER if dead else Action.REDELIVER
            kind, message = kind_and_text(error)
            self.reason = message or kind
            log.warning("record %s: attempt %d failed: %s", self.named, self.attempt, kind)
            await self._settle(State.FAILED, failure(error, dead=dead, status=status))
        recording = await self.recorded()
        if recording is Recording.REFUSED:
            self.action = Action.REDELIVER
        elif first and dead and self._dead_lettered is not None:
            self._dead_lettered("rejected" if final else DeliveryDecision.EXHAUSTED.value)
        return recording

    async def unknown(self, note: str = "") -> Recording:
        """Nobody can know whether the command was done, as after a time-out: it is tried again, and this attempt counts."""
        await self.abandon(note)
        return await self.recorded()

    async def release(self, action: Action = Action.REDELIVER) -> None:
        """Nothing of the command was begun: the attempt is undone, and doesn't count."""
        if self._begin_settling(None):
            self.action = action
            await self._settle(None, None)

    async def abandon(self, note: str) -> None:
        """As `unknown`, but without waiting for a cache that is away: the process may be about to end."""
        if self._begin_settling(State.UNKNOWN):
            self.action, self.reason = Action.REDELIVER, note
            await self._settle(State.UNKNOWN, None, note)

    def abandon_soon(self, note: str) -> None:
        """As `abandon`, without awaiting it; needs a running event loop: without one, the lease is left to lapse."""
        with suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            self._abandoning = loop.create_task(self.abandon(note))

    async def recorded(self, timeout: float | None = None) -> Recording:
        """Wait until the outcome is recorded or refused, ``timeout`` seconds at most (``record_timeout`` by default)."""
        attempt = self._attempt
        if attempt is None or not attempt.number:
            recording = Recording.NO_RECORD
        else:
            wait = self._settings.record_timeout if timeout is None else timeout
            if self.settled and not attempt.visible and attempt.recording is None:  # the cache has not answered yet
                await _ended(attempt, wait)
            task = attempt.recording
            if task is not None and not task.done():
                await asyncio.wait([task], timeout=wait)
            unanswered = not attempt.visible if task is None else not task.done() or task.cancelled()
            if not self.settled or unanswered:
                recording = Recording.PENDING
            else:
                recording = Recording.REFUSED if attempt.refused else Recording.RECORDED
        if self._outcome is State.SUCCEEDED and recording:
            self.action = Action.ACKNOWLEDGE
        return recording

    def _begin_settling(self, state: State | None) -> bool:
        if not self.run:
            raise RuntimeError(f"a delivery that is {self.decision.value} has no outcome to record")
        if self.settled:
            if state is not self._outcome:
                log.warning("record %s: an outcome was given already; the later one is not recorded", self.named)
            return False
        self.settled = True
        self._outcome = state
        return True

    async def _settle(self, state: State | None, response: StoredResponse | None, note: str = "") -> None:
        try:
            if self._attempt is not None:
                self._attempt.settle(state, response, note=note)
                await _ended(self._attempt, self._settings.record_timeout)
        finally:
            if self._running is not None and not self._running.done():
                self._running.set_result(None)

    def _kept(self, result: bytes | StoredResponse | None) -> StoredResponse:
        if not isinstance(result, StoredResponse):
            result = StoredResponse(_DONE, _JSON, b"null" if result is None else result, now_ms())
        try:
            result = checked_response(*result)
        except (TypeError, ValueError) as error:  # the effect has happened all the same
            log.warning("record %s: the result can't be stored: %s: %s", self.named, type(error).__name__, error)
            return not_kept()
        return result._replace(body=bounded(self._settings.max_result, result.body, self.named))


async def _ended(attempt: Attempt, timeout: float) -> None:
    """Return once the outcome is visible, after ``timeout`` seconds at the latest."""
    with suppress(TimeoutError):
        await asyncio.wait_for(attempt.ended(), timeout)


def not_kept() -> StoredResponse:
    """A success whose result can't be stored."""
    return StoredResponse(_DONE, (), None, now_ms())


def failure(error: BaseException | str, *, dead: bool, status: int = FAILED_STATUS) -> StoredResponse:
    """An error as it is kept; ``dead`` where no attempt will follow."""
    return kept_failure(error_form(error, dead=dead), status)


def kept_failure(body: bytes | None, status: int = FAILED_STATUS) -> StoredResponse:
    """The same of an error that is JSON already."""
    return StoredResponse(status, _JSON, body, now_ms())
