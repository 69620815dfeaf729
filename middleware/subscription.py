"""The door for consumers: a redelivered command that was processed before is skipped, whatever the broker.

Strategy. Each consumer has an execution record of its own beside the command's record, under the same law: claimed with a
lease, renewed while the handler runs, settled once with the owner token. Before the claim two things are looked at that
nobody writes here: the gateway's record of a command that came through it, whose success counts only where the gateway
executed the command itself (without the mark ``submission``), and the execution records of the consumer's former names.

They are looked at before the claim because a delivery that they decide needs none: a duplicate costs no write. The window
that this leaves: what begins after that look is not seen, a synchronous request under the same key, or a consumer under its
former name. The other order would leave it too, as neither of the two looks at this consumer's record.

A first attempt takes nothing over, so that what an earlier one left can be judged, with its error, before it is replaced.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from oncegate.cache.base import Cache
from oncegate.cache.claim import Claim
from oncegate.cache.errors import CacheFull, CacheUnavailable, RecordUnreadable
from oncegate.cache.record import FINGERPRINT_BYTES, Record
from oncegate.middleware.attempt import Attempt, LeaseLost, Unconfirmed
from oncegate.middleware.begun import Begun
from oncegate.middleware.delivery import (
    CONSUMER,
    Delivery,
    DeliveryDecision,
    Rejected,
    SubscriptionSettings,
    command_key,
    delivery_fingerprint,
)
from oncegate.middleware.enforce import Ask, Enforcer, Verdict
from oncegate.middleware.errors import Overloaded
from oncegate.middleware.handling import NotRecorded, run_handler, settle_raised
from oncegate.middleware.key import execution_key, record_id
from oncegate.middleware.observe import Watch
from oncegate.middleware.subscription_gate import Allowance, allowance, by_execution, by_submission, last_error

Message = TypeVar("Message")
P = ParamSpec("P")


class Subscription:
    """Lets each command be executed at most once at a time by ``consumer``, and never again once that is recorded.

    ``consumer`` names whose records these are: 1 to 64 letters, digits, ``.``, ``_`` and ``-``, the same over all processes
    that share the work and for as long as records live. ``aliases`` are its former names. ``namespace`` is the gateway's.

    `drain` is to be awaited before the process ends, `oncegate.cache.base.Cache.close` after it.
    """

    def __init__(
        self,
        consumer: str,
        *,
        cache: Cache,
        namespace: str = "default",
        aliases: Sequence[str] = (),
        settings: SubscriptionSettings | None = None,
        watch: Watch | None = None,
    ) -> None:
        for name in (consumer, *aliases):
            if not CONSUMER.fullmatch(name):
                raise ValueError(f"a consumer's name has 1 to 64 letters, digits, '.', '_' and '-', not {name!r}")
        if consumer in aliases or len(set(aliases)) != len(aliases):
            raise ValueError("aliases are former names of the consumer, each given once")
        if not namespace or ":" in namespace:
            raise ValueError("namespace must not be empty and must not hold a colon")
        self.consumer = consumer
        self.aliases = tuple(aliases)
        self.namespace = namespace
        self.settings = settings or SubscriptionSettings()
        self.cache = cache
        self._policy = self.settings.policy(consumer)
        self._first = replace(self._policy, takeover=frozenset())
        self._enforcer = Enforcer(cache, max_in_flight=self.settings.max_in_flight, watch=watch)

    # -- by hand ------------------------------------------------------------------------------------------------------

    async def begin(self, delivery: Delivery) -> Begun:
        """Decide about one delivery. Where it says ``RUN``, the outcome is to be given to what is returned, in this event loop.

        Raises nothing: what stands in the way is a decision too, with its ``reason``.
        """
        try:
            key = command_key(self.namespace, delivery, self.settings)
            if key is None:
                return self._unprotected()
            fingerprint = delivery_fingerprint(delivery)
        except Rejected as error:
            return Begun(DeliveryDecision.REJECTED, reason=str(error))
        except Overloaded as error:
            return Begun(DeliveryDecision.UNAVAILABLE, reason=str(error))
        record = record_id(key)
        if self._enforcer.in_flight.owes(execution_key(key, self.consumer)):
            # After a long outage the lease may have lapsed before the outcome, which is known here, could be written.
            return Begun(DeliveryDecision.IN_FLIGHT, record, reason="Its outcome waits here for the record cache.")
        try:
            return await self._admit(key, fingerprint, delivery)
        except RecordUnreadable as error:
            return Begun(DeliveryDecision.UNREADABLE, record, reason=f"{error}.")
        except (CacheFull, Overloaded) as error:
            return Begun(DeliveryDecision.UNAVAILABLE, record, reason=str(error))
        except CacheUnavailable as error:
            decision = DeliveryDecision.UNAVAILABLE
            if self.settings.on_cache_down == "dead_letter":
                decision = DeliveryDecision.UNCHECKED
            return Begun(decision, record, reason=f"The record cache can't be reached: {error}.")

    async def _admit(self, key: str, fingerprint: bytes, delivery: Delivery) -> Begun:
        looked = await self._look(key, fingerprint, delivery)
        if isinstance(looked, Begun):
            return looked
        own = execution_key(key, self.consumer)
        outcome = await self._enforcer.admit(Ask(own, fingerprint, self._first))
        found: Record | None = None
        if isinstance(outcome, Verdict):
            found = outcome.record
            decision = by_execution(found, fingerprint)
            if decision is not None:
                return self._told(decision, key, found)
            if looked.ended(found):
                return self._told(DeliveryDecision.EXHAUSTED, key, found, looked.total(found.attempt))
            outcome = await self._enforcer.admit(Ask(own, fingerprint, self._policy))
        if isinstance(outcome, Verdict):  # somebody was quicker
            decision = by_execution(outcome.record, fingerprint) or DeliveryDecision.IN_FLIGHT
            return self._told(decision, key, outcome.record)
        return await self._begun(outcome, record_id(key), looked, found)

    async def _look(self, key: str, fingerprint: bytes, delivery: Delivery) -> Begun | Allowance:
        """At what other doors and former names have done: what it decides, or what is allowed after it."""
        try:
            submission, *former = await asyncio.gather(
                self._gateways(key, delivery), *[self.cache.get(execution_key(key, alias)) for alias in self.aliases]
            )
        except CacheUnavailable:
            if self.settings.on_cache_down != "run":
                raise
            submission, former = None, []
        decision = by_submission(submission.record if submission else None, fingerprint)
        if decision is DeliveryDecision.DUPLICATE:
            submission = await self.cache.get(key)  # with its body
        if decision is not None:
            return self._told(decision, key, submission.record if submission else None)
        records = [claim.record for claim in former if claim is not None]
        for record in records:
            if decision := by_execution(record, fingerprint):
                return self._told(decision, key, record)
        return allowance(self.settings.max_attempts, delivery.attempts_before, records)

    async def _gateways(self, key: str, delivery: Delivery) -> Claim | None:
        """The gateway's record of a command that came through it, which only its fingerprint shows.

        A service behind the gateway that publishes a message under its request's key hands on a command of its own. To that
        request's success, or its being in flight, the message would be lost before it was ever processed.
        """
        if delivery.fingerprint is None:
            return None
        return await self.cache.peek(key)

    def _told(self, decision: DeliveryDecision, key: str, record: Record | None, attempt: int = 0) -> Begun:
        response = record.response if record is not None and decision in _WITH_RESPONSE else None
        attempt = attempt or (record.attempt if record is not None else 0)
        return Begun(decision, record_id(key), attempt=attempt, reason=_REASONS[decision], response=response)

    async def _begun(self, attempt: Attempt, record: str, allowed: Allowance, found: Record | None) -> Begun:
        number = attempt.number
        begun = Begun(DeliveryDecision.RUN, record, attempt=allowed.total(number) if number else 0)
        last = bool(number) and allowed.is_last(number)
        begun.hold(attempt, self._enforcer.in_flight.hold(attempt), self.settings, last=last)
        if number and not allowed.allows(number):
            if number > 1:
                attempt.number -= 1  # it is never made
                begun.attempt -= 1
            await begun.exhaust(last_error(found), _REASONS[DeliveryDecision.EXHAUSTED])
            return begun
        try:
            await attempt.confirm()
        except LeaseLost:
            await begun.withdraw(DeliveryDecision.IN_FLIGHT, _REASONS[DeliveryDecision.IN_FLIGHT])
        except Unconfirmed as error:
            await begun.withdraw(DeliveryDecision.UNAVAILABLE, f"The record cache can't be reached: {error}.")
        except asyncio.CancelledError:
            await begun.withdraw(DeliveryDecision.UNAVAILABLE, "The consumer was cancelled.")
            raise
        return begun

    def _unprotected(self) -> Begun:
        in_flight = self._enforcer.in_flight
        if in_flight.slots >= in_flight.max_in_flight:
            raise Overloaded("Too many deliveries are being executed: try again later.")
        in_flight.slots += 1
        attempt = Attempt(in_flight, "", bytes(FINGERPRINT_BYTES), self._policy)
        begun = Begun(DeliveryDecision.RUN)
        begun.hold(attempt, in_flight.hold(attempt), self.settings, last=False)
        return begun

    @property
    def slots(self) -> int:
        """How many deliveries are being claimed or executed here."""
        return self._enforcer.in_flight.slots

    async def drain(self, timeout: float = 30.0) -> int:
        """Wait for deliveries that are being executed, and for outcomes not yet recorded; how many attempts were left."""
        return await self._enforcer.in_flight.drain(timeout)

    # -- around a handler ---------------------------------------------------------------------------------------------

    async def execute(self, delivery: Delivery, handler: Callable[..., Any], *args: Any, **kwargs: Any) -> Begun:
        """Call ``handler`` if the delivery is to run, and record what came of it. The result's ``action`` is for the broker.

        ``handler`` is a coroutine function, or a plain one, run in a thread. What it returns is kept as JSON (a
        `StoredResponse` as it is), what it raises is a failure, except `NotProcessed` (nothing was begun: doesn't count),
        `OutcomeUnknown` (counts, and is tried again) and `NotRetryable` (dead-lettered at once). Raises only a cancellation.
        """
        begun = await self.begin(delivery)
        if begun.run:
            await run_handler(begun, functools.partial(handler, *args, **kwargs), handler, self.settings.timeout)
        return begun

    def handler(
        self, describe: Callable[[Message], Delivery]
    ) -> Callable[[Callable[Concatenate[Message, P], Any]], Callable[Concatenate[Message, P], Awaitable[Begun]]]:
        """Decorates a handler of messages, as `execute` treats it; ``describe`` makes a `Delivery` of a message."""

        def decorate(
            handler: Callable[Concatenate[Message, P], Any],
        ) -> Callable[Concatenate[Message, P], Awaitable[Begun]]:
            @functools.wraps(handler)
            async def handled(message: Message, /, *args: P.args, **kwargs: P.kwargs) -> Begun:
                return await self.execute(describe(message), handler, message, *args, **kwargs)

            return handled

        return decorate

    @asynccontextmanager
    async def delivery(self, delivery: Delivery) -> AsyncIterator[Begun]:
        """Around what executes a command: look at ``run`` first. To leave it normally is success, unless told otherwise.

        An exception is recorded as `execute` does it, and goes on. Raises `NotRecorded` where a success is not in the
        cache: don't acknowledge.
        """
        begun = await self.begin(delivery)
        try:
            yield begun
        except (Exception, asyncio.CancelledError) as error:
            if begun.run and not begun.settled:
                await settle_raised(begun, error)
            raise
        if begun.run:
            recording = await (begun.recorded() if begun.settled else begun.succeed())
            if not recording and begun.succeeded:
                raise NotRecorded(recording, begun.record)


_WITH_RESPONSE = (DeliveryDecision.DUPLICATE, DeliveryDecision.EXHAUSTED)
_REASONS = {
    DeliveryDecision.DUPLICATE: "The command was processed before.",
    DeliveryDecision.IN_FLIGHT: "The command is being executed elsewhere.",
    DeliveryDecision.MISMATCH: "The key was used for another payload.",
    DeliveryDecision.EXHAUSTED: "No attempt is left.",
}
