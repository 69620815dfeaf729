"""Admission: claim, gate, and waiting for a concurrent request. Knows nothing of HTTP; every entry point uses it.

It returns an `Attempt` to be run (without a record, its ``number`` 0, where the cache is down and the policy is to fail
open), or a `Verdict` on the record of another attempt.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from os import urandom
from time import monotonic, time
from typing import Final

from oncegate.cache.backoff import Backoff
from oncegate.cache.errors import CacheError, CacheFull, CacheUnavailable
from oncegate.cache.record import TOKEN_BYTES, Claim, ClaimRequest, Record, State, Trace
from oncegate.cache.store import Cache
from oncegate.cache.transitions import submit_again
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.gate import Decision, decide
from oncegate.middleware.admission.identity import gateway_id
from oncegate.middleware.admission.in_flight import InFlight
from oncegate.middleware.admission.observe import Watch
from oncegate.middleware.rules.errors import Overloaded
from oncegate.middleware.rules.policy import Policy

_POLLS: Final = Backoff(0.025, 1.25, least=0.6, factor=1.5)


class Ask:
    """A request for admission: ``wait`` is how many seconds to wait for a concurrent request's outcome, 0 for not at all.

    ``waited`` is set once a wait has taken place, whatever came of it. ``submission``: the command is to be accepted now and
    processed later. ``whole`` is the fingerprint as other policies than ``on_mismatch = "warn"`` make it. What comes after it
    is kept here between `Enforcer.claim_soon` and `Enforcer.admitted`.
    """

    # No dataclass: compiled, what those generate takes ten times as long.
    __slots__ = (
        "attempt",
        "fingerprint",
        "key",
        "method",
        "policy",
        "raise_on_duplicate",
        "sent",
        "submission",
        "token",
        "wait",
        "waited",
        "whole",
    )

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
        self.method = method
        self.fingerprint = fingerprint
        self.policy = policy
        self.wait = wait
        self.raise_on_duplicate = raise_on_duplicate
        self.submission = submission
        self.whole = whole
        self.waited = False
        self.token = b""
        self.sent = 0.0
        self.attempt: Attempt | None = None


@dataclass(slots=True, init=False)  # as a `Record`: every replay makes one
class Verdict:
    """The decision on a request that is not to run, with the record. ``remaining_ms`` is what the record has left to live.

    ``mismatch``: the payload differs from the record's, and the policy is to warn only.
    """

    decision: Decision
    record: Record
    remaining_ms: int
    mismatch: bool

    def __init__(self, decision: Decision, record: Record, remaining_ms: int, mismatch: bool = False) -> None:
        self.decision = decision
        self.record = record
        self.remaining_ms = remaining_ms
        self.mismatch = mismatch


class Enforcer:
    """Lets each command run at most once at a time, over however many processes share the cache."""

    def __init__(self, cache: Cache, *, max_in_flight: int, watch: Watch | None = None) -> None:
        self.in_flight = InFlight(cache, max_in_flight, watch)
        self._cache = cache

    async def admit(self, ask: Ask, found: Verdict | None = None) -> Attempt | Verdict:
        """Decide about one request; ``found`` is the record in its way, where that is known already.

        Raises `Overloaded`, `CacheUnavailable` (not under ``fail_open``), `RecordUnreadable`.
        """
        until = monotonic() + ask.wait
        while True:
            if found is None:
                outcome = await self._ask(ask)
                if isinstance(outcome, Attempt):
                    return outcome
                found = outcome
            if found.decision is not Decision.IN_FLIGHT or ask.wait <= 0:
                return found
            ask.waited = True
            ended = await self._wait(ask.key, found.record, until)
            if ended is None and monotonic() >= until:
                return found
            if ended is not None and ended.record.token == found.record.token and _told(ended.record):
                return self._judge(ask, ended)
            found = None

    async def _ask(self, ask: Ask) -> Attempt | Verdict:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[Claim | CacheError] = loop.create_future()
        if not self.claim_soon(ask, loop, partial(_tell, told)):
            outcome = await self._claim(ask)
            return outcome if isinstance(outcome, Attempt) else self._judge(ask, outcome)
        try:
            answer = await told
        except BaseException as error:  # a closed loop ends it without a cancellation
            self.give_up(ask, error)
            raise
        return self.admitted(ask, answer)

    def _judge(self, ask: Ask, found: Claim) -> Verdict:
        record, warns = found.record, ask.policy.warns
        # A record may be from before the policy was to warn, or of a version that had one form for both.
        ours = ask.whole if warns and record.fingerprint == ask.whole else ask.fingerprint
        decision = decide(record, ours, warn_on_mismatch=warns, raise_on_duplicate=ask.raise_on_duplicate)
        mismatch = decision is not Decision.MISMATCH and record.fingerprint != ours
        return Verdict(decision, record, found.remaining_ms, mismatch)

    async def _claim(self, ask: Ask) -> Attempt | Claim:
        in_flight = self.in_flight
        if in_flight.slots >= in_flight.max_in_flight:
            return await self._read_only(ask)
        policy = ask.policy
        attempt = Attempt(in_flight, ask.key, ask.fingerprint, policy, submission=ask.submission, method=ask.method)
        in_flight.slots += 1
        answer: Claim | CacheError
        try:
            request = _request(ask, attempt.token, attempt.begun_at_ms)
            adopt = attempt.adopt if policy.fails_open else None
            answer = await self._cache.claim(ask.key, request, adopt=adopt)
            again = submit_again(request, answer)
            if again is not None:
                answer = await self._cache.claim(ask.key, again, adopt=adopt)
        except CacheError as error:
            answer = error
        except BaseException as end:  # whatever ended the claim, its slot is free again
            in_flight.slots -= 1
            if isinstance(end, asyncio.CancelledError):
                # The answer may be on its way, or even here, but the caller is gone: the claim must not stay won.
                in_flight.withdraw(attempt)
            raise
        return self._claimed(attempt, answer)

    def _claimed(self, attempt: Attempt, answer: Claim | CacheError) -> Attempt | Claim:
        """The result of a claim that has a slot. Raises ``answer`` if it is an error, unless the policy is to run anyway."""
        in_flight = self.in_flight
        in_flight.answered("claim", answer, attempt.held_since)
        if isinstance(answer, CacheError):
            # A full cache is up, and can refuse.
            if attempt.policy.fails_open and isinstance(answer, CacheUnavailable) and not isinstance(answer, CacheFull):
                return attempt
            in_flight.slots -= 1
            raise answer
        if not answer.won:
            in_flight.slots -= 1
            return answer
        attempt.won(answer)
        return attempt

    def claim_soon(self, ask: Ask, loop: asyncio.AbstractEventLoop, then: Callable[[Claim | CacheError], None]) -> bool:
        """The first half of `admit` without any waiting: ``then`` is called once, perhaps before this returns, and gets
        its meaning from `admitted`. ``False``: that can't be done now, and ``then`` is never called.
        """
        in_flight, policy = self.in_flight, ask.policy
        cache = in_flight.prompt
        if cache is None or in_flight.slots >= in_flight.max_in_flight or ask.submission:
            return False
        ask.token, ask.sent = urandom(TOKEN_BYTES), monotonic()
        if policy.fails_open:  # a claim that is won late must find it
            ask.attempt = Attempt(in_flight, ask.key, ask.fingerprint, policy, token=ask.token, method=ask.method)
        in_flight.slots += 1
        adopt = ask.attempt.adopt if ask.attempt is not None else None
        request = _request(ask, ask.token, int(time() * 1000))
        if cache.claim_soon(ask.key, request, loop=loop, adopt=adopt, then=then):
            return True
        in_flight.slots -= 1
        ask.attempt = None
        return False

    def admitted(self, ask: Ask, answer: Claim | CacheError) -> Attempt | Verdict:
        """The other half: what ``answer`` means for the request. Raises what `admit` raises."""
        if isinstance(answer, Claim) and not answer.won:
            self.in_flight.answered("claim", answer, ask.sent)
            self.in_flight.slots -= 1
            return self._judge(ask, answer)
        outcome = self._claimed(self._attempt(ask), answer)
        return outcome if isinstance(outcome, Attempt) else self._judge(ask, outcome)

    def give_up(self, ask: Ask, end: BaseException) -> None:
        """Instead of `admitted`: ``end`` ended the caller, so a claim that is won is given back."""
        self.in_flight.slots -= 1
        if isinstance(end, asyncio.CancelledError):  # else the loop is closed
            self.in_flight.withdraw(self._attempt(ask))

    def _attempt(self, ask: Ask) -> Attempt:
        return ask.attempt or Attempt(
            self.in_flight,
            ask.key,
            ask.fingerprint,
            ask.policy,
            token=ask.token,
            held_since=ask.sent,
            method=ask.method,
        )

    async def _read_only(self, ask: Ask) -> Claim:
        """With every slot taken: answers what needs no attempt."""
        found = await self.in_flight.timed("get", self._cache.get(ask.key))
        if found is None or (found.record.state in ask.policy.takeover and found.record.fingerprint == ask.fingerprint):
            raise Overloaded("Too many requests are being executed: try again later.")
        return found

    async def _wait(self, key: str, awaited: Record, until: float) -> Claim | None:
        """The record once the awaited attempt is no longer in flight; ``None`` when it is gone, or when time is up."""
        polls = 0
        while (left := until - monotonic()) > 0:
            attempt = self.in_flight.by_token(awaited.token)
            if attempt is not None and not (attempt.told and attempt.outcome is None):
                return await _outcome(attempt, left)
            polls += 1
            await asyncio.sleep(min(left, _POLLS.pause(polls)))
            found = await self.in_flight.timed("get", self._cache.get(key))
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


def _tell(told: "asyncio.Future[Claim | CacheError]", answer: Claim | CacheError) -> None:
    if not told.done():
        told.set_result(answer)


def _request(ask: Ask, token: bytes, begun_at_ms: int) -> ClaimRequest:
    policy = ask.policy
    route = policy.route if ask.method else ""
    return ClaimRequest(
        token,
        ask.fingerprint,
        policy.lease_ms,
        policy.retention_ms,
        policy.takeover,
        Trace(gateway_id(), begun_at_ms, None, "", ask.method, route),
        ask.submission,
    )


def _told(record: Record) -> bool:
    """Whether a waiter gets this outcome of the attempt that it waited for; of an unknown one the policy decides, by a claim."""
    return record.state in (State.SUCCEEDED, State.FAILED)
