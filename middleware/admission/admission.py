"""Admission: claim, gate, and waiting for a concurrent request. Knows nothing of HTTP; every entry point uses it.

It returns an `Attempt` to be run (without a record, its ``number`` 0, where the cache is down and the policy is to fail
open), or a `Verdict` on the record of another attempt.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from time import monotonic, time
from typing import Any, Final

from oncegate.cache.backoff import Backoff
from oncegate.cache.errors import CacheFull, CacheUnavailable
from oncegate.cache.record import TOKEN_BYTES, Claim, ClaimRequest, Record, State, Trace, takes_over
from oncegate.cache.store import Cache, set_reply, start, timeout_of
from oncegate.cache.transitions import submit_again
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.callers import CallerLimits
from oncegate.middleware.admission.gate import GateDecision, decide
from oncegate.middleware.admission.in_flight import InFlight
from oncegate.middleware.admission.observe import Watch
from oncegate.middleware.rules.errors import MOST_TURNS, overtaken
from oncegate.middleware.rules.policy import Policy

_POLLS: Final = Backoff(0.025, 1.25, least=0.6, factor=1.5)
_MISMATCH: Final = GateDecision.MISMATCH  # members of an enumeration take long to look up
_MOST_OF_HOST: Final = 32
_SHARED: Final = (State.SUCCEEDED, State.FAILED)
"""The outcomes that a waiter gets of the attempt that it waited for; of an unknown one the policy decides, by a claim."""


@lru_cache(maxsize=64)
def gateway_id(name: str = "") -> str:
    """This process's name in the records that it makes: ``name``, or else the host's, and the process id: ``host/pid``.

    Of a long host name its end, which is where orchestrators put what differs.
    """
    return f"{(name or socket.gethostname())[-_MOST_OF_HOST:]}/{os.getpid()}"


# A forked worker is another gateway. Reading the process id for each claim would be a system call each.
if hasattr(os, "register_at_fork"):  # Windows has none, and never forks
    os.register_at_fork(after_in_child=gateway_id.cache_clear)


class Address:
    """Where a request's record is by one of the secrets, and its fingerprints by that one."""

    __slots__ = ("fingerprint", "key", "whole")

    def __init__(self, key: str, fingerprint: bytes, whole: bytes = b"") -> None:
        self.key = key
        self.fingerprint = fingerprint
        self.whole = whole


class AdmissionRequest:
    """A request for admission: ``wait`` is how many seconds to wait for a concurrent request's outcome, 0 for not at all.

    ``submission``: the command is to be accepted now and processed later. ``whole`` is the fingerprint as other policies than
    ``on_mismatch = "warn"`` make it. ``other`` is where the record may be besides, while two secrets are in use; ``is_at_other``
    says that the two were exchanged, since it is there. What comes after it is kept here between `Admissions.claim` and
    `Admissions.admitted`.
    """

    # No dataclass: compiled, what those generate takes ten times as long.
    __slots__ = (
        "attempt",
        "claim",
        "fingerprint",
        "first_key",
        "has_slot",
        "is_at_other",
        "key",
        "method",
        "other",
        "policy",
        "raise_on_duplicate",
        "sent",
        "submission",
        "task",
        "until",
        "wait",
        "whole",
    )

    claim: ClaimRequest

    def __init__(
        self,
        key: str,
        fingerprint: bytes,
        policy: Policy,
        wait: float = 0.0,
        raise_on_duplicate: bool = False,
        submission: bool = False,
        whole: bytes = b"",
        method: str = "",
    ) -> None:
        self.key = key
        self.first_key = key
        """The look-up key by the first secret, by which its caller is known here, wherever the record is."""
        self.method = method
        self.fingerprint = fingerprint
        self.policy = policy
        self.wait = wait
        self.until = monotonic() + wait if wait > 0 else 0.0
        self.raise_on_duplicate = raise_on_duplicate
        self.submission = submission
        self.whole = whole
        self.other: Address | None = None
        self.is_at_other = False
        self.sent = 0.0
        self.attempt: Attempt | None = None
        self.has_slot = False
        self.task: asyncio.Task[None] | None = None
        """Has the answer, where that takes a coroutine."""

    def go_by_other(self) -> None:
        """Exchange the two addresses, where there are two."""
        other = self.other
        if other is not None:
            self.other = Address(self.key, self.fingerprint, self.whole)
            self.key, self.fingerprint, self.whole = other.key, other.fingerprint, other.whole
            self.is_at_other = not self.is_at_other


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
    """Lets each command run at most once at a time, over however many processes share the cache."""

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
        if found.decision is not GateDecision.IN_FLIGHT or request.wait <= 0:
            return found
        ended = await self._outcome_of(found.record, request.key, request.until)
        if ended is None:
            return found if monotonic() >= request.until else None
        shared = ended.record.token == found.record.token and ended.record.state in _SHARED
        return self._judge(request, ended) if shared else None

    def _judge(self, request: AdmissionRequest, found: Claim) -> Verdict:
        record, warns = found.record, request.policy.warns
        # A record may be from before the policy was to warn, or of a version that had one form for both.
        ours = request.whole if warns and record.fingerprint == request.whole else request.fingerprint
        decision = decide(record, ours, warn_on_mismatch=warns, raise_on_duplicate=request.raise_on_duplicate)
        mismatch = decision is not _MISMATCH and record.fingerprint != ours
        return Verdict(decision, record, found.remaining_ms, mismatch)

    def enter(self, request: AdmissionRequest) -> bool:
        """Take a slot for ``request``, if one is left; in either case `claim` comes next, at once."""
        request.has_slot = has_slot = self.in_flight.slots.enter(request.first_key)
        return has_slot

    def claim(
        self, request: AdmissionRequest, loop: asyncio.AbstractEventLoop, then: Callable[[Claim | Exception], None]
    ) -> None:
        """Claim the record, after `enter`. ``then`` is called once, perhaps before this returns, with what `admitted` makes sense
        of: to be ignored after a `give_up`. Without a slot, the record is only read: some answers need no attempt.
        """
        in_flight = self.in_flight
        if not request.has_slot:
            request.task = start(loop, self._after_owed(request, self._read), then)
            return
        self._prepare(request)
        if request.other is not None:
            request.task = start(loop, self._after_owed(request, self._claim_at_either), then)
            return
        if in_flight.owed.by_key and in_flight.owes(request.key):
            request.task = start(loop, self._after_owed(request, self._claim), then)
            return
        adopt = request.attempt.adopt if request.attempt is not None else None
        answered = partial(self._or_again, request, loop, then) if request.submission else then
        request.task = in_flight.callbacks.start_claim(
            request.key, request.claim, loop=loop, adopt=adopt, then=answered
        )

    def _prepare(self, request: AdmissionRequest) -> None:
        """Make the claim of a request that has a slot."""
        policy = request.policy
        request.sent = monotonic()
        route = policy.route if request.method else ""
        request.claim = ClaimRequest(
            os.urandom(TOKEN_BYTES),
            request.fingerprint,
            policy.lease_ms,
            policy.retention_ms,
            policy.takeover,
            Trace(gateway_id(policy.process), int(time() * 1000), None, "", request.method, route),
            request.submission,
        )
        if policy.fails_open:  # a claim that is won late must find it
            request.attempt = self._attempt(request)

    def _or_again(
        self,
        request: AdmissionRequest,
        loop: asyncio.AbstractEventLoop,
        then: Callable[[Claim | Exception], None],
        answer: Claim | Exception,
    ) -> None:
        """The answer to a submission's claim, which may have to be sent once more, unless its caller has left."""
        again = submit_again(request.claim, answer) if isinstance(answer, Claim) and request.has_slot else None
        if again is None:
            then(answer)
        else:
            adopt = request.attempt.adopt if request.attempt is not None else None
            callbacks = self.in_flight.callbacks
            request.task = callbacks.start_claim(request.key, again, loop=loop, adopt=adopt, then=then)

    def admitted(self, request: AdmissionRequest, answer: object) -> Attempt | Verdict:
        """What the answer to `claim` means for the request. Raises what `admit` raises."""
        if request.has_slot:
            attempt = self._won(request, answer)
            if attempt is not None:
                return attempt
        if isinstance(answer, Claim):
            return self._judge(request, answer)
        if isinstance(answer, Exception):
            raise answer
        raise TypeError(f"the cache has answered a {type(answer).__name__}, not a Claim")

    def _won(self, request: AdmissionRequest, answer: object) -> Attempt | None:
        """The attempt that is to run, which keeps its slot, if there is to be one."""
        in_flight, key = self.in_flight, request.first_key
        if in_flight.is_watched:
            in_flight.answered("claim", answer, request.sent)
        if isinstance(answer, Claim):
            if answer.won:
                attempt = request.attempt or self._attempt(request)
                attempt.number = answer.record.attempt
                in_flight.slots.claim_won(key, is_new=attempt.number == 1)
                if in_flight.owed.by_key:
                    in_flight.owed.wake()
                return attempt
        # A full cache is up, and can refuse.
        elif request.attempt is not None and isinstance(answer, CacheUnavailable) and not isinstance(answer, CacheFull):
            in_flight.slots.claim_won(key, is_new=True)
            return request.attempt
        request.attempt = None
        in_flight.slots.claim_lost(key)
        return None

    def give_up(self, request: AdmissionRequest, end: BaseException) -> None:
        """Instead of `admitted`: ``end`` ended the caller, so a claim that is won is given back."""
        is_cancelled = isinstance(end, asyncio.CancelledError)  # else the loop is closed
        if is_cancelled and request.task is not None:
            request.task.cancel()
        if request.has_slot:
            request.has_slot = False
            self.in_flight.slots.claim_lost(request.first_key, is_new=True)
            if is_cancelled:
                self.in_flight.withdraw(request.attempt or self._attempt(request))

    def _attempt(self, request: AdmissionRequest) -> Attempt:
        attempt = Attempt(self.in_flight, request.key, request.claim, request.policy, request.sent)
        attempt.first_key = request.first_key
        return attempt

    async def _after_owed(
        self, request: AdmissionRequest, call: Callable[[AdmissionRequest], Coroutine[Any, Any, Claim]]
    ) -> Claim:
        """``call``, once what this process owes of the record has gone out: by the cache alone it might be executed again."""
        owed = self.in_flight.owed
        if owed.by_key:
            keys = (request.key,) if request.other is None else (request.key, request.other.key)
            outcome = await owed.go_out(*keys)
            if outcome is not None:
                if not request.policy.fails_open:
                    raise CacheUnavailable("the outcome of this key's last attempt is not recorded yet")
                # Without a record it would be executed again, though its outcome is known here.
                return Claim(won=False, record=outcome, remaining_ms=request.policy.ttl_ms[outcome.state])
        return await call(request)

    async def _claim(self, request: AdmissionRequest) -> Claim:
        claim = request.claim
        adopt = request.attempt.adopt if request.attempt is not None else None
        found = await self.in_flight.cache.claim(request.key, claim, adopt=adopt)
        again = submit_again(claim, found)
        return found if again is None else await self.in_flight.cache.claim(request.key, again, adopt=adopt)

    async def _claim_at_either(self, request: AdmissionRequest) -> Claim:
        """A claim while two secrets are in use: where the record is, and by the first secret where there is none.

        The two addresses can't be claimed in one step. So who has won at one looks at the other afterwards: of two claims that
        are made at once, by gateways that differ in which secret comes first, the later one sees the earlier one, and is
        given back. Both may be; neither is executed then.
        """
        for _ in range(MOST_TURNS):
            if request.is_at_other:  # the first secret's comes first each time
                request.go_by_other()
            if await self._beside(request) is not None:
                request.go_by_other()
            request.claim = replace(request.claim, token=os.urandom(TOKEN_BYTES), fingerprint=request.fingerprint)
            if request.attempt is not None:
                request.attempt = self._attempt(request)
            found = await self._claim(request)
            if not found.won:
                return found
            try:
                beside = await self._beside(request)
                if beside is None:
                    return found
                await self.in_flight.cache.release(request.key, token=request.claim.token)
            except Exception:
                self.in_flight.withdraw(self._attempt(request))
                raise
            request.go_by_other()
            if not _may_take_over(request, beside):
                return beside
        raise overtaken("request")

    async def _beside(self, request: AdmissionRequest) -> Claim | None:
        return None if request.other is None else await self.in_flight.cache.get(request.other.key)

    async def _read(self, request: AdmissionRequest) -> Claim:
        """The record, if it is in the way; else the claim, once a slot is free. Raises `Overloaded` or `TooManyKeys`."""
        in_flight = self.in_flight
        found = await in_flight.timed("get", in_flight.cache.get(request.key))
        if found is None and request.other is not None:
            request.go_by_other()
            found = await in_flight.timed("get", in_flight.cache.get(request.key))
        if found is not None and not _may_take_over(request, found):
            return found
        await in_flight.slots.wait(request.first_key, timeout_of(in_flight.cache), is_new=found is None)
        request.has_slot = True
        self._prepare(request)
        return await (self._claim(request) if request.other is None else self._claim_at_either(request))

    async def _outcome_of(self, awaited: Record, key: str, until: float) -> Claim | None:
        """The record once the awaited attempt is no longer in flight; ``None`` when it is gone, or when time is up."""
        polls = 0
        while (left := until - monotonic()) > 0:
            attempt = self.in_flight.by_token(awaited.token)
            if attempt is not None and not (attempt.visible and attempt.outcome is None):
                return await _outcome(attempt, left)
            polls += 1
            await asyncio.sleep(min(left, _POLLS.pause(polls)))
            found = await self.in_flight.timed("get", self.in_flight.cache.get(key))
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


def _may_take_over(request: AdmissionRequest, found: Claim) -> bool:
    return takes_over(found.record, request.policy.takeover, request.fingerprint, submission=request.submission)
