"""For FastStream apps: a subscription as one middleware for RabbitMQ, NATS JetStream, Redis Streams and Kafka.

    subscription = Subscription("billing", cache=RedisCache.from_url("redis://localhost"))
    broker = RabbitBroker(middlewares=[SubscriptionMiddleware(subscription)])

Strategy. FastStream does not notify a middleware when a consumer starts, and by the first message an unsafe one has acknowledged
it already. So `SubscriberUsecase.start`, which every consumer calls before it fetches messages, is wrapped here, once.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakSet

try:
    from faststream._internal.endpoint.subscriber.usecase import SubscriberUsecase
    from faststream.exceptions import SetupError
    from faststream.message import StreamMessage
    from faststream.middlewares import BaseMiddleware
except ImportError as missing:  # pragma: no cover
    raise ImportError("oncegate.faststream needs FastStream 0.7: pip install 'oncegate[faststream]'") from missing

from oncegate.cache.backoff import Backoff
from oncegate.faststream.processing import MessageProcessing
from oncegate.faststream.rules import (
    broker_of,
    complaint,
    inbox_complaint,
    message_id,
    octets,
    place_in_order,
    sent_at,
)
from oncegate.middleware.consumers.begun import Begun
from oncegate.middleware.consumers.delivery import Delivery
from oncegate.middleware.consumers.subscription import Subscription
from oncegate.middleware.consumers.transactional import TransactionalInbox, check_secrets
from oncegate.middleware.rules.checks.arguments import check_callable
from oncegate.middleware.rules.errors import KeyInvalid
from oncegate.middleware.rules.keys.key import parse_key

__all__ = ["DeadLetter", "SubscriptionMiddleware"]

DeadLetter = Callable[["StreamMessage[Any]", Begun], Awaitable[None]]
"""Puts a message aside, with the reason. What it raises leaves the message with the broker, to be delivered again."""


class SubscriptionMiddleware:
    """A middleware of FastStream that puts ``subscription`` under the consumers of a broker or of a router.

    They are one consumer: they share its records, so they must have the same handler. A second handler needs a `Subscription`
    of its own, in a middleware on a router of its own; the start is refused otherwise, as it is for an acknowledgement policy
    or a kind of consumer that would lose messages.

    - ``header``: holds the idempotency key, written as in HTTP.
    - ``describe``: makes the whole `Delivery` of a message, in the place of ``header``.
    - ``pause``, ``max_pause``: seconds until a redelivery, doubled with each failed attempt. The broker waits where it can
      (NATS); with Redis it is the claim of idle entries; else the message is held for so long.
    - ``dead_letter``: awaited before a message is rejected for good; Kafka has no dead letters, and needs it.
    - ``inbox``: an `oncegate.sql.Inbox`. The message is marked in a session's transaction, which is committed before the
      handler's reply is published; a duplicate sends the kept reply again.
    - ``sessions``: an ``async_sessionmaker`` for the inbox; the handler gets the session as the context ``session``.
    """

    def __init__(
        self,
        subscription: Subscription,
        *,
        header: str = "Idempotency-Key",
        describe: Callable[["StreamMessage[Any]"], Delivery] | None = None,
        pause: float = 1.0,
        max_pause: float = 10.0,
        dead_letter: DeadLetter | None = None,
        inbox: TransactionalInbox | None = None,
        sessions: Any = None,
    ) -> None:
        if not isinstance(subscription, Subscription):
            raise TypeError(f"subscription is a {type(subscription).__qualname__}: give a Subscription(...)")
        check_callable("describe", describe, "a function that makes a Delivery of a message", optional=True)
        check_callable("dead_letter", dead_letter, "a coroutine function of a message and its Begun", optional=True)
        if not 0 < pause <= max_pause:
            raise ValueError("pause must be above 0 seconds, and max_pause no less than pause")
        check_secrets(inbox, subscription.digests)
        if inbox is not None:
            inbox.check_sessions(sessions)
            if inbox.contiguous:
                raise ValueError(
                    'an inbox with order="contiguous" parks what comes early, which this middleware can\'t: such messages would'
                    " fill the broker's window and stop the consumer. Put @inbox.transaction(sessions) around the handler instead"
                )
        elif sessions is not None:
            raise TypeError("sessions are those of an inbox: give it too (inbox=)")
        self.subscription = subscription
        self.dead_letter = dead_letter
        self.inbox = inbox
        self.sessions = sessions
        self.describe = describe or self._by_header
        self.pauses = Backoff(pause, max_pause, least=1.0)
        self._header = header
        self.sent_back = 0
        """How many deliveries in a row were sent back before anything was begun: the pause grows with them."""
        self._handlers: list[Any] = []
        self._accepted: WeakSet[Any] = WeakSet()

    def __call__(self, msg: Any, /, *, context: Any) -> "BaseMiddleware[Any, Any]":
        """FastStream's side: what accompanies one message."""
        return MessageProcessing(self, msg, context=context)

    def check(self, subscriber: "SubscriberUsecase[Any]") -> None:
        """Raises FastStream's `SetupError` where a message could be lost, or be taken for another consumer's."""
        if subscriber in self._accepted or not subscriber.calls:
            return
        name = "/".join(call.name for call in subscriber.calls)
        handlers = [call.handler._original_call for call in subscriber.calls]
        found = complaint(subscriber, dead_letter=self.dead_letter is not None) or inbox_complaint(
            subscriber,
            handlers,
            inbox=self.inbox is not None,
            by_message_id=self.subscription.settings.on_missing_key == "message_id",
        )
        if found is not None:
            raise SetupError(f"oncegate: the {broker_of(subscriber)} consumer {name}: {found}")
        try:
            self.subscription.only(*handlers)
        except (TypeError, ValueError) as error:
            raise SetupError(f"oncegate: {error}, in a SubscriptionMiddleware on a router") from None
        self._handlers = handlers
        self._accepted.add(subscriber)

    @property
    def timeout(self) -> float | None:
        """Seconds for the handler. A plain function runs in a thread, which can't be ended: it keeps its lease instead."""
        timed = all(inspect.iscoroutinefunction(inspect.unwrap(handler)) for handler in self._handlers)
        return self.subscription.settings.attempt_timeout if timed else None

    def _by_header(self, message: "StreamMessage[Any]") -> Delivery:
        # AMQP and NATS keep the case of names, HTTP libraries in between don't.
        wanted = self._header.lower()
        values = {octets(value) for name, value in message.headers.items() if name.lower() == wanted}
        if len(values) > 1:
            raise KeyInvalid(f"There is more than one {self._header} header: send one.")
        key = parse_key(values.pop()) if values else None
        aggregate, sequence = place_in_order(message)
        return Delivery(
            key,
            octets(message.body),
            message_id=message_id(message),
            sent_at=sent_at(message),
            aggregate=aggregate,
            sequence=sequence,
        )


def _checked(start: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(start)
    async def checked_start(self: Any) -> None:
        for middleware in self._broker_middlewares:
            if isinstance(middleware, SubscriptionMiddleware):
                middleware.check(self)
        await start(self)

    return checked_start


SubscriberUsecase.start = _checked(SubscriberUsecase.start)  # type: ignore[assignment, method-assign]  # see the top
