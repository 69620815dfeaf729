"""An attempt: one execution of a command under a lease, which is renewed while the command runs, and settled once.

Strategy. An attempt belongs to the process, not to the request that began it: its task lives in `InFlight`, and neither a
client that leaves nor ``response_timeout`` ends it. While it runs, one timer renews the lease, as a rule at every third of it.
Settling is fenced by the owner token; where the cache doesn't answer, `InFlight` tries again while the process lives,
because a known outcome must not become an unknown one only because the cache was away.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from time import monotonic

from oncegate.cache.errors import CacheError
from oncegate.cache.record import Claim, ClaimRequest, Record, State, StoredResponse
from oncegate.middleware.admission.deadlines import Deadlines
from oncegate.middleware.admission.runtime import Runtime
from oncegate.middleware.outcome.errors import NotProcessed
from oncegate.middleware.rules.key import record_id
from oncegate.middleware.rules.policy import Policy

log = logging.getLogger("oncegate.attempt")


class LeaseLost(NotProcessed):
    """Before anything was sent, another owner was found to have taken over the attempt's record."""


class Unconfirmed(NotProcessed):
    """Before anything was sent, the cache could not say whether the attempt is still ours."""


class Attempt:
    """An attempt at one command, made before its claim is sent, so that a claim which is won late finds it.

    ``number`` is 0 until the claim is won, and stays 0 in an attempt that runs without a record (``fail_open``). Once
    ``settled``, ``outcome`` is the record as it is to be written, ``None`` where the attempt is released, or came too late.
    Once ``visible``, the cache has it, or did not answer in time: clients may see it. ``overdue``: its task was cancelled by
    ``attempt_timeout``.
    """

    __slots__ = (
        "_cache",
        "_deadline",
        "_ended",
        "_limit",
        "_limits",
        "_lost",
        "_runtime",
        "_sent",
        "_started",
        "_then",
        "_timer",
        "claim",
        "fingerprint",
        "first_key",
        "has_slot",
        "held_since",
        "is_over",
        "key",
        "lasts",
        "loop",
        "number",
        "origin",
        "outcome",
        "overdue",
        "policy",
        "recording",
        "refused",
        "settled",
        "submission",
        "task",
        "token",
        "visible",
    )

    def __init__(
        self,
        runtime: Runtime,
        key: str,
        claim: ClaimRequest,
        policy: Policy,
        held_since: float = 0.0,
    ) -> None:
        self.key = key
        self.claim = claim
        """What it is claimed with, and its outcome is made of."""
        self.token = claim.token
        self.fingerprint = claim.fingerprint
        self.policy = policy
        self.origin = ""
        """What stands behind the record's id in logs: the ids of a consumer's message."""
        self.submission = claim.submission
        """Its success says that a command was accepted to be processed later."""
        self.held_since = held_since or monotonic()
        """From when on its lease counts: since before the claim was sent, so never longer than the cache counts it."""
        self.number = 0
        """The record's, once the claim is won."""
        self.settled = False
        self.visible = False
        self.overdue = False
        self.refused = False
        """The outcome can't be recorded any more: the record is somebody else's, or can't be read."""
        self.outcome: Record | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where it runs, once it does."""
        self.task: asyncio.Future[None] | None = None
        """Done when the command's execution is; cancelled where it runs out of time. ``None`` while there is none."""
        self.recording: asyncio.Task[None] | None = None
        """Tries to record the outcome, where the cache did not take it at once."""
        self.is_over = False
        """It has answered, or nothing of it runs any more; its slot is free once it is ``visible``."""
        self.first_key = self.key
        """By which its caller has a slot: another one where its record was found by another secret."""
        self.has_slot = True
        """Whether it counts towards ``max_in_flight``."""
        self.lasts = False
        """It takes longer than most, and the watch was notified."""
        self._runtime = runtime
        self._cache = runtime.cache
        self._started = self.held_since
        self._deadline = 0.0
        self._lost = False
        self._sent = 0.0
        self._then: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._limits: Deadlines | None = None
        self._limit = 0
        self._ended: asyncio.Future[None] | None = None

    @property
    def record(self) -> str:
        """The record's id, for logs and problems."""
        return record_id(self.key)

    @property
    def named(self) -> str:
        """How a line of the log names it."""
        return self.record + self.origin

    # -- claimed, confirmed, renewed ----------------------------------------------------------------------------------

    def adopt(self, claim: Claim) -> None:
        """A claim was won after all, while its command ran without a record (``fail_open``): record it from here on."""
        self.number = claim.record.attempt
        log.info("record %s: the cache answered late; the attempt is recorded from here on", self.named)
        if self.settled:
            if self.outcome is not None:
                self.outcome = replace(self.outcome, attempt=self.number)
            self._runtime.keep_trying(self)
        elif self.task is not None:
            self._note()
            self._schedule()

    @property
    def is_certain(self) -> bool:
        """Whether the lease is ours for half its length from now, or there is no record: then `confirm` returns at once."""
        return not self.number or monotonic() - self.held_since < self.policy.lease_ms / 2000

    async def confirm(self) -> None:
        """Return once the lease is certain to be ours for half its length; to be awaited before the first byte is sent.

        An owner that was paused (SIGSTOP, a frozen virtual machine) must not run beside its successor. Raises `LeaseLost`;
        and `Unconfirmed` where the cache does not answer, unless the policy is to fail open.
        """
        if self.is_certain:
            return
        try:
            if not await self._extend():
                raise LeaseLost("the attempt was taken over before it began")
        except CacheError as error:
            if self.policy.settings.on_cache_down == "fail_closed":
                raise Unconfirmed(str(error)) from error

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """The command is executed from now on."""
        self.loop = loop
        self._started = monotonic()
        self._deadline = self._started + self.policy.attempt_timeout

    def limit(self, limits: Deadlines, lasts: Callable[[], None]) -> None:
        """Have ``lasts`` called when ``limits`` say so, unless it is settled before."""
        self._limits = limits
        self._limit = limits.set(lasts)

    def keep(self, task: "asyncio.Future[None]") -> None:
        """``task`` executes the attempt: renew the lease from now on, and cancel the task after ``attempt_timeout``."""
        self._unschedule()
        self.task = task
        self._note()
        heartbeat = self.policy.heartbeat
        if self.number and self._started - self.held_since < heartbeat / 4 and self._limits is None:
            # The usual attempt is over long before this, and shares its timer with the others.
            self._limits = self._runtime.limits.on(task.get_loop(), min(heartbeat, self.policy.attempt_timeout))
            self._limit = self._limits.set(self._tick)
        else:
            self._schedule()

    def ran(self, _: "asyncio.Future[None]") -> None:
        """Its task is done."""
        self.task = None  # it would be kept, with its coroutine and context, until the outcome is recorded
        if not self.is_over:
            self._runtime.end(self)

    def over(self) -> None:
        """It has answered, and is settled: its slot is free once it is ``visible``, whatever its task still does."""
        self.is_over = True
        if self.visible:
            self._runtime.end(self)

    def _note(self) -> None:
        if self.number and not self.lasts:
            self.lasts = True
            self._runtime.notify(self._runtime.watch.outcome_pending, self.record)

    def _schedule(self) -> None:
        self._unschedule()
        now = monotonic()
        wait = self._deadline - now
        if self.number and not self._lost:
            heartbeat = self.policy.heartbeat
            # At least a quarter of it from now: a cache that fails at once is not called in a busy loop.
            wait = min(wait, max(self.held_since + heartbeat - now, heartbeat / 4))
        self._timer = asyncio.get_running_loop().call_later(max(0.0, wait), self._tick)

    def _unschedule(self) -> None:
        if self._limits is not None:
            self._limits.drop(self._limit)
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        if self.settled or self.task is None or self.task.done():
            return
        if monotonic() >= self._deadline:
            log.warning("record %s: attempt %d ran into attempt_timeout", self.named, self.number)
            self.overdue = True
            self.task.cancel()
        else:
            self._runtime.in_background(self._renew())

    async def _renew(self) -> None:
        try:
            self._lost = not await self._extend()
        except CacheError as error:
            log.warning("record %s: the lease could not be renewed: %s", self.named, error)
        if self.settled:
            return
        if self._lost:
            log.warning("record %s: attempt %d lost its lease and runs on", self.named, self.number)
            self._runtime.notify(self._runtime.watch.lease_lost, self.policy.route)
        self._schedule()

    async def _extend(self) -> bool:
        sent = monotonic()
        extended = self._cache.extend(self.key, token=self.token, lease_ms=self.policy.lease_ms)
        ours: object = await self._runtime.timed("extend", extended)  # a cache of one's own may say 1
        if ours:
            self.held_since = sent
        return bool(ours)

    # -- settled ------------------------------------------------------------------------------------------------------

    def settle(
        self,
        state: State | None,
        response: StoredResponse | None = None,
        *,
        note: str = "",
        then: Callable[[], None] | None = None,
    ) -> None:
        """The outcome is known: complete the record as ``state``, or release it (``None``). Later calls record nothing.

        ``note`` is one line for operators about what happened, where no response says it.

        ``then`` is called, and `ended` returns, when the cache has answered or its time-out is over; in the latter case
        recording goes on in the background.
        """
        if self.settled:
            if then is not None:
                self._runtime.in_background(self._once_ended(then))
            return
        self.settled, self._then, self._sent = True, then, monotonic()
        self._unschedule()
        seconds = self._sent - self._started
        if state is not None:
            self.outcome = self.claim.outcome(state, max(self.number, 1), response, round(seconds * 1000), note)
        if self._runtime.is_watched:
            self._runtime.decided(self.policy.route, state, seconds)
        if self.number:
            self._write()
        else:
            self._show()

    def _write(self) -> None:
        outcome, cache, loop = self.outcome, self._runtime.prompt, self.loop
        if outcome is not None and cache is not None and loop is not None:
            ttl_ms = self.policy.ttl_ms[outcome.state]
            if cache.complete_soon(self.key, outcome, loop=loop, ttl_ms=ttl_ms, then=self._completed):
                return
        self._runtime.in_background(self._write_by_coroutine())

    def _completed(self, answer: object) -> None:
        if self._runtime.is_watched:
            self._runtime.answered("complete", answer, self._sent)
        if isinstance(answer, Exception):
            self._put_off(answer)
        elif not answer:
            self._refuse()
        self._show()

    async def _write_by_coroutine(self) -> None:
        answered = False
        try:
            await self.write_outcome()
            answered = True
        except Exception as error:  # noqa: BLE001 - a cache of one's own may raise anything: it is tried again
            answered = True
            self._put_off(error)
        finally:  # after a cancellation too: the write is idempotent, and an outcome is not dropped
            if not answered:
                self._runtime.keep_trying(self)
            self._show()

    async def _once_ended(self, then: Callable[[], None]) -> None:
        await self.ended()
        then()

    def _put_off(self, error: Exception) -> None:
        log.warning("record %s: the outcome is not recorded yet: %s", self.named, error)
        self._runtime.keep_trying(self)

    def _show(self) -> None:
        """The outcome may be seen from now on."""
        self.visible = True
        if self.is_over:
            self._runtime.end(self)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        then, self._then = self._then, None  # it refers back to us
        if then is not None:
            then()

    async def write_outcome(self) -> None:
        """One try at recording the outcome. Raises `CacheError`; a refusal is final and only logged."""
        outcome = self.outcome
        if outcome is None:
            await self._runtime.timed("release", self._cache.release(self.key, token=self.token))
            return
        completed = self._cache.complete(self.key, outcome, ttl_ms=self.policy.ttl_ms[outcome.state])
        recorded: object = await self._runtime.timed("complete", completed)
        if not recorded:
            self._refuse()

    def _refuse(self) -> None:
        log.error(
            "record %s: attempt %d was taken over or resolved; its outcome is not recorded", self.named, self.number
        )
        # No later request can learn of it, so waiters don't either: they go by the record.
        self.outcome = None
        self.refused = True
        self._runtime.notify(self._runtime.watch.outcome_refused, self.policy.route)

    async def ended(self) -> None:
        """Return once the outcome is ``visible``. For waiters in the attempt's own event loop."""
        if not self.visible:
            if self._ended is None:
                self._ended = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._ended)
