"""What an inbox is given: names, sessions, messages."""

from collections.abc import Sequence

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from oncegate.middleware.consumers.delivery import (
    CONSUMER,
    Delivery,
    Rejected,
    SubscriptionSettings,
    command_key,
    delivery_fingerprint,
)
from oncegate.middleware.rules.errors import KeyInvalid
from oncegate.middleware.rules.key import record_id
from oncegate.middleware.rules.key_text import KeyText
from oncegate.sql.marking.statements import Message
from oncegate.sql.order.numbers import MOST

AnyAsync = AsyncSession | AsyncConnection
AnySync = Session | Connection

_KEY_NEEDED = SubscriptionSettings(on_missing_key="reject")


def check_names(consumer: str, aliases: Sequence[str]) -> None:
    """Raises ``TypeError`` and ``ValueError`` for what are no names."""
    if isinstance(aliases, str):
        raise TypeError("aliases is a str: give a list of names")
    for name in (consumer, *aliases):
        if not CONSUMER.fullmatch(name):
            raise ValueError(f"a consumer's name has 1 to 64 letters, digits, '.', '_' and '-', not {name!r}")
    if consumer in aliases or len(set(aliases)) != len(aliases):
        raise ValueError("aliases are former names of the consumer, each given once")


def check_order(order: str, starts_at: int, max_parked: int, max_attempts: int) -> None:
    """Raises ``ValueError`` for what is no order, or none of its numbers."""
    if order not in ("none", "latest", "contiguous"):
        raise ValueError(f"order is 'none', 'latest' or 'contiguous', not {order!r}")
    if not (0 < starts_at <= MOST and max_parked >= 0 and max_attempts > 0):
        raise ValueError("starts_at and max_attempts are 1 or more, max_parked is no less than 0")


def not_a_session(session: object) -> TypeError:
    """The error for what is neither of SQLAlchemy's sessions nor one of its connections."""
    return TypeError(
        f"the session is a {type(session).__name__}: give a Session, AsyncSession, Connection or AsyncConnection"
    )


def identified(delivery: Delivery, aggregate: KeyText = "", sequence: int | None = None) -> Message:
    """The message with the record's id, and with the payload's fingerprint, as the hook makes them. Raises `KeyInvalid`."""
    try:
        look_up_key = command_key("inbox", delivery, _KEY_NEEDED)
        fingerprint = None if delivery.payload is None else delivery_fingerprint(delivery)
    except Rejected as error:
        raise KeyInvalid(str(error)) from None
    return Message(record_id(look_up_key or ""), fingerprint, delivery.sent_at, aggregate, sequence)
