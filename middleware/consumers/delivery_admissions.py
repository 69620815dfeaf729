"""Decides about the deliveries of a subscription, by its records; and begins the execution of those that are to run.

Strategy. Each consumer has an execution record of its own beside the command's record, under the same law: claimed with a
lease, renewed while the handler runs, settled once with the owner token. Before the claim two things are read that
are not written here: the gateway's record of a command that came through it, and the execution records of the consumer's former
names. A delivery that they decide needs no claim. What begins after that read is not seen, a synchronous request under the
same key for instance; nor would the other order see it, since neither of the two reads this consumer's record.

A first attempt takes nothing over, so that what an earlier one left can be judged, with its error, before it is replaced.
"""

import asyncio
import os
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from oncegate.cache.errors import CacheFull, CacheUnavailable, RecordUnreadable
from oncegate.cache.record import FINGERPRINT_BYTES, TOKEN_BYTES, ClaimRequest, Record
from oncegate.middleware.admission.admission import Admissions, Verdict
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.lease import LeaseLost, Unconfirmed
from oncegate.middleware.admission.request import Address, AdmissionRequest, Rotation
from oncegate.middleware.admission.tracing import DeliveryTrace
from oncegate.middleware.consumers.addresses import Addresses, Rejected, attempts_before
from oncegate.middleware.consumers.begun import Begun, Execution, decided
from oncegate.middleware.consumers.delivery import Delivery, DeliveryDecision, origin_of
from oncegate.middleware.consumers.gate import (
    NO_WARNING,
    REASONS,
    WITH_RESPONSE,
    Allowance,
    allowance,
    by_execution,
    by_submission,
    differs,
    last_error,
)
from oncegate.middleware.consumers.late_outcomes import LateOutcomes
from oncegate.middleware.consumers.transactional import DeliveryContext
from oncegate.middleware.rules.errors import Overloaded
from oncegate.middleware.rules.keys.key import execution_key, record_id
from oncegate.middleware.rules.policy import Policy

if TYPE_CHECKING:
    from oncegate.middleware.consumers.subscription import Subscription


class DeliveryAdmissions:
    """Admits the deliveries of the subscription ``hook``, whose late outcomes ``late`` records."""

    def __init__(self, hook: "Subscription", admissions: Admissions, policy: Policy, late: LateOutcomes) -> None:
        self._consumer = hook.consumer
        self._aliases = hook.aliases
        self._settings = hook.settings
        self._cache = hook.cache
        self._dead_lettered = hook.dead_lettered
        names = (hook.consumer, *hook.aliases)
        self._addresses = Addresses(hook.cache, hook.namespace, names, hook.settings, hook.digests)
        self._admissions = admissions
        self._policy = policy
        self._first = replace(policy, takeover=frozenset())
        self._warns = hook.settings.on_mismatch == "warn"
        self._late = late

    async def decide(self, delivery: Delivery, trace: DeliveryTrace | None) -> Begun:
        """See `oncegate.middleware.consumers.subscription.Subscription.begin`."""
        try:
            address = self._addresses.first(delivery)
            if address is None:
                return self._unprotected(delivery, trace)
            other, before = self._addresses.other(delivery), attempts_before(delivery)
        except Rejected as error:
            return decided(DeliveryDecision.REJECTED, reason=str(error))
        except Overloaded as error:
            return decided(DeliveryDecision.UNAVAILABLE, reason=str(error))
        record, of_gateway = record_id(address.key), delivery.fingerprint is not None
        try:
            if other is not None and await self._addresses.is_at(other, address, of_gateway):
                address, other = other, address
            if any(self._owes(each) for each in (address, other)):
                # After a long outage the lease may have lapsed before the outcome, which is known here, could be written.
                return decided(
                    DeliveryDecision.IN_FLIGHT, record, reason="Its outcome waits here for the record cache."
                )
            allowed = await self._read_records(address, other, of_gateway, before)
            return (
                allowed if isinstance(allowed, Begun) else await self._admit(address, other, allowed, delivery, trace)
            )
        except RecordUnreadable as error:
            return decided(DeliveryDecision.UNREADABLE, record, reason=f"{error}.")
        except (CacheFull, Overloaded) as error:
            return decided(DeliveryDecision.UNAVAILABLE, record, reason=str(error))
        except CacheUnavailable as error:
            decision = DeliveryDecision.UNAVAILABLE
            if self._settings.on_cache_down == "dead_letter":
                decision = DeliveryDecision.UNCHECKED
            return decided(decision, record, reason=f"The record cache can't be reached: {error}.")

    def _owes(self, address: Address | None) -> bool:
        return address is not None and self._admissions.in_flight.owes(execution_key(address.key, self._consumer))

    def _own(self, address: Address) -> Address:
        """The look-up key of this consumer's execution record for the command at ``address``."""
        return Address(execution_key(address.key, self._consumer), address.fingerprint)

    async def _admit(
        self,
        address: Address,
        other: Address | None,
        allowed: Allowance,
        delivery: Delivery,
        trace: DeliveryTrace | None,
    ) -> Begun:
        own = self._own(address)
        request = AdmissionRequest(own, self._first, trace=trace)
        if other is not None and other.key != address.key:
            request.rotation = Rotation(own, self._own(other))
        outcome = await self._admissions.admit(request)  # takes nothing over: what is there is judged first
        found = outcome.record if isinstance(outcome, Verdict) else None
        has_moved = request.address.key != own.key
        if other is not None and (has_moved or (found and found.fingerprint == other.fingerprint)):
            address, other = other, address  # there the record is; or the payload's digest alone is by the other secret
        if found is not None:
            if trace is not None and found.trace.span:
                trace.found(found.trace.span)
            if has_moved:  # it has just been recorded there
                return self._decided(DeliveryDecision.IN_FLIGHT, address, found)
            if decision := by_execution(found, address.fingerprint, warns=self._warns):
                return self._decided(decision, address, found)
            if allowed.ended(found):
                return self._decided(DeliveryDecision.EXHAUSTED, address, found, allowed.total(found.attempt))
            # Another payload, where that is only warned of, goes on with the record that there is.
            outcome = await self._admissions.admit(
                AdmissionRequest(Address(own.key, found.fingerprint), self._policy, trace=trace)
            )
        if isinstance(outcome, Verdict):  # another worker was quicker
            decision = by_execution(outcome.record, address.fingerprint, warns=self._warns)
            return self._decided(decision or DeliveryDecision.IN_FLIGHT, address, outcome.record)
        origin = origin_of(delivery)
        outcome.lease.origin = origin.line
        begun = decided(
            DeliveryDecision.RUN,
            record_id(address.key),
            attempt=allowed.total(outcome.number) if outcome.number else 0,  # 0: without a record, nothing is counted
            mismatch=differs(found, address.fingerprint),
            origin=origin,
        )
        by_other = None if other is None else (record_id(other.key), other.fingerprint)
        execution = self._execution(begun, delivery, outcome, by_other, allowed=allowed, found=found, trace=trace)
        await self._start(execution, outcome, allowed, found)
        return execution.begun

    async def _read_records(
        self, address: Address, other: Address | None, of_gateway: bool, before: int
    ) -> Begun | Allowance:
        """Read the gateway's record and those of former names: what they decide, or what is allowed after them."""
        key = address.key
        try:
            if self._aliases:
                submission, *former = await asyncio.gather(
                    self._addresses.gateways(key, of_gateway),
                    *[self._cache.get(execution_key(key, alias)) for alias in self._aliases],
                )
            else:  # as a rule: without a task
                submission, former = await self._addresses.gateways(key, of_gateway), []
        except CacheUnavailable:
            if self._settings.on_cache_down != "fail_open":
                raise
            submission, former = None, []
        decision = by_submission(submission.record if submission else None, address.fingerprint)
        if decision is DeliveryDecision.DUPLICATE:
            submission = await self._cache.get(key)  # with its body
        if decision is not None:
            return self._decided(decision, address, submission.record if submission else None)
        records = [claim.record for claim in former if claim is not None]
        for record in records:
            at = address if other is None or differs(record, other.fingerprint) else other
            if decision := by_execution(record, at.fingerprint, warns=self._warns):
                return self._decided(decision, at, record)
        return allowance(self._settings.max_attempts, before, records)

    def _decided(self, decision: DeliveryDecision, at: Address, record: Record | None, attempt: int = 0) -> Begun:
        response = record.response if record is not None and decision in WITH_RESPONSE else None
        attempt = attempt or (record.attempt if record is not None else 0)
        mismatch = differs(record, at.fingerprint) and decision not in NO_WARNING
        return decided(
            decision,
            record_id(at.key),
            attempt=attempt,
            reason=REASONS[decision],
            response=response,
            mismatch=mismatch,
        )

    def _execution(
        self,
        begun: Begun,
        delivery: Delivery,
        attempt: Attempt,
        other: tuple[str, bytes] | None = None,
        *,
        allowed: Allowance | None = None,
        found: Record | None = None,
        trace: DeliveryTrace | None = None,
    ) -> Execution:
        """The execution of ``delivery`` by ``attempt``, one of those ``allowed`` after the one that was ``found``."""
        number = attempt.number
        self._admissions.in_flight.hold(attempt)
        context = DeliveryContext(
            delivery,
            begun.record,
            attempt.claim.fingerprint if begun.record else None,
            other,
            begun.attempt,
            is_last=allowed is not None and number > 0 and allowed.is_last(number),
            timeout=self._settings.attempt_timeout,
            named=begun.named,
            loop=attempt.lease.loop,
            late_outcomes=self._late,
            trace=trace,
        )
        crashed = found is not None and found.lapsed
        return Execution(begun, context, attempt, self._settings, self._dead_lettered, after_a_crash=crashed)

    async def _start(self, execution: Execution, attempt: Attempt, allowed: Allowance, found: Record | None) -> None:
        """Begin, or give ``attempt`` back where it can't be made any more."""
        number = attempt.number
        if number and not allowed.allows(number):
            if number > 1:
                attempt.number -= 1  # it is never made
            made = allowed.total(attempt.number)
            await execution.exhaust(last_error(found), REASONS[DeliveryDecision.EXHAUSTED], made)
            return
        try:
            await attempt.lease.confirm()
        except LeaseLost:
            await execution.withdraw(DeliveryDecision.IN_FLIGHT, REASONS[DeliveryDecision.IN_FLIGHT])
        except Unconfirmed as error:
            await execution.withdraw(DeliveryDecision.UNAVAILABLE, f"The record cache can't be reached: {error}.")
        except asyncio.CancelledError:
            await execution.withdraw(DeliveryDecision.UNAVAILABLE, "The consumer was cancelled.")
            raise

    def _unprotected(self, delivery: Delivery, trace: DeliveryTrace | None) -> Begun:
        in_flight = self._admissions.in_flight
        slot = in_flight.slots.enter("")
        if slot is None:
            raise Overloaded("Too many deliveries are being executed: try again later.")
        slot.won()
        policy = self._policy
        token, print_ = os.urandom(TOKEN_BYTES), bytes(FINGERPRINT_BYTES)
        claim = ClaimRequest(token, print_, policy.lease_ms, policy.retention_ms)
        attempt = Attempt(in_flight, "", claim, policy, monotonic(), slot, trace)
        origin = origin_of(delivery)
        attempt.lease.origin = origin.line
        return self._execution(decided(DeliveryDecision.RUN, origin=origin), delivery, attempt, trace=trace).begun
