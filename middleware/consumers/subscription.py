"""`Subscription`: skips a redelivered command that was processed before, with any broker.

Strategy. Each consumer has an execution record of its own beside the command's record, under the same law: claimed with a
lease, renewed while the handler runs, settled once with the owner token. Before the claim two things are read that
are not written here: the gateway's record of a command that came through it, and the execution records of the consumer's former
names. A delivery that they decide needs no claim. What begins after that read is not seen, a synchronous request under the
same key for instance; nor would the other order see it, since neither of the two reads this consumer's record.

A first attempt takes nothing over, so that what an earlier one left can be judged, with its error, before it is replaced.
"""

import asyncio
import functools
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Concatenate, ParamSpec, TypeVar

from oncegate.cache.errors import CacheFull, CacheUnavailable, RecordUnreadable
from oncegate.cache.open import given_cache
from oncegate.cache.record import FINGERPRINT_BYTES, TOKEN_BYTES, ClaimRequest, Record
from oncegate.cache.store import Cache
from oncegate.middleware.admission.admission import Admissions, Verdict
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.lease import LeaseLost, Unconfirmed
from oncegate.middleware.admission.observe import Watch
from oncegate.middleware.admission.request import Address, AdmissionRequest, Rotation
from oncegate.middleware.admission.shared import notify
from oncegate.middleware.admission.tracing import DeliveryTrace, Traces
from oncegate.middleware.consumers.addresses import Addresses, Rejected, attempts_before
from oncegate.middleware.consumers.begun import Begun, Execution, decided
from oncegate.middleware.consumers.delivery import (
    CONSUMER,
    Action,
    Delivery,
    DeliveryDecision,
    SubscriptionSettings,
    check_names,
    origin_of,
)
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
from oncegate.middleware.consumers.handlers.handling import begin_all, executing, run_batch, run_handler
from oncegate.middleware.consumers.handlers.once import Once
from oncegate.middleware.consumers.handlers.sole_handler import SoleHandler
from oncegate.middleware.consumers.late_outcomes import LateOutcomes
from oncegate.middleware.consumers.transactional import DeliveryContext, give_late_outcomes
from oncegate.middleware.rules.checks.arguments import check_watch, given_namespace, given_settings
from oncegate.middleware.rules.errors import Overloaded
from oncegate.middleware.rules.keys.digests import Secrets, given_digests
from oncegate.middleware.rules.keys.key import execution_key, record_id

log = logging.getLogger("oncegate.subscription")

Received = TypeVar("Received")
P = ParamSpec("P")


class Subscription:
    """A consumer of messages that executes each command at most once at a time, and never again once that is recorded.

    - ``consumer``: the name that owns the records: 1 to 64 letters, digits, ``.``, ``_`` and ``-``. It is the same in all
      processes that share the work, for as long as records live.
    - ``cache``: a `Cache`, or the URL of one (see `open_cache`); the attribute ``cache`` is what was opened.
    - ``namespace``, ``secret``: the gateway's, where commands come through one. ``secret``, 32 bytes or more, keys the digests
      of keys, callers and payloads; a list of two while one replaces the other.
    - ``aliases``: former names of the consumer, whose records count as its own.
    - ``settings``: its rules.
    - ``watch``: notified of attempts and decisions.
    - ``name``: this process, in records and for operators, where the host's name doesn't say which it is.
    - ``tracing``: traces deliveries: an `oncegate.otel.Tracing`.

    Await `drain` before the process ends, and `oncegate.cache.store.Cache.close` after it.
    """

    def __init__(
        self,
        consumer: str,
        *,
        cache: Cache | str,
        namespace: str = "default",
        secret: Secrets = None,
        aliases: Sequence[str] = (),
        settings: SubscriptionSettings | None = None,
        watch: Watch | None = None,
        name: str = "",
        tracing: Traces | None = None,
    ) -> None:
        check_watch(watch)
        check_names(consumer, aliases)
        if name and not CONSUMER.fullmatch(name):
            raise ValueError(f"name has at most 64 letters, digits, '.', '_' and '-', not {name!r}")
        self.consumer = consumer
        self.name = name
        self.aliases = tuple(aliases)
        self.namespace = given_namespace(namespace)
        self.digests = given_digests(secret)
        self.settings = given_settings(settings, SubscriptionSettings)
        self.cache = given_cache(cache)
        names = (consumer, *aliases)
        self._addresses = Addresses(self.cache, self.namespace, names, self.settings, self.digests)
        self._policy = self.settings.policy(consumer, name)
        self._warns = self.settings.on_mismatch == "warn"
        self._first = replace(self._policy, takeover=frozenset())
        self._admissions = Admissions(self.cache, max_in_flight=self.settings.max_in_flight, watch=watch)
        self._traces = None if tracing is None else tracing.deliveries(consumer, self.cache)
        self._sole = SoleHandler(consumer, self.digests)
        self._late = LateOutcomes(self, self._admissions, self._policy)

    # -- by hand ------------------------------------------------------------------------------------------------------

    async def begin(self, delivery: Delivery) -> Begun:
        """Decide about one delivery. Where it says ``RUN``, give the outcome to its `Begun.execution`, in this event loop.

        Raises nothing, whatever the delivery holds: what stands in the way is a decision too, with its ``reason``.
        """
        trace = None
        if self._traces is not None:
            message_id = (
                "" if delivery.key is None else origin_of(delivery).message_id
            )  # which may be its key, without one
            trace = self._traces.of(delivery.traceparent, message_id)
        begun = await self._decide(delivery, trace)
        if not begun.run:
            begun = replace(begun, origin=origin_of(delivery))
        if trace is not None:
            trace.decided(begun.decision.value, begun.attempt, begun.record, run=begun.run)
        self._report(begun)
        return begun

    def refuse(self, decision: DeliveryDecision, reason: str, delivery: Delivery) -> Begun:
        """The ``decision`` about a message that has no usable key, for those who make deliveries for a broker.

        Of ``delivery`` only the message's own ids count.
        """
        begun = decided(decision, reason=reason, origin=origin_of(delivery))
        self._report(begun)
        return begun

    def _report(self, begun: Begun) -> None:
        shared, consumer = self._admissions.in_flight.shared, self.consumer
        watch = shared.watch
        if begun.mismatch:
            log.warning("record %s: another payload under a used key, taken for the same", begun.named)
        if not shared.is_watched:
            return
        notify(lambda: watch.delivery_decided(consumer, begun.decision.value))  # one of before may lack it
        if begun.mismatch:
            notify(lambda: watch.delivery_mismatched(consumer))
        if begun.action is Action.DEAD_LETTER:
            self.dead_lettered(begun.decision.value)

    def dead_lettered(self, reason: str) -> None:
        """Notify the watch of a message that is given up for ``reason``, also before it is a delivery."""
        watch = self._admissions.in_flight.shared.watch
        notify(lambda: watch.dead_lettered(self.consumer, reason))

    async def _decide(self, delivery: Delivery, trace: DeliveryTrace | None) -> Begun:
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
            if self.settings.on_cache_down == "dead_letter":
                decision = DeliveryDecision.UNCHECKED
            return decided(decision, record, reason=f"The record cache can't be reached: {error}.")

    def _owes(self, address: Address | None) -> bool:
        return address is not None and self._admissions.in_flight.owes(execution_key(address.key, self.consumer))

    def _own(self, address: Address) -> Address:
        """The look-up key of this consumer's execution record for the command at ``address``."""
        return Address(execution_key(address.key, self.consumer), address.fingerprint)

    async def _admit(
        self,
        address: Address,
        other: Address | None,
        allowed: Allowance,
        delivery: Delivery,
        trace: DeliveryTrace | None,
    ) -> Begun:
        own = self._own(address)
        request = AdmissionRequest(own.key, own.fingerprint, self._first, trace=trace)
        if other is not None and other.key != address.key:
            request.rotation = Rotation(own, self._own(other))
        outcome = await self._admissions.admit(request)  # takes nothing over: what is there is judged first
        found = outcome.record if isinstance(outcome, Verdict) else None
        has_moved = request.key != own.key
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
                AdmissionRequest(own.key, found.fingerprint, self._policy, trace=trace)
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
            submission, *former = await asyncio.gather(
                self._addresses.gateways(key, of_gateway),
                *[self.cache.get(execution_key(key, alias)) for alias in self.aliases],
            )
        except CacheUnavailable:
            if self.settings.on_cache_down != "fail_open":
                raise
            submission, former = None, []
        decision = by_submission(submission.record if submission else None, address.fingerprint)
        if decision is DeliveryDecision.DUPLICATE:
            submission = await self.cache.get(key)  # with its body
        if decision is not None:
            return self._decided(decision, address, submission.record if submission else None)
        records = [claim.record for claim in former if claim is not None]
        for record in records:
            at = address if other is None or differs(record, other.fingerprint) else other
            if decision := by_execution(record, at.fingerprint, warns=self._warns):
                return self._decided(decision, at, record)
        return allowance(self.settings.max_attempts, before, records)

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
            timeout=self.settings.attempt_timeout,
            named=begun.named,
            loop=attempt.lease.loop,
            late_outcomes=self._late,
            trace=trace,
        )
        crashed = found is not None and found.lapsed
        return Execution(begun, context, attempt, self.settings, self.dead_lettered, after_a_crash=crashed)

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

    @property
    def slots(self) -> int:
        """How many deliveries are being claimed or executed here."""
        return self._admissions.in_flight.slots.taken

    async def drain(self, timeout: float = 30.0) -> int:
        """Wait for deliveries that are being executed, and for outcomes not yet recorded; how many attempts were left."""
        return await self._admissions.in_flight.drain(timeout)

    # -- around a handler ---------------------------------------------------------------------------------------------

    async def execute(self, delivery: Delivery, handler: Callable[..., Any], *args: Any, **kwargs: Any) -> Begun:
        """Call ``handler`` if the delivery is to run, and record what came of it. The result's ``action`` is for the broker.

        ``handler`` is a coroutine function, or a plain one, run in a thread. What it returns is kept as JSON (a
        `StoredResponse` as it is), what it raises is a failure, except `NotProcessed` (nothing was begun: doesn't count),
        `OutcomeUnknown` (counts, and is tried again) and `NotRetryable` (dead-lettered at once). Raises only a cancellation, and
        ``KeyboardInterrupt`` or ``SystemExit`` out of the handler: then the outcome is unknown. Raises what `only` raises of
        another handler than before.
        """
        self._sole.call(handler)
        begun = await self.begin(delivery)
        if begun.run:
            execution = begun.execution
            called = functools.partial(handler, *args, **kwargs)
            with executing(execution.context):
                await run_handler(execution, called, handler, self.settings.attempt_timeout)
            begun = execution.begun
        return begun

    async def execute_many(
        self, deliveries: Sequence[Delivery], handler: Callable[[list[Any]], Any], payloads: Sequence[Any]
    ) -> list[Begun]:
        """Like `execute`, for a batch: ``handler`` is called once, with the payloads of those deliveries that are to run.

        It returns a list with a result for each of them, or ``None``. An exception in that list is the outcome of its delivery
        alone, and one that is raised that of all; so is the time-out. A plain function, in a thread, has none.
        """
        if len(deliveries) != len(payloads):
            raise ValueError(f"{len(deliveries)} deliveries have {len(payloads)} payloads: give each of them its own")
        self._sole.call(handler)
        batch = await begin_all(self.begin, deliveries)
        running = [(begun.execution, payload) for begun, payload in zip(batch, payloads, strict=True) if begun.run]
        if running:
            executions = [execution for execution, _ in running]
            with executing(*[execution.context for execution in executions]):
                call = functools.partial(handler, [payload for _, payload in running])
                await run_batch(executions, call, handler, self.settings.attempt_timeout)
        return [begun.execution.begun if begun.run else begun for begun in batch]

    def handler(
        self, describe: Callable[[Received], Delivery]
    ) -> Callable[[Callable[Concatenate[Received, P], Any]], Callable[Concatenate[Received, P], Awaitable[Begun]]]:
        """Decorates a handler of messages, as `execute` treats it; ``describe`` makes a `Delivery` of a message.

        An error of ``describe`` is raised: let it return ``None`` as the key of a message without one. For the decoration of a
        second handler see `only`.
        """

        def decorate(
            handler: Callable[Concatenate[Received, P], Any],
        ) -> Callable[Concatenate[Received, P], Awaitable[Begun]]:
            self.only(handler)

            @functools.wraps(handler)
            async def handled(message: Received, /, *args: P.args, **kwargs: P.kwargs) -> Begun:
                return await self.execute(describe(message), handler, message, *args, **kwargs)

            return handled

        return decorate

    def only(self, *handlers: Callable[..., Any]) -> None:
        """Declares the consumer's handler at the start; several, where one of them is chosen by the kind of message.

        Raises ``ValueError`` where it has another one: it would skip what that one has processed. A second handler needs a
        `Subscription` of its own, under another consumer's name. Raises ``TypeError`` for what can't be a handler.
        """
        self._sole.register(*handlers)
        give_late_outcomes(handlers, self._late)

    def once(self, delivery: Delivery) -> Once:
        """Around what executes a command, which is reached only if it is to be: zero times or once.

            once = subscription.once(Delivery(key, payload))
            async for attempt in once:
                async with attempt:
                    ...
            tell_the_broker(once.action)

        See `Once`. Nothing is decided, or raised, before the loop.
        """
        return Once(functools.partial(self.begin, delivery))
