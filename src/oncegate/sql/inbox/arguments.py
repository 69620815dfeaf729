"""An inbox's arguments: choices, numbers, messages."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict

from oncegate.middleware.consumers.sql_interface import (
    MAX_SEQUENCE,
    Delivery,
    Digests,
    KeyInvalid,
    KeyText,
    Rejected,
    SubscriptionSettings,
    command_key,
    delivery_fingerprint,
    record_id,
)
from oncegate.sql.marking.statements import Message

_KEY_NEEDED = SubscriptionSettings(on_missing_key="reject")


class Named(TypedDict, total=False):
    """The names of a message besides its key: the keyword arguments of `Inbox.first`, for its overloads."""

    caller: KeyText
    record: str
    payload: Any
    sent_at: datetime | None
    aggregate: KeyText
    sequence: int | None


class NamedEach(TypedDict, total=False):
    """The same of a batch, one item for each key: those of `Inbox.first_many`."""

    callers: Sequence[KeyText] | None
    payloads: Sequence[Any] | None
    sent_at: Sequence[datetime | None] | None


def check_choice(name: str, given: str, *choices: str) -> None:
    """Raises ``ValueError`` for what is none of them."""
    if given not in choices:
        raise ValueError(f"{name} is {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}, not {given!r}")


def check_numbers(starts_at: int, max_parked: int, max_attempts: int) -> None:
    """Raises ``ValueError`` for those that no order can have."""
    if not (0 < starts_at <= MAX_SEQUENCE and max_parked >= 0 and max_attempts > 0):
        raise ValueError("starts_at and max_attempts are 1 or more, max_parked is no less than 0")


def identified(delivery: Delivery, digests: Digests, aggregate: KeyText = "", sequence: int | None = None) -> Message:
    """The message with its ids as the hook makes them, by each secret in use. Raises `KeyInvalid`."""
    record, fingerprint = _ids(delivery, digests)
    other = None if digests.former is None else _ids(delivery, digests.former)
    return Message(record, fingerprint, delivery.sent_at, aggregate, sequence, other)


def identified_each(
    keys: Sequence[KeyText],
    callers: Sequence[KeyText] | None,
    payloads: Sequence[Any] | None,
    sent_at: Sequence[datetime | None] | None,
    digests: Digests,
) -> list[Message]:
    """The messages of a batch, with one item of each for each key. Raises ``TypeError`` for one key in place of a list."""
    if isinstance(keys, str | bytes):
        raise TypeError("keys is one key: give a list of them")
    count = len(keys)
    each = zip(
        keys,
        [""] * count if callers is None else callers,
        [None] * count if payloads is None else payloads,
        [None] * count if sent_at is None else sent_at,
        strict=True,
    )
    deliveries = [Delivery(key, payload, caller=caller, sent_at=sent) for key, caller, payload, sent in each]
    return [identified(delivery, digests) for delivery in deliveries]


def record_of(delivery: Delivery, digests: Digests) -> str:
    """The id of a message that has a key, or brings an id. Raises `KeyInvalid`."""
    return _ids(delivery, digests)[0]


def _ids(delivery: Delivery, digests: Digests) -> tuple[str, bytes | None]:
    """The record's id, and the fingerprint of a payload."""
    try:
        record = record_id(command_key("inbox", delivery, _KEY_NEEDED, digests) or "")
        return record, None if delivery.payload is None else delivery_fingerprint(delivery, digests)
    except Rejected as error:
        raise KeyInvalid(str(error)) from None
