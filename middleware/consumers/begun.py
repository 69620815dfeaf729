"""The decision about a delivery; and what runs, by which its outcome is recorded."""

import asyncio
import enum
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from oncegate.cache.record import State, StoredResponse
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.consumers.delivery import Action, DeliveryDecision, Origin, SubscriptionSettings
from oncegate.middleware.consumers.transactional import DeliveryContext
from oncegate.middleware.outcome.raised import kind_and_text
from oncegate.middleware.outcome.responses import now_ms
from oncegate.middleware.outcome.results import bounded, checked_response, error_form

log = logging.getLogger("oncegate.subscription")

_JSON = ((b"content-type", b"application/json"),)
_DONE = 200
_NO_ORIGIN = Origin()
FAILED_STATUS = 500
"""The status of a kept error that has none of its own."""


class Recording(enum.Enum):
    """Whether an outcome is in the cache. True where the message may be acknowledged for it."""

    RECORDED = "recorded"
    NO_RECORD = "no-record"
    """There is none to be written: no key, or no cache when it began, and the policy was to run all the same."""
    PENDING = "pending"
    """The cache does not answer. Recording is tried again while the process lives, and `Execution.recorded` waits for it."""
    REFUSED = "refused"
    """Too late: the lease had lapsed and another consumer took the command over, or an operator resolved it."""

    def __bool__(self) -> bool:
        return self in (Recording.RECORDED, Recording.NO_RECORD)


@dataclass(frozen=True, slots=True)
class Begun:
    """The decision about one delivery, and what follows from it for the broker.

    - ``decision``: what was decided.
    - ``record``: the command's id, fit for logs; empty without a key.
    - ``attempt``: the number of this attempt among the consumer's at the command, those under its former names included; 0
      where nothing is counted.
    - ``reason``: one line for logs and dead letters.
    - ``response``: what was kept of the success that a duplicate repeats, or of the error that used up the attempts.
    - ``mismatch``: another payload came with the key, and was taken for the same all the same (``on_mismatch = "warn"``).
    - ``origin``: the message's own ids, ``message_id`` and ``correlation``, for logs and dead letters.
    """

    decision: DeliveryDecision
    record: str = ""
    attempt: int = 0
    reason: str = ""
    response: StoredResponse | None = None
    mismatch: bool = False
    origin: Origin = _NO_ORIGIN
    _execution: "Execution | None" = field(default=None, repr=False, compare=False)

    @property
    def action(self) -> Action:
        """The action for the broker; of a delivery that is to be executed, ``RUN`` until its outcome is known."""
        return self.decision.action if self._execution is None else self._execution.action

    @property
    def run(self) -> bool:
        """Whether this delivery is, or was, to be executed."""
        return self.decision is DeliveryDecision.RUN

    @property
    def execution(self) -> "Execution":
        """The running attempt of a delivery that is to be executed. Raises ``RuntimeError`` where it isn't: see `run`."""
        if self._execution is None:
            raise RuntimeError(
                f"a delivery that is {self.decision.value} is not executed, and has no outcome to record"
            )
        return self._execution

    @property
    def named(self) -> str:
        """How a line of the log names the delivery: by its record, and by its message's own ids."""
        return (self.record or "-") + self.origin.line

    @property
    def result(self) -> bytes | None:
        """The stored result that a duplicate repeats; ``None`` where there is none, or it was too large."""
        return self.response.body if self.response and self.decision is DeliveryDecision.DUPLICATE else None


def decided(
    decision: DeliveryDecision,
    record: str = "",
    *,
    attempt: int = 0,
    reason: str = "",
    response: StoredResponse | None = None,
    mismatch: bool = False,
    origin: Origin = _NO_ORIGIN,
) -> Begun:
    """``decision`` about a delivery, which is not executed yet."""
    return Begun(decision, record, attempt, reason, response, mismatch, origin)


class Execution:
    """A delivery's attempt, while it runs: to be ended with `succeed`, `fail`, `unknown` or `release`, in this event loop.

    - ``returned``, ``raised``: what a handler returned, or raised.
    - ``context``: what an inbox knows of the delivery.
    - ``action``: for the broker: ``RUN`` until the outcome is known.
    - ``settled``: an outcome was given. It stands: what is given later changes nothing.
    - ``after_a_crash``: the last attempt's process died, or lost its lease: this command may have killed it.
    """

    def __init__(
        self,
        begun: Begun,
        context: DeliveryContext,
        attempt: Attempt,
        settings: SubscriptionSettings,
        dead_lettered: Callable[[str], None],
        *,
        after_a_crash: bool = False,
    ) -> None:
        """``dead_lettered`` is called with a reason where its failure means that nobody tries the command again."""
        self.context = context
        self.returned: Any = None
        self.raised: BaseException | None = None
        self.settled = False
        self.after_a_crash = after_a_crash
        self.action = begun.action
        self._begun = begun
        self._outcome: State | None = None
        self._attempt = attempt
        self._settings = settings
        self._dead_lettered = dead_lettered
        self._abandoning: asyncio.Task[None] | None = None
        """Kept, since an event loop doesn't."""

    @property
    def begun(self) -> Begun:
        """The decision as it is by now: once an outcome was given, with the action that follows from it."""
        return replace(self._begun, _execution=self) if self._begun.run else self._begun

    @property
    def attempt(self) -> int:
        """See `Begun`."""
        return self._begun.attempt

    @property
    def named(self) -> str:
        """See `Begun.named`."""
        return self._begun.named

    @property
    def last(self) -> bool:
        """Whether no attempt is allowed after this one."""
        return self.context.last

    @property
    def succeeded(self) -> bool:
        """Whether the outcome that was given is a success; whether it is recorded is another matter."""
        return self._outcome is State.SUCCEEDED

    # -- before its outcome -------------------------------------------------------------------------------------------

    async def confirm(self) -> None:
        """Return once the lease is ours for half its length: to be awaited right before an effect that must not be late.

        Raises `oncegate.middleware.admission.lease.LeaseLost` or ``Unconfirmed``: then do nothing.
        """
        await self._attempt.lease.confirm()

    async def succeed(self, result: bytes | StoredResponse | None = None) -> Recording:
        """The command is done: never again. ``result`` is JSON, or a response as it is to be given.

        Returns once it is recorded, refused, or ``record_timeout`` is over (then recording goes on, and `recorded` waits for
        it). Acknowledge the message only where what is returned is true. Where the result is over ``max_result``, the
        success is recorded without it.
        """
        if self._begin_settling(State.SUCCEEDED):
            self._decide(Action.REDELIVER)  # until it is recorded
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
            kind, message = kind_and_text(error)
            self._decide(Action.DEAD_LETTER if dead else Action.REDELIVER, message or kind)
            log.warning("record %s: attempt %d failed: %s", self.named, self.attempt, kind)
            await self._settle(State.FAILED, failure(error, dead=dead, status=status))
        recording = await self.recorded()
        if recording is Recording.REFUSED:
            self._decide(Action.REDELIVER)
        elif first and dead:
            self._dead_lettered("rejected" if final else DeliveryDecision.EXHAUSTED.value)
        return recording

    async def unknown(self, note: str = "") -> Recording:
        """Nobody can know whether the command was done, as after a time-out: it is tried again, and this attempt counts."""
        await self.abandon(note)
        return await self.recorded()

    async def release(self, action: Action = Action.REDELIVER, *, reason: str | None = None) -> None:
        """Nothing of the command was begun, for this ``reason``: the attempt is undone, and doesn't count."""
        if self._begin_settling(None):
            self._decide(action, reason)
            await self._settle(None, None)

    async def exhaust(self, error: StoredResponse, reason: str, made: int) -> None:
        """The claim was won, but no attempt is left: record the last error, after so many that were ``made``, for all to see."""
        decision = DeliveryDecision.EXHAUSTED
        self._begin_settling(State.FAILED)
        self.action = decision.action
        self._begun = replace(self._begun, decision=decision, attempt=made, reason=reason, response=error)
        await self._settle(State.FAILED, error)

    async def withdraw(self, decision: DeliveryDecision, reason: str) -> None:
        """The claim was won, but can't be used: give it back."""
        self._begin_settling(None)
        self.action = decision.action
        self._begun = replace(self._begun, decision=decision, reason=reason)
        await self._settle(None, None)

    def overran(self) -> None:
        """The handler did not end in time, and can't be ended: the broker is to deliver again."""
        self._decide(Action.REDELIVER, "The handler ran into its time-out, and runs on.")

    async def abandon(self, note: str) -> None:
        """Like `unknown`, but without waiting for a cache that is away: the process may be about to end."""
        if self._begin_settling(State.UNKNOWN):
            self._decide(Action.REDELIVER, note)
            await self._settle(State.UNKNOWN, None, note)

    def abandon_soon(self, note: str) -> None:
        """Like `abandon`, without awaiting it; needs a running event loop: without one, the lease is left to lapse."""
        with suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            self._abandoning = loop.create_task(self.abandon(note))

    async def recorded(self, timeout: float | None = None) -> Recording:
        """Wait until the outcome is recorded or refused, ``timeout`` seconds at most (``record_timeout`` by default)."""
        attempt = self._attempt
        if not attempt.number:
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
            self._decide(Action.ACKNOWLEDGE)
        return recording

    def _begin_settling(self, state: State | None) -> bool:
        if self.settled:
            if state is not self._outcome:
                log.warning("record %s: an outcome was given already; the later one is not recorded", self.named)
            return False
        self.settled = True
        self._outcome = state
        return True

    def _decide(self, action: Action, reason: str | None = None) -> None:
        self.action = action
        if reason is not None:
            self._begun = replace(self._begun, reason=reason)

    async def _settle(self, state: State | None, response: StoredResponse | None, note: str = "") -> None:
        attempt = self._attempt
        running = attempt.lease.task
        try:
            attempt.settle(state, response, note=note)
            await _ended(attempt, self._settings.record_timeout)
        finally:
            if running is not None and not running.done():
                running.set_result(None)

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
    if not attempt.visible:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await attempt.ended()


def not_kept() -> StoredResponse:
    """A success whose result can't be stored."""
    return StoredResponse(_DONE, (), None, now_ms())


def failure(error: BaseException | str, *, dead: bool, status: int = FAILED_STATUS) -> StoredResponse:
    """An error as it is kept; ``dead`` where no attempt will follow."""
    return kept_failure(error_form(error, dead=dead), status)


def kept_failure(body: bytes | None, status: int = FAILED_STATUS) -> StoredResponse:
    """The same of an error that is JSON already."""
    return StoredResponse(status, _JSON, body, now_ms())
