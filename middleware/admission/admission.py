"""Admission: claim, gate, and waiting for a concurrent request. Knows nothing of HTTP; every entry point uses it.

It returns an `Attempt` to be run (without a record, its ``number`` 0, where the cache is down and the policy is to fail
open), or a `Verdict` on the record of another attempt.

Strategy. A claim is sent in one place, and answered by a callback. What only some requests need comes before it, in a coroutine,
and is a part of its own: a slot that must be waited for, an outcome that this process owes, a second secret.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final

from oncegate.cache.backoff import Backoff
from oncegate.cache.callbacks import set_reply, start
from oncegate.cache.errors import CacheFull, CacheUnavailable
from oncegate.cache.record import Claim, Record, State
from oncegate.cache.store import Cache, timeout_of
from oncegate.cache.transitions import submit_again
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.gate import GateDecision, decide
from oncegate.middleware.admission.in_flight import InFlight
from oncegate.middleware.admission.limits.callers import CallerLimits
from oncegate.middleware.admission.observe import Watch
from oncegate.middleware.admission.request import NO_CLAIM, AdmissionRequest, Claiming
from oncegate.middleware.admission.rotation import claim_at_either, read_at_either

_POLLS: Final = Backoff(0.025, 1.25, least=0.6, factor=1.5)
_MISMATCH: Final = GateDecision.MISMATCH  # members of an enumeration take long to look up
_UNKNOWN: Final = State.UNKNOWN
_SHARED: Final = (State.SUCCEEDED, State.FAILED)
"""The outcomes that a waiter gets of the attempt that it waited for; of an unknown one the policy decides, by a claim."""


@dataclass(slots=True, init=False)  # as a `Record`: every replay makes one
class Verdict:
    """The decision on a request that is not to run, with the record. ``remaining_ms`` is what the record has left to live.

    ``mismatch``: the payload differs from the record's, and the policy is to warn only.
    """

    decision: GateDecision
    record: Record
    remaining_ms: int
    mismatch: bool

    def __init__(self, decision: GateDecision, record: Record, remaining_ms: int, mismatch: bool = False) -> None:
        self.decision = decision
        self.record = record
        self.remaining_ms = remaining_ms
        self.mismatch = mismatch


class Admissions:
    """The admission of commands: each runs at most once at a time, over however many processes share the cache."""

    def __init__(
        self, cache: Cache, *, max_in_flight: int, watch: Watch | None = None, callers: CallerLimits | None = None
    ) -> None:
        self.in_flight = InFlight(cache, max_in_flight, watch, callers)

    async def admit(self, request: AdmissionRequest) -> Attempt | Verdict:
        """Decide about one request, for coroutines.

        Raises `Overloaded`, `TooManyKeys`, `CacheUnavailable` (not under ``fail_open``), `RecordUnreadable`.
        """
        while True:
            found = await self._claimed(request)
            if not isinstance(found, Verdict):
                return found
            verdict = await self.wait(request, found)
            if verdict is not None:
                return verdict

    async def _claimed(self, request: AdmissionRequest) -> Attempt | Verdict:
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Claim | Exception] = loop.create_future()
        self.enter(request)
        self.claim(request, loop, partial(set_reply, reply))
        try:
            answer = await reply
        except BaseException as error:  # a closed loop ends it without a cancellation
            self.give_up(request, error)
            raise
        return self.admitted(request, answer)

    async def wait(self, request: AdmissionRequest, found: Verdict) -> Verdict | None:
        """Wait for the attempt that is in the way, if ``request`` is to: the verdict, or ``None``: send the claim once more."""
        if found.decision is not GateDecision.IN_FLIGHT or request.until <= 0.0:
            return found
        ended = await self._outcome_of(found.record, request.address.key, request.until)
        if ended is None:
            return found if monotonic() >= request.until else None
        shared = ended.record.token == found.record.token and ended.record.state in _SHARED
        return self._judge(request, ended) if shared else None

    def _judge(self, request: AdmissionRequest, found: Claim) -> Verdict:
        record, address, warns = found.record, request.address, request.policy.warns
        # A record may be from before the policy was to warn, or of a version that had one form for both.
        ours = address.whole if warns and record.fingerprint == address.whole else address.fingerprint
        decision = decide(record, ours, warn_on_mismatch=warns, raise_on_duplicate=request.raise_on_duplicate)
        mismatch = decision is not _MISMATCH and record.fingerprint != ours
        return Verdict(decision, record, found.remaining_ms, mismatch)

    # -- claimed ------------------------------------------------------------------------------------------------------

    def enter(self, request: AdmissionRequest, as_sent: bool = False) -> bool:
        """Take a slot for ``request``, if one is left; in either case `claim` comes next, at once.

        ``as_sent``: see `ClaimRequest`.
        """
        rotation = request.rotation
        slot = self.in_flight.slots.enter(request.address.key if rotation is None else rotation.first.key)
        request.claiming = Claiming(slot, as_sent)
        return slot is not None

    def claim(
        self, request: AdmissionRequest, loop: asyncio.AbstractEventLoop, then: Callable[[Claim | Exception], None]
    ) -> None:
        """Claim the record, after `enter`. ``then`` is called once, perhaps before this returns, with what `admitted` makes sense
        of: to be ignored after a `give_up`. Without a slot, the record is only read: some answers need no attempt.
        """
        claiming, in_flight = request.claiming, self.in_flight
        if not claiming.is_ready:
            claiming.is_ready = True
            if claiming.slot is not None:
                request.prepare(in_flight)
            # Three parts come before the claim, each in a coroutine: a slot that must be waited for, a second secret, and
            # an outcome that is owed, of this record perhaps. As a rule there is none of them.
            if claiming.slot is None or request.rotation is not None or in_flight.owed.by_key:
                claiming.tasks = (start(loop, self._claim_by_parts(request), then),)
                return
        claim, attempt = claiming.claim, claiming.attempt
        # A submission may take over another one in doubt: to append it twice is harmless, its consumer processes one of both.
        answered = then
        if claim.submission and _UNKNOWN not in claim.takeover:
            answered = partial(self._or_again, request, loop, then)
        adopt = None if attempt is None else attempt.adopt
        task = in_flight.shared.callbacks.start_claim(request.address.key, claim, loop, adopt, answered)
        if task is not None:
            claiming.tasks += (task,)

    def _or_again(
        self,
        request: AdmissionRequest,
        loop: asyncio.AbstractEventLoop,
        then: Callable[[Claim | Exception], None],
        answer: Claim | Exception,
    ) -> None:
        """The answer to a submission's claim, which takes over what it has found in doubt, unless its caller has left."""
        claiming = request.claiming
        again = (
            submit_again(claiming.claim, answer) if isinstance(answer, Claim) and claiming.slot is not None else None
        )
        if again is None:
            then(answer)
        else:
            claiming.claim = again
            self.claim(request, loop, then)

    async def _claim_by_parts(self, request: AdmissionRequest) -> Claim:
        """The answer to a claim before which something has to be waited for, which may be in its way.

        Raises `Overloaded` or `TooManyKeys` where no slot is to be had.
        """
        in_flight, rotation = self.in_flight, request.rotation
        found = await self._owed(request) if in_flight.owed.by_key else None
        if found is None and request.claiming.slot is None:
            found = await self._slot(request)
        if found is None and rotation is not None:
            found = await claim_at_either(request, rotation, in_flight, self._sent)
        return found or await self._sent(request)

    async def _owed(self, request: AdmissionRequest) -> Claim | None:
        """Have what this process owes of the record go out: by the cache alone it might be executed again.

        The outcome where the cache still doesn't take it. Raises `CacheUnavailable`, unless the policy is to fail open.
        """
        rotation = request.rotation
        keys = (request.address.key,) if rotation is None else (rotation.first.key, rotation.other.key)
        outcome = await self.in_flight.owed.go_out(*keys)
        if outcome is None:
            return None
        if not request.policy.fails_open:
            raise CacheUnavailable("the outcome of this key's last attempt is not recorded yet")
        # Without a record it would be executed again, though its outcome is known here.
        return Claim(won=False, record=outcome, remaining_ms=request.policy.ttl_ms[outcome.state])

    async def _slot(self, request: AdmissionRequest) -> Claim | None:
        """The record, if it is in the way; else ``None``, once a slot is free. Raises `Overloaded` or `TooManyKeys`."""
        in_flight, rotation = self.in_flight, request.rotation
        shared = in_flight.shared
        sent = monotonic()
        if rotation is not None:
            found = await read_at_either(request, rotation, in_flight)
        else:
            found = await shared.timed("get", shared.cache.get(request.address.key))
        request.at_cache += monotonic() - sent
        if found is not None and not request.may_take_over(found):
            return found
        timeout = timeout_of(shared.cache)
        caller_key = request.address.key if rotation is None else rotation.first.key
        request.claiming.slot = await in_flight.slots.wait(caller_key, timeout, is_new=found is None)
        request.prepare(in_flight)
        return None

    async def _sent(self, request: AdmissionRequest) -> Claim:
        """The answer to the claim that was prepared, for coroutines."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Claim | Exception] = loop.create_future()
        self.claim(request, loop, partial(set_reply, reply))
        answer = await reply
        if isinstance(answer, Exception):
            raise answer
        return answer

    # -- answered -----------------------------------------------------------------------------------------------------

    def admitted(self, request: AdmissionRequest, answer: object) -> Attempt | Verdict:
        """The attempt, or the verdict, that follows from the answer to `claim`. Raises what `admit` raises."""
        claiming = request.claiming
        slot, attempt = claiming.slot, claiming.attempt
        if slot is not None:  # without one the record was only read: there is nothing to run, or to give back
            request.claiming = NO_CLAIM
            shared = self.in_flight.shared
            if shared.is_watched or request.trace is not None:
                request.at_cache += shared.answered("claim", answer, claiming.sent, request.trace)
            if isinstance(answer, Claim):
                if answer.won:  # its slot is the attempt's from now on
                    in_flight, number = self.in_flight, answer.record.attempt
                    if attempt is None:
                        claim, policy, sent = claiming.claim, request.policy, claiming.sent
                        attempt = Attempt(in_flight, request.address.key, claim, policy, sent, slot, request.trace)
                    attempt.number = attempt.lease.number = number
                    slot.won(is_new=number == 1)
                    if in_flight.owed.by_key:
                        in_flight.owed.wake()
                    return attempt
            elif attempt is not None and isinstance(answer, CacheUnavailable) and not isinstance(answer, CacheFull):
                slot.won()  # a full cache is up, and can refuse
                return attempt
            slot.lost()
        if isinstance(answer, Claim):
            return self._judge(request, answer)
        if isinstance(answer, Exception):
            raise answer
        raise TypeError(f"the cache has answered a {type(answer).__name__}, not a Claim")

    def give_up(self, request: AdmissionRequest, end: BaseException) -> None:
        """Instead of `admitted`: ``end`` ended the caller, so a claim that is won is given back."""
        claiming = request.claiming
        is_cancelled = isinstance(end, asyncio.CancelledError)  # else the loop is closed
        if is_cancelled:
            for task in claiming.tasks:
                task.cancel()
        slot = claiming.slot
        if slot is not None:
            slot.lost(is_new=True)
            if is_cancelled:
                self.in_flight.withdraw(claiming.attempt or request.attempt(self.in_flight))
            claiming.slot = None  # nothing is claimed once more

    # -- waited for ---------------------------------------------------------------------------------------------------

    async def _outcome_of(self, awaited: Record, key: str, until: float) -> Claim | None:
        """The record once the awaited attempt is no longer in flight; ``None`` when it is gone, or when time is up."""
        polls = 0
        while (left := until - monotonic()) > 0:
            attempt = self.in_flight.by_token(awaited.token)
            if attempt is not None and not (attempt.visible and attempt.outcome is None):
                return await _outcome(attempt, left)
            polls += 1
            await asyncio.sleep(min(left, _POLLS.pause(polls)))
            found = await self.in_flight.shared.timed("get", self.in_flight.shared.cache.get(key))
            if found is None or found.record.state is not State.IN_FLIGHT or found.record.token != awaited.token:
                return found
        return None


async def _outcome(attempt: Attempt, timeout: float) -> Claim | None:
    try:
        await asyncio.wait_for(attempt.ended(), timeout)
    except TimeoutError:
        return None
    if attempt.outcome is None:
        return None
    return Claim(won=False, record=attempt.outcome, remaining_ms=attempt.policy.ttl_ms[attempt.outcome.state])
