"""What an inbox is given: names, sessions, messages."""

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from oncegate.middleware.consumers.delivery import (
    Delivery,
    Rejected,
    SubscriptionSettings,
    command_key,
    delivery_fingerprint,
)
from oncegate.middleware.rules.digests import Digests
from oncegate.middleware.rules.errors import KeyInvalid
from oncegate.middleware.rules.key import record_id
from oncegate.middleware.rules.key_text import KeyText
from oncegate.sql.marking.statements import Message
from oncegate.sql.order.numbers import MOST

AnyAsync = AsyncSession | AsyncConnection
AnySync = Session | Connection

_KEY_NEEDED = SubscriptionSettings(on_missing_key="reject")


def check_choices(on_mismatch: str, on_forgotten: str) -> None:
    """Raises ``ValueError`` for what is no choice of theirs."""
    if on_mismatch not in ("reject", "warn"):
        raise ValueError(f"on_mismatch is 'reject' or 'warn', not {on_mismatch!r}")
    if on_forgotten not in ("reject", "run"):
        raise ValueError(f"on_forgotten is 'reject' or 'run', not {on_forgotten!r}")


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


def identified(delivery: Delivery, digests: Digests, aggregate: KeyText = "", sequence: int | None = None) -> Message:
    """The message with the record's id, and with the payload's fingerprint, as the hook makes them; by each secret in use.

    Raises `KeyInvalid`.
    """
    record, fingerprint = record_of(delivery, digests), _fingerprint(delivery, digests)
    other = None
    if (former := digests.former) is not None:
        other = record_of(delivery, former), _fingerprint(delivery, former)
    return Message(record, fingerprint, delivery.sent_at, aggregate, sequence, other)


def record_of(delivery: Delivery, digests: Digests) -> str:
    """The id of a message that has a key, or brings an id. Raises `KeyInvalid`."""
    try:
        return record_id(command_key("inbox", delivery, _KEY_NEEDED, digests) or "")
    except Rejected as error:
        raise KeyInvalid(str(error)) from None


def _fingerprint(delivery: Delivery, digests: Digests) -> bytes | None:
    try:
        return None if delivery.payload is None else delivery_fingerprint(delivery, digests)
    except Rejected as error:
        raise KeyInvalid(str(error)) from None
