"""Rules for each broker of FastStream, read from its objects without importing it.

A consumer is refused where the broker would take a message for done that is not recorded as done, or would never deliver
it again.
"""

import inspect
import logging
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from oncegate.cache.redis.streams.entry_id import added_at_ms
from oncegate.middleware.consumers.delivery import Delivery, broker_time
from oncegate.middleware.consumers.transactional import inbox_of
from oncegate.middleware.rules.errors import KeyInvalid

log = logging.getLogger("oncegate.faststream")

_SAFE = ("NACK_ON_ERROR", "REJECT_ON_ERROR")
"""They differ in messages that can't be parsed: delivered again, or rejected. What a handler raises is answered by us."""

_DISCARDS = "has no x-dead-letter-exchange: unless a policy of the server sets one, what is rejected is discarded"
_PUTS_NOTHING_ASIDE = "Kafka has no dead letters: give SubscriptionMiddleware a dead_letter that puts messages aside"

AGGREGATE, SEQUENCE = "oncegate-aggregate", "oncegate-sequence"
"""The headers with the id of a message's aggregate, and its number."""
_MOST_DIGITS = 19

_POSITIONS = ("kafka", "nats")
"""Whose id of a message is a number that begins again. (A Redis entry's begins with the time.)"""


def broker_of(thing: Any) -> str:
    """The broker that one of FastStream's consumers or messages belongs to, also where it is a user's subclass."""
    for kind in type(thing).__mro__:
        package, _, rest = kind.__module__.partition(".")
        if package == "faststream" and not rest.startswith(("_", "message")):
            return rest.partition(".")[0]
    return type(thing).__name__


def complaint(subscriber: Any, *, dead_letter: bool) -> str | None:
    """Why this consumer would lose messages, and what to set; ``None`` where it would not.

    ``dead_letter``: something of the user's own puts aside what is rejected.
    """
    found = _complaint(subscriber, dead_letter)
    if found is None and "Batch" in type(subscriber).__name__:
        return "a batch has no one idempotency key: consume single messages, or mark them by hand with Inbox.first_many"
    return found


def _complaint(subscriber: Any, dead_letter: bool) -> str | None:
    match broker_of(subscriber):
        case "rabbit":
            if not dead_letter and "x-dead-letter-exchange" not in (subscriber.queue.arguments or {}):
                log.warning("queue %s %s", subscriber.queue.name, _DISCARDS)
        case "nats":
            if getattr(subscriber, "stream", None) is None:
                return "core NATS delivers a message once and never again: set stream=JStream(...)"
        case "redis":
            stream = getattr(subscriber, "stream_sub", None)
            if stream is None or stream.no_ack or not stream.group:
                return "what fails is never delivered again: set stream=StreamSub(..., group=..., consumer=...), without no_ack"
        case "kafka":  # what is rejected is committed, also where parsing failed
            return _policy(subscriber, ("NACK_ON_ERROR",)) or (None if dead_letter else _PUTS_NOTHING_ASIDE)
        case _:
            return "this broker is not supported: use Subscription by hand"
    return _policy(subscriber)


def inbox_complaint(subscriber: Any, handlers: list[Any], *, inbox: bool, by_message_id: bool) -> str | None:
    """Why an inbox, of the middleware's or of the ``handlers``' own, would not hold; ``None`` where it would."""
    own = any(inbox_of(handler) is not None for handler in handlers)
    if inbox and own:
        return "its handler has an inbox of its own, which would wait for the middleware's: leave one of them out"
    if inbox and not all(inspect.iscoroutinefunction(inspect.unwrap(handler)) for handler in handlers):
        return "a plain function takes no AsyncSession: decorate it with Inbox.transaction, and leave out inbox="
    if (inbox or own) and by_message_id and broker_of(subscriber) in _POSITIONS:
        return (
            'on_missing_key = "message_id" is a position here, and after the topic or stream is made anew an inbox would skip new'
            ' messages as old: set "reject" or "run"'
        )
    return None


def _policy(subscriber: Any, safe: tuple[str, ...] = _SAFE) -> str | None:
    policy = subscriber.ack_policy.name
    if policy in safe:
        return None
    return f"ack_policy {policy} acknowledges what is not recorded: set ack_policy=AckPolicy.NACK_ON_ERROR"


def octets(value: Any) -> bytes:
    """A header's value, or a body. Raises `KeyInvalid` for what is neither text nor bytes, a number for instance."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    raise KeyInvalid(f"A header or body is of type {type(value).__name__}: send text.")


def with_ids(delivery: Delivery, message: Any) -> Delivery:
    """``delivery`` with the ids of its message that it lacks, for logs. The broker's never becomes the key of one without."""
    keyed = delivery.key is not None or delivery.record
    return replace(
        delivery,
        message_id=delivery.message_id or (message_id(message) if keyed else ""),
        correlation=delivery.correlation or message.correlation_id or "",
        traceparent=delivery.traceparent or _traceparent(message),
    )


def _traceparent(message: Any) -> str:
    value = next((value for name, value in message.headers.items() if name.lower() == "traceparent"), "")
    return value if isinstance(value, str) else value.decode("latin-1") if isinstance(value, bytes) else ""


def message_id(message: Any) -> str:
    """The broker's own id of a message, the same in each of its deliveries; empty where there is none.

    FastStream's ``message_id`` is not that: where the broker has none, it is made anew for each delivery.
    """
    raw = message.raw_message
    match broker_of(message):
        case "rabbit":
            return raw.message_id or ""
        case "redis":
            return f"{raw['channel']}/{raw['message_ids'][0].decode()}"
        case "nats":
            return f"{raw.metadata.stream}/{raw.metadata.sequence.stream}"
        case "kafka":
            return f"{raw.topic}/{raw.partition}/{raw.offset}"
    return ""


def place_in_order(message: Any) -> tuple[str, int | None]:
    """The id of a message's aggregate, and its number; 0 for what is no decimal number, which an inbox with an order refuses."""
    values = {name.lower(): value for name, value in message.headers.items()}
    aggregate, number = values.get(AGGREGATE, ""), values.get(SEQUENCE)
    if isinstance(aggregate, bytes):
        aggregate = aggregate.decode("utf-8", "surrogateescape")
    if number is None or isinstance(number, int):
        return str(aggregate), number
    text = number.decode("latin-1") if isinstance(number, bytes) else str(number)
    is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    return str(aggregate), int(text) if is_number else 0


def sent_at(message: Any) -> datetime | None:
    """The time at which a message was sent, by the clock of its broker or of its sender; ``None`` where it has none."""
    raw = message.raw_message
    match broker_of(message):
        case "rabbit":
            found: datetime | None = raw.timestamp  # the producer's to set
        case "redis":
            found = broker_time(added_at_ms(raw["message_ids"][0])) if raw["message_ids"] else None
        case "nats":
            found = _nats_time(raw)
        case "kafka":
            found = broker_time(raw.timestamp)
        case _:
            found = None
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found


def _nats_time(raw: Any) -> datetime | None:
    try:
        found: datetime = raw.metadata.timestamp
    except Exception:  # noqa: BLE001  # of a test broker's message, which is in no stream
        return None
    return found
