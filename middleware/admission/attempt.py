"""An attempt: one execution of a command, settled once.

Strategy. An attempt belongs to the process, not to the request that began it: its task lives in `InFlight`, and neither a
client that leaves nor ``response_timeout`` ends it. It runs under its lease (`oncegate.middleware.admission.lease`).
Settling is fenced by the owner token; where the cache doesn't answer, `InFlight` tries again while the process lives,
because a known outcome must not become an unknown one only because the cache was away.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from oncegate.cache.callbacks import Then, set_reply, start
from oncegate.cache.record import Claim, ClaimRequest, Record, State, StoredResponse
from oncegate.cache.store import timeout_of
from oncegate.middleware.admission.lease import Lease
from oncegate.middleware.admission.limits.slots import Slot
from oncegate.middleware.admission.observe import WATCH_FAILED
from oncegate.middleware.admission.shared import notify
from oncegate.middleware.admission.tracing import AttemptTrace
from oncegate.middleware.rules.keys.key import record_id
from oncegate.middleware.rules.policy import Policy

if TYPE_CHECKING:
    from oncegate.middleware.admission.in_flight import InFlight

log = logging.getLogger("oncegate.attempt")
_monotonic: Final = monotonic  # a module's own name takes no look into a dict, compiled


class Attempt:
    """An attempt at one command, for which ``claim`` was made, under its ``lease``; its ``slot`` is of ``max_in_flight``.

    ``number`` is 0 until the claim is won, and stays 0 in an attempt that runs without a record (``fail_open``). Once
    ``settled_at``, ``outcome`` is the record as it is to be written, ``None`` where the attempt is released, or came too late.
    Once ``visible``, the cache has it, or did not answer in time: clients may see it.
    """

    __slots__ = (
        "_ended",
        "_in_flight",
        "_then",
        "claim",
        "is_over",
        "key",
        "lease",
        "number",
        "outcome",
        "policy",
        "recording",
        "refused",
        "settled_at",
        "slot",
        "trace",
        "visible",
    )

    def __init__(
        self,
        in_flight: "InFlight",
        key: str,
        claim: ClaimRequest,
        policy: Policy,
        held_since: float,
        slot: Slot | None,
        trace: AttemptTrace | None = None,
    ) -> None:
        self.key = key
        self.claim = claim
        """The claim's arguments, which its outcome is made of, too."""
        self.policy = policy
        self.slot = slot
        """``None`` where it takes none, or not any more."""
        self.trace = trace
        self.number = 0
        self.lease = Lease(in_flight.shared, key, claim.token, policy, held_since)
        self.settled_at = 0.0
        """The time at which its outcome was given, on the monotonic clock; 0.0 until then."""
        self.visible = False
        self.refused = False
        """The outcome can't be recorded any more: the record is somebody else's, or can't be read."""
        self.outcome: Record | None = None
        self.recording: asyncio.Task[None] | None = None
        """Tries to record the outcome, where the cache did not take it at once."""
        self.is_over = False
        """It has answered, or nothing of it runs any more; its slot is free once it is ``visible``."""
        self._in_flight = in_flight
        self._then: Callable[[], None] | None = None
        self._ended: asyncio.Future[None] | None = None

    @property
    def record(self) -> str:
        """The record's id, for logs and problems."""
        return record_id(self.key)

    @property
    def named(self) -> str:
        """How a line of the log names it."""
        return self.lease.named

    @property
    def settled(self) -> bool:
        """Whether its outcome is known here."""
        return self.settled_at > 0.0

    # -- claimed, executed --------------------------------------------------------------------------------------------

    def adopt(self, claim: Claim) -> None:
        """A claim was won after all, while its command ran without a record (``fail_open``): record it from here on."""
        self.number = claim.record.attempt
        log.info(
            "record %s: the cache answered late; the attempt is recorded from here on",
            self.named,
            extra=self.lease.ids(),
        )
        self.lease.adopt(self.number)
        if self.settled:
            if self.outcome is not None:
                self.outcome = replace(self.outcome, attempt=self.number)
            self._in_flight.keep_trying(self)

    def ran(self, _: "asyncio.Future[None]") -> None:
        """Note that the task is done."""
        self.lease.task = None  # it would be kept, with its coroutine and context, until the outcome is recorded
        if not self.is_over:
            self._in_flight.end(self)

    def over(self) -> None:
        """It has answered, and is settled: its slot is free once it is ``visible``, whatever its task still does."""
        self.is_over = True
        if self.visible:
            self._in_flight.end(self)

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
        lease, shared = self.lease, self._in_flight.shared
        if self.settled_at > 0.0:
            if then is not None:
                shared.in_background(self._once_ended(then))
            return
        self._then = then
        self.settled_at = now = _monotonic()
        lease.end()
        seconds = now - lease.began
        if state is not None:
            self.outcome = self.claim.outcome(state, max(self.number, 1), response, int(seconds * 1000 + 0.5), note)
        if shared.is_watched:
            try:
                shared.watch.attempt_settled(self.policy.route, state, seconds)
            except Exception:  # as `notify`, which each request would pay for
                log.exception(WATCH_FAILED)
        if self.trace is not None:
            self.trace.settled(state, self.number)
        if self.number:
            self._write(lease.loop or asyncio.get_running_loop(), self._written)
        else:
            self.show()

    def _write(self, loop: asyncio.AbstractEventLoop, then: Then[bool]) -> None:
        outcome = self.outcome
        if outcome is None:
            start(loop, self._in_flight.shared.cache.release(self.key, token=self.claim.token), then)
        else:
            ttl_ms = self.policy.ttl_ms[outcome.state]
            self._in_flight.shared.callbacks.start_complete(self.key, outcome, loop, ttl_ms, then)

    def _written(self, answer: object) -> None:
        shared = self._in_flight.shared
        if shared.is_watched or self.trace is not None:
            operation = "release" if self.outcome is None else "complete"
            shared.answered(operation, answer, self.settled_at, self.trace)
        if isinstance(answer, Exception):  # a cache of one's own may raise anything: it is tried again
            log.warning("record %s: the outcome is not recorded yet: %s", self.named, answer, extra=self.lease.ids())
            self._in_flight.keep_trying(self)
            # A connection that broke has answered at once: its next try may record it before anybody has seen it.
            left = self.settled_at + timeout_of(shared.cache) - monotonic()
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
            self._in_flight.end(self)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        then, self._then = self._then, None  # it refers back to us
        if then is not None:
            then()

    async def write_outcome(self) -> None:
        """One more try at recording the outcome. Raises what the cache raises; a refusal is final and only logged."""
        loop, shared, sent = asyncio.get_running_loop(), self._in_flight.shared, monotonic()
        reply: asyncio.Future[bool | Exception] = loop.create_future()
        self._write(loop, partial(set_reply, reply))
        answer = await reply
        if shared.is_watched or self.trace is not None:
            shared.answered("release" if self.outcome is None else "complete", answer, sent, self.trace)
        if isinstance(answer, Exception):
            raise answer
        if not answer and self.outcome is not None:
            self._refuse()

    def _refuse(self) -> None:
        log.error(
            "record %s: attempt %d was taken over or resolved; its outcome is not recorded",
            self.named,
            self.number,
            extra=self.lease.ids(),
        )
        # No later request can learn of it, so waiters don't either: they go by the record.
        self.outcome = None
        self.refused = True
        notify(self._in_flight.shared.watch.outcome_refused, self.policy.route)

    async def ended(self) -> None:
        """Return once the outcome is ``visible``. For waiters in the attempt's own event loop."""
        if not self.visible:
            if self._ended is None:
                self._ended = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._ended)
