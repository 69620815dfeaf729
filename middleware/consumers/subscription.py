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
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from oncegate.cache.errors import CacheFull, CacheUnavailable, RecordUnreadable
from oncegate.cache.open import given_cache
from oncegate.cache.record import FINGERPRINT_BYTES, TOKEN_BYTES, ClaimRequest, Record
from oncegate.cache.store import Cache
from oncegate.middleware.admission.admission import Address, AdmissionRequest, Admissions, Verdict
from oncegate.middleware.admission.attempt import Attempt, LeaseLost, Unconfirmed, notify
from oncegate.middleware.admission.observe import Watch
from oncegate.middleware.consumers.addresses import Addresses, Rejected, attempts_before
from oncegate.middleware.consumers.begun import Begun
from oncegate.middleware.consumers.delivery import (
    CONSUMER,
    Action,
    Delivery,
    DeliveryDecision,
    Origin,
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
from oncegate.middleware.consumers.handling import begin_all, executing, run_batch, run_handler
from oncegate.middleware.consumers.late_outcomes import LateOutcomes
from oncegate.middleware.consumers.once import Once, leave
from oncegate.middleware.consumers.sole_handler import SoleHandler
from oncegate.middleware.consumers.transactional import give_late_outcomes
from oncegate.middleware.rules.arguments import check_watch, given_namespace, given_settings
from oncegate.middleware.rules.digests import Secrets, given_digests
from oncegate.middleware.rules.errors import Overloaded
from oncegate.middleware.rules.key import execution_key, record_id

log = logging.getLogger("oncegate.subscription")

Received = TypeVar("Received")
P = ParamSpec("P")


class Subscription:
    """Lets each command be executed at most once at a time by ``consumer``, and never again once that is recorded.

    ``consumer`` names these records' owner: 1 to 64 letters, digits, ``.``, ``_`` and ``-``, the same over all processes
    that share the work and for as long as records live. ``aliases`` are its former names. ``namespace`` is the gateway's, and
    ``secret`` is, 32 bytes or more, by which keys, callers and payloads are digested: a list of two while one replaces the other.
    ``name`` is who this process is, in records and for operators, where the host's name doesn't say.

    ``cache`` is a `Cache`, or the URL of one (see `open_cache`); it is then this object's ``cache``.
    `drain` is to be awaited before the process ends, `oncegate.cache.store.Cache.close` after it.
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
        self._sole = SoleHandler(consumer, self.digests)
        self._late = LateOutcomes(self, self._admissions, self._policy)

    # -- by hand ------------------------------------------------------------------------------------------------------

    async def begin(self, delivery: Delivery) -> Begun:
        """Decide about one delivery. Where it says ``RUN``, give the outcome to the returned `Begun`, in this event loop.

        Raises nothing, whatever the delivery holds: what stands in the way is a decision too, with its ``reason``.
        """
        origin = origin_of(delivery)
        begun = await self._decide(delivery, origin)
        begun.origin, begun.sent_at = origin, delivery.sent_at
        begun.aggregate, begun.sequence = delivery.aggregate, delivery.sequence
        begun.late_outcomes, begun.submitted = self._late, delivery.fingerprint is not None
        self._report(begun)
        return begun

    def refuse(self, decision: DeliveryDecision, reason: str, delivery: Delivery) -> Begun:
        """The ``decision`` about a message that has no usable key, for those who make deliveries for a broker.

        Of ``delivery`` only the message's own ids count.
        """
        begun = Begun(decision, reason=reason)
        begun.origin = origin_of(delivery)
        self._report(begun)
        return begun

    def _report(self, begun: Begun) -> None:
        in_flight, consumer = self._admissions.in_flight, self.consumer
        watch = in_flight.watch
        if begun.mismatch:
            log.warning("record %s: another payload under a used key, taken for the same", begun.named)
        if not in_flight.is_watched:
            return
        notify(lambda: watch.delivery_decided(consumer, begun.decision.value))  # one of before may lack it
        if begun.mismatch:
            notify(lambda: watch.delivery_mismatched(consumer))
        if begun.action is Action.DEAD_LETTER:
            self.dead_lettered(begun.decision.value)

    def dead_lettered(self, reason: str) -> None:
        """Notify the watch of a message that is given up for ``reason``, also before it is a delivery."""
        watch = self._admissions.in_flight.watch
        notify(lambda: watch.dead_lettered(self.consumer, reason))

    async def _decide(self, delivery: Delivery, origin: Origin) -> Begun:
        try:
            address = self._addresses.first(delivery)
            if address is None:
                return self._unprotected(origin)
            other, before = self._addresses.other(delivery), attempts_before(delivery)
        except Rejected as error:
            return Begun(DeliveryDecision.REJECTED, reason=str(error))
        except Overloaded as error:
            return Begun(DeliveryDecision.UNAVAILABLE, reason=str(error))
        record, of_gateway = record_id(address.key), delivery.fingerprint is not None
        try:
            if other is not None and await self._addresses.is_at(other, address, of_gateway):
                address, other = other, address
            if any(self._owes(each) for each in (address, other)):
                # After a long outage the lease may have lapsed before the outcome, which is known here, could be written.
                return Begun(DeliveryDecision.IN_FLIGHT, record, reason="Its outcome waits here for the record cache.")
            allowed = await self._read_records(address, other, of_gateway, before)
            return allowed if isinstance(allowed, Begun) else await self._admit(address, other, allowed, origin)
        except RecordUnreadable as error:
            return Begun(DeliveryDecision.UNREADABLE, record, reason=f"{error}.")
        except (CacheFull, Overloaded) as error:
            return Begun(DeliveryDecision.UNAVAILABLE, record, reason=str(error))
        except CacheUnavailable as error:
            decision = DeliveryDecision.UNAVAILABLE
            if self.settings.on_cache_down == "dead_letter":
                decision = DeliveryDecision.UNCHECKED
            return Begun(decision, record, reason=f"The record cache can't be reached: {error}.")

    def _owes(self, address: Address | None) -> bool:
        return address is not None and self._admissions.in_flight.owes(execution_key(address.key, self.consumer))

    async def _admit(self, address: Address, other: Address | None, allowed: Allowance, origin: Origin) -> Begun:
        own = execution_key(address.key, self.consumer)
        request = AdmissionRequest(own, address.fingerprint, self._first)
        if other is not None and other.key != address.key:
            request.other = Address(execution_key(other.key, self.consumer), other.fingerprint)
        outcome = await self._admissions.admit(request)
        found = outcome.record if isinstance(outcome, Verdict) else None
        if other is not None and (request.is_at_other or (found and found.fingerprint == other.fingerprint)):
            address, other = other, address  # there the record is; or the payload's digest alone is by the other secret
        if found is not None:
            if request.is_at_other:  # it has just been recorded there
                return self._decided(DeliveryDecision.IN_FLIGHT, address, found)
            if decision := by_execution(found, address.fingerprint, warns=self._warns):
                return self._decided(decision, address, found)
            if allowed.ended(found):
                return self._decided(DeliveryDecision.EXHAUSTED, address, found, allowed.total(found.attempt))
            # Another payload, where that is only warned of, goes on with the record that there is.
            outcome = await self._admissions.admit(AdmissionRequest(own, found.fingerprint, self._policy))
        if isinstance(outcome, Verdict):  # another worker was quicker
            decision = by_execution(outcome.record, address.fingerprint, warns=self._warns)
            return self._decided(decision or DeliveryDecision.IN_FLIGHT, address, outcome.record)
        outcome.origin = origin.line
        begun = Begun(DeliveryDecision.RUN, record_id(address.key))
        begun.mismatch = differs(found, address.fingerprint)
        begun.other = None if other is None else (record_id(other.key), other.fingerprint)
        await self._start(begun, outcome, allowed, found)
        return begun

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
        begun = Begun(decision, record_id(at.key), attempt=attempt, reason=REASONS[decision], response=response)
        begun.mismatch = differs(record, at.fingerprint) and decision not in NO_WARNING
        return begun

    async def _start(self, begun: Begun, attempt: Attempt, allowed: Allowance, found: Record | None) -> None:
        """Have ``begun`` hold ``attempt``, or give that back where it can't be made any more."""
        number = attempt.number
        begun.attempt = allowed.total(number) if number else 0
        last = bool(number) and allowed.is_last(number)
        held = self._admissions.in_flight.hold(attempt)
        begun.hold(attempt, held, self.settings, last=last, dead_lettered=self.dead_lettered)
        begun.after_a_crash = found is not None and found.lapsed
        if number and not allowed.allows(number):
            if number > 1:
                attempt.number -= 1  # it is never made
                begun.attempt -= 1
            await begun.exhaust(last_error(found), REASONS[DeliveryDecision.EXHAUSTED])
            return
        try:
            await attempt.confirm()
        except LeaseLost:
            await begun.withdraw(DeliveryDecision.IN_FLIGHT, REASONS[DeliveryDecision.IN_FLIGHT])
        except Unconfirmed as error:
            await begun.withdraw(DeliveryDecision.UNAVAILABLE, f"The record cache can't be reached: {error}.")
        except asyncio.CancelledError:
            await begun.withdraw(DeliveryDecision.UNAVAILABLE, "The consumer was cancelled.")
            raise

    def _unprotected(self, origin: Origin) -> Begun:
        in_flight = self._admissions.in_flight
        if not in_flight.slots.enter(""):
            raise Overloaded("Too many deliveries are being executed: try again later.")
        in_flight.slots.claim_won("")
        policy = self._policy
        token, print_ = os.urandom(TOKEN_BYTES), bytes(FINGERPRINT_BYTES)
        attempt = Attempt(in_flight, "", ClaimRequest(token, print_, policy.lease_ms, policy.retention_ms), policy)
        attempt.origin = origin.line
        begun = Begun(DeliveryDecision.RUN)
        begun.hold(attempt, in_flight.hold(attempt), self.settings, last=False, dead_lettered=self.dead_lettered)
        return begun

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
            with executing(begun):
                await run_handler(
                    begun, functools.partial(handler, *args, **kwargs), handler, self.settings.attempt_timeout
                )
        return begun

    async def execute_many(
        self, deliveries: Sequence[Delivery], handler: Callable[[list[Any]], Any], payloads: Sequence[Any]
    ) -> list[Begun]:
        """As `execute`, for a batch: ``handler`` is called once, with the payloads of those deliveries that are to run.

        It returns a list with a result for each of them, or ``None``. An exception in that list is the outcome of its delivery
        alone, and one that is raised that of all; so is the time-out. A plain function, in a thread, has none.
        """
        if len(deliveries) != len(payloads):
            raise ValueError(f"{len(deliveries)} deliveries have {len(payloads)} payloads: give each of them its own")
        self._sole.call(handler)
        batch = await begin_all(self.begin, deliveries)
        running = [(begun, payload) for begun, payload in zip(batch, payloads, strict=True) if begun.run]
        if running:
            with executing(*[begun for begun, _ in running]):
                call = functools.partial(handler, [payload for _, payload in running])
                await run_batch([begun for begun, _ in running], call, handler, self.settings.attempt_timeout)
        return batch

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

    @asynccontextmanager
    async def delivery(self, delivery: Delivery) -> AsyncIterator[Begun]:
        """Around what executes a command, **also of a duplicate**: what is not inside of ``if begun.run:`` is executed each time.

        `once` is the same without that trap. To leave the block normally is success, unless another outcome was given. An
        exception is recorded as by `execute`, and is raised. Raises `NotRecorded` where a success is not in the cache: don't
        acknowledge.
        """
        begun = await self.begin(delivery)
        raised: BaseException | None = None
        try:
            with executing(begun) if begun.run else nullcontext():
                yield begun
        except BaseException as error:  # whatever ends the block is the outcome; it is raised again
            raised = error
            raise
        finally:
            if begun.run:
                await leave(begun, raised)
