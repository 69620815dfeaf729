"""Admission: claim, gate, and waiting for a concurrent request. Knows nothing of HTTP; every door goes through it.

A request leaves here with an `Attempt` that it has to run (without a record, its ``number`` 0, where the cache is down and
the policy is to fail open), or with a `Verdict` on a record that somebody else made.
"""

import asyncio
import random
from collections.abc import Awaitable
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

from oncegate.cache.base import Cache, Claim
from oncegate.cache.errors import CacheError, CacheFull, CacheUnavailable
from oncegate.cache.record import Record, State, Trace
from oncegate.middleware.attempt import Attempt
from oncegate.middleware.errors import Overloaded
from oncegate.middleware.gate import Decision, decide
from oncegate.middleware.identity import gateway_id
from oncegate.middleware.inflight import InFlight
from oncegate.middleware.observe import Watch
from oncegate.middleware.policy import Policy

_FIRST_POLL = 0.02
_LONGEST_POLL = 1.0


@dataclass(slots=True)
class Ask:
    """What a door asks for: ``wait`` is how many seconds to wait for a concurrent request's outcome, 0 for not at all.

    ``waited`` is set once a wait has taken place, whatever came of it. ``submission``: the command is to be accepted now and
    processed later.
    """

    key: str
    fingerprint: bytes
    policy: Policy
    wait: float = 0.0
    raise_on_duplicate: bool = False
    waited: bool = False
    submission: bool = False


class Verdict(NamedTuple):
    """What became of a request that is not to run. ``remaining_ms`` is what the record has left to live."""

    decision: Decision
    record: Record
    remaining_ms: int
    mismatch: bool = False
    """The payload differs from the record's, and the policy is to warn only."""


class Enforcer:
    """Lets each command run at most once at a time, over however many processes share the cache."""

    def __init__(self, cache: Cache, *, max_in_flight: int, watch: Watch | None = None) -> None:
        self.in_flight = InFlight(cache, max_in_flight, watch)
        self._cache = cache

    async def admit(self, ask: Ask) -> Attempt | Verdict:
        """Decide about one request. Raises `Overloaded`, `CacheUnavailable` (not under ``fail_open``), `RecordUnreadable`."""
        until = monotonic() + ask.wait
        while True:
            outcome = await self._claim(ask)
            if isinstance(outcome, Attempt):
                return outcome
            verdict = self._judge(ask, outcome)
            if verdict.decision is not Decision.IN_FLIGHT or ask.wait <= 0:
                return verdict
            ask.waited = True
            ended = await self._wait(ask.key, outcome.record, until)
            if ended is None and monotonic() >= until:
                return self._judge(ask, outcome)
            if ended is not None and ended.record.token == outcome.record.token and _told(ended.record):
                return self._judge(ask, ended)

    def _judge(self, ask: Ask, found: Claim) -> Verdict:
        warn = ask.policy.settings.on_mismatch == "warn"
        decision = decide(
            found.record, ask.fingerprint, warn_on_mismatch=warn, raise_on_duplicate=ask.raise_on_duplicate
        )
        mismatch = decision is not Decision.MISMATCH and found.record.fingerprint != ask.fingerprint
        return Verdict(decision, found.record, found.remaining_ms, mismatch)

    async def _claim(self, ask: Ask) -> Attempt | Claim:
        in_flight = self.in_flight
        if in_flight.slots >= in_flight.max_in_flight:
            return await self._read_only(ask)
        policy = ask.policy
        fail_open = policy.settings.on_cache_down == "fail_open"
        attempt = Attempt(in_flight, ask.key, ask.fingerprint, policy, submission=ask.submission)
        in_flight.slots += 1
        keep_slot = False
        try:
            claim = await self._send_claim(attempt, policy.takeover, fail_open)
            if ask.submission and _may_submit_again(claim):
                claim = await self._send_claim(attempt, policy.takeover | {State.UNKNOWN}, fail_open)
            keep_slot = claim.won
            in_flight.tell(in_flight.watch.cache_answered, "claim", monotonic() - attempt.held_since)
        except CacheError as error:
            in_flight.tell(in_flight.watch.cache_failed, "claim", monotonic() - attempt.held_since)
            if not (fail_open and isinstance(error, CacheUnavailable)) or isinstance(error, CacheFull):
                raise  # a full cache is there, and can say no
            keep_slot = True
            return attempt
        except asyncio.CancelledError:
            # The answer may be on its way, or even here: nobody is left to run what it may have won.
            in_flight.withdraw(attempt)
            raise
        finally:
            if not keep_slot:
                in_flight.slots -= 1
        if not claim.won:
            return claim
        attempt.won(claim)
        return attempt

    def _send_claim(self, attempt: Attempt, takeover: frozenset[State], fail_open: bool) -> Awaitable[Claim]:
        return self._cache.claim(
            attempt.key,
            token=attempt.token,
            fingerprint=attempt.fingerprint,
            lease_ms=attempt.policy.lease_ms,
            retention_ms=attempt.policy.retention_ms,
            takeover=takeover,
            adopt=attempt.adopt if fail_open else None,
            trace=Trace(gateway_id(), attempt.begun_at_ms),
            submission=attempt.submission,
        )

    async def _read_only(self, ask: Ask) -> Claim:
        """With every slot taken: what can be answered without an attempt still is."""
        found = await self.in_flight.timed("get", self._cache.get(ask.key))
        if found is None or (found.record.state in ask.policy.takeover and found.record.fingerprint == ask.fingerprint):
            raise Overloaded("Too many requests are being executed: try again later.")
        return found

    async def _wait(self, key: str, awaited: Record, until: float) -> Claim | None:
        """The record once the awaited attempt is no longer in flight; ``None`` when it is gone, or when time is up."""
        pause = _FIRST_POLL
        while (left := until - monotonic()) > 0:
            attempt = self.in_flight.by_token(awaited.token)
            if attempt is not None and not (attempt.told and attempt.outcome is None):
                return await _outcome(attempt, left)
            await asyncio.sleep(min(left, pause * random.uniform(0.75, 1.25)))
            pause = min(_LONGEST_POLL, pause * 1.5)
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


def _may_submit_again(lost: Claim) -> bool:
    """Whether what is there is a submission that nobody knows the end of, as after a crash.

    To submit it once more is harmless, whatever the policy says of unknown outcomes: the consumer processes one of the two.
    """
    return not lost.won and lost.record.state is State.UNKNOWN and lost.record.submission


def _told(record: Record) -> bool:
    """Whether a waiter is given this end of the attempt that it waited for; an unknown one is up to the policy, by a claim."""
    return record.state in (State.SUCCEEDED, State.FAILED)
