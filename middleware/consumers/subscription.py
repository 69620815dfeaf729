"""`Subscription`: skips a redelivered command that was processed before, with any broker."""

import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from oncegate.cache.open import given_cache
from oncegate.cache.store import Cache
from oncegate.middleware.admission.admission import Admissions
from oncegate.middleware.admission.observe import Watch
from oncegate.middleware.admission.shared import notify
from oncegate.middleware.admission.tracing import Traces
from oncegate.middleware.consumers.begun import Begun, decided
from oncegate.middleware.consumers.delivery import (
    CONSUMER,
    Action,
    Delivery,
    DeliveryDecision,
    SubscriptionSettings,
    check_names,
    origin_of,
)
from oncegate.middleware.consumers.delivery_admissions import DeliveryAdmissions
from oncegate.middleware.consumers.handlers.handling import begin_all, executing, run_batch, run_handler
from oncegate.middleware.consumers.handlers.once import Once
from oncegate.middleware.consumers.handlers.sole_handler import SoleHandler
from oncegate.middleware.consumers.late_outcomes import LateOutcomes
from oncegate.middleware.consumers.transactional import give_late_outcomes
from oncegate.middleware.rules.checks.arguments import check_watch, given_namespace, given_settings
from oncegate.middleware.rules.keys.digests import Secrets, given_digests

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
        policy = self.settings.policy(consumer, name)
        self._admissions = Admissions(self.cache, max_in_flight=self.settings.max_in_flight, watch=watch)
        self._traces = None if tracing is None else tracing.deliveries(consumer, self.cache)
        self._sole = SoleHandler(consumer, self.digests)
        self._late = LateOutcomes(self, self._admissions, policy)
        self._deliveries = DeliveryAdmissions(self, self._admissions, policy, self._late)

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
        begun = await self._deliveries.decide(delivery, trace)
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
