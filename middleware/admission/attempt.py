"""An attempt: one execution of a command under a lease, which is renewed while the command runs, and settled once.

Strategy. An attempt belongs to the process, not to the request that began it: its task lives in `InFlight`, and neither a
client that leaves nor ``response_timeout`` ends it. While it runs, one timer renews the lease, as a rule at every third of it.
Settling is fenced by the owner token; where the cache doesn't answer, `InFlight` tries again while the process lives,
because a known outcome must not become an unknown one only because the cache was away.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from oncegate.cache.errors import CacheError
from oncegate.cache.record import Claim, ClaimRequest, Record, State, StoredResponse
from oncegate.cache.store import Cache, Then, callbacks, set_reply, start, timeout_of
from oncegate.middleware.admission.deadlines import Deadlines, LoopDeadlines
from oncegate.middleware.admission.observe import NOBODY, WATCH_FAILED, Watch
from oncegate.middleware.outcome.errors import NotProcessed
from oncegate.middleware.rules.key import record_id
from oncegate.middleware.rules.policy import Policy

log = logging.getLogger("oncegate.attempt")

Result = TypeVar("Result")


def notify(event: Callable[..., None], *what: object) -> None:
    """Call one of a watch's methods. Its error is only logged: it must not decide about a payment."""
    try:
        event(*what)
    except Exception:
        log.exception(WATCH_FAILED)


class Runtime:
    """What attempts use of their process: cache, time limits, background tasks, a `Watch`. It is an `InFlight` (in_flight.py)."""

    def __init__(self, cache: Cache, watch: Watch) -> None:
        self.cache = cache
        self.callbacks = callbacks(cache)
        self.watch = watch
        self.is_watched = watch is not NOBODY
        """Whether anybody is to be notified: else each request is spared the calls."""
        self.limits = LoopDeadlines()
        self._background: set[asyncio.Task[None]] = set()

    def end(self, attempt: "Attempt") -> None:
        """See `InFlight`."""
        raise NotImplementedError

    def keep_trying(self, attempt: "Attempt") -> None:
        """See `InFlight`."""
        raise NotImplementedError

    def answered(self, operation: str, answer: object, sent: float) -> None:
        """Notify ``watch`` of the cache's answer, perhaps an error, to what was sent at ``sent``."""
        try:
            if isinstance(answer, Exception):
                self.watch.cache_failed(operation, monotonic() - sent)
            else:
                self.watch.cache_answered(operation, monotonic() - sent)
        except Exception:
            log.exception(WATCH_FAILED)

    async def timed(self, operation: str, call: Awaitable[Result]) -> Result:
        """Await a call of the cache, and notify ``watch`` of the answer."""
        sent = monotonic()
        try:
            answer = await call
        except CacheError as error:
            self.answered(operation, error, sent)
            raise
        self.answered(operation, answer, sent)
        return answer

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work``, which must not raise, for as long as the process lives."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


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
        "task",
        "visible",
    )

    def __init__(
        self, runtime: Runtime, key: str, claim: ClaimRequest, policy: Policy, held_since: float = 0.0
    ) -> None:
        self.key = key
        self.claim = claim
        """What it is claimed with, and its outcome is made of."""
        self.policy = policy
        self.origin = ""
        """What stands behind the record's id in logs: the ids of a consumer's message."""
        self.held_since = held_since or monotonic()
        """From when on its lease counts: since before the claim was sent, so never longer than the cache counts it."""
        self.number = 0
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
            if not await self._keeps_lease():
                raise LeaseLost("the attempt was taken over before it began")
        except CacheError as error:
            if self.policy.settings.on_cache_down == "fail_closed":
                raise Unconfirmed(str(error)) from error

    def start(self, loop: asyncio.AbstractEventLoop, lasts: Callable[[], None] | None) -> None:
        """The command is executed from now on. ``lasts`` is called after ``Policy.soon``, unless it is settled before."""
        self.loop = loop
        self._started = monotonic()
        self._deadline = self._started + self.policy.attempt_timeout
        if lasts is not None:
            self._limits = self._runtime.limits.on(loop, self.policy.soon)
            self._limit = self._limits.set(lasts)

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
            notify(self._runtime.watch.outcome_pending, self.record)

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
            self._lost = not await self._keeps_lease()
        except Exception as error:  # noqa: BLE001  # a cache of one's own may raise anything: it is tried again
            log.warning("record %s: the lease could not be renewed: %s", self.named, error)
        if self.settled:
            return
        if self._lost:
            log.warning("record %s: attempt %d lost its lease and runs on", self.named, self.number)
            notify(self._runtime.watch.lease_lost, self.policy.route)
        self._schedule()

    async def _keeps_lease(self) -> bool:
        sent = monotonic()
        extended = self._runtime.cache.renew(self.key, token=self.claim.token, lease_ms=self.policy.lease_ms)
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

        ``note`` is one line for operators about what happened, where no response says it. ``then`` is called, and `ended`
        returns, when the cache has answered or its time-out is over; in the latter case recording goes on in the background.
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
            notify(self._runtime.watch.attempt_settled, self.policy.route, state, seconds)
        if self.number:
            self._write(self.loop or asyncio.get_running_loop(), self._written)
        else:
            self.show()

    def _write(self, loop: asyncio.AbstractEventLoop, then: Then[bool]) -> None:
        outcome = self.outcome
        if outcome is None:
            start(loop, self._runtime.cache.release(self.key, token=self.claim.token), then)
        else:
            ttl_ms = self.policy.ttl_ms[outcome.state]
            self._runtime.callbacks.start_complete(self.key, outcome, loop=loop, ttl_ms=ttl_ms, then=then)

    def _written(self, answer: object) -> None:
        if self._runtime.is_watched:
            self._runtime.answered("release" if self.outcome is None else "complete", answer, self._sent)
        if isinstance(answer, Exception):  # a cache of one's own may raise anything: it is tried again
            log.warning("record %s: the outcome is not recorded yet: %s", self.named, answer)
            self._runtime.keep_trying(self)
            # A connection that broke has answered at once: its next try may record it before anybody has seen it.
            left = self._sent + timeout_of(self._runtime.cache) - monotonic()
            if left > 0:
                asyncio.get_running_loop().call_later(left, self.show)
                return
        elif not answer and self.outcome is not None:
            self._refuse()
        self.show()

    async def _once_ended(self, then: Callable[[], None]) -> None:
        await self.ended()
        then()

    def show(self) -> None:
        """The outcome may be seen from now on. Later calls do nothing."""
        if self.visible:
            return
        self.visible = True
        if self.is_over:
            self._runtime.end(self)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        then, self._then = self._then, None  # it refers back to us
        if then is not None:
            then()

    async def write_outcome(self) -> None:
        """One more try at recording the outcome. Raises what the cache raises; a refusal is final and only logged."""
        loop, self._sent = asyncio.get_running_loop(), monotonic()
        reply: asyncio.Future[bool | Exception] = loop.create_future()
        self._write(loop, partial(set_reply, reply))
        answer = await reply
        if self._runtime.is_watched:
            self._runtime.answered("release" if self.outcome is None else "complete", answer, self._sent)
        if isinstance(answer, Exception):
            raise answer
        if not answer and self.outcome is not None:
            self._refuse()

    def _refuse(self) -> None:
        log.error(
            "record %s: attempt %d was taken over or resolved; its outcome is not recorded", self.named, self.number
        )
        # No later request can learn of it, so waiters don't either: they go by the record.
        self.outcome = None
        self.refused = True
        notify(self._runtime.watch.outcome_refused, self.policy.route)

    async def ended(self) -> None:
        """Return once the outcome is ``visible``. For waiters in the attempt's own event loop."""
        if not self.visible:
            if self._ended is None:
                self._ended = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._ended)
