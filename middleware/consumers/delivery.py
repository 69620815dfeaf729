"""A delivery, the decisions about it with the action that each means for the broker, and a subscription's settings."""

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple, Self
from uuid import UUID

from pydantic import Field, model_validator

from oncegate.cache.record import LAST_INSTANT_MS
from oncegate.middleware.rules.policy import Policy, compile_policy
from oncegate.middleware.rules.setting_types import NAME, Bytes, OnCacheDown, OnMismatch, Seconds
from oncegate.middleware.rules.settings import IdempotencySettings
from oncegate.middleware.rules.strict_settings import StrictSettings

CONSUMER = re.compile(NAME)
"""The name of a consumer: explicit, and the same for as long as its records live."""

MOST_CHARACTERS = 128
"""The most that logs and dead letters show of a message's id."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a message. Only ``key`` and ``payload`` matter for most; the rest is what the gateway's stream brings.

    - ``key``: the idempotency key, ``None`` where the message has none. It is text; bytes are taken as UTF-8, and an integer or
      a UUID by its spelling, so that ``7`` and ``"7"`` are one key.
    - ``payload``: compared by its bytes, text by its UTF-8, anything else by its JSON form with sorted members, as a command of
      `CommandProcessor` is.
    - ``message_id``: the broker's, for logs and dead letters; the key only where ``on_missing_key = "message_id"``.
    - ``record``: the id, ``k:s``, of a command that came through the gateway. Without it the id is made of ``key`` and
      ``caller``.
    - ``caller``: each has keys of its own, as in `CommandProcessor.process`.
    - ``fingerprint``: the gateway's, 16 bytes; without it, one is made of ``payload``. What the gateway did under the key
      itself counts where its record has this fingerprint.
    - ``attempts_before``: attempts that don't count any more, because an operator retried the command.
    - ``correlation``: the id of what the message is a part of, for logs and dead letters.
    - ``sent_at``: when the broker got it, with a time zone, or ``ValueError`` is raised; for `oncegate.sql.Inbox`, which has
      forgotten what is too old.
    - ``aggregate``, ``sequence``: the id of what the message is about, and its number among the messages about that, for an
      inbox that keeps their order.
    - ``traceparent``: the place in a trace at which it was sent (W3C Trace Context).

    A key or payload of another kind is not refused here: a message may bring anything, and the decision about it is
    ``REJECTED``. What must not be logged is not in its ``repr``.
    """

    key: str | bytes | int | UUID | None = field(repr=False)
    payload: Any = field(default=b"", repr=False)
    message_id: str | bytes | int | UUID = field(default="", repr=False)
    record: str = ""
    caller: str | bytes | int | UUID = field(default="", repr=False)
    fingerprint: bytes | None = None
    attempts_before: int = 0
    correlation: str | bytes | int | UUID = ""
    sent_at: datetime | None = None
    aggregate: str = field(default="", repr=False)
    sequence: int | None = None
    traceparent: str = ""

    def __post_init__(self) -> None:
        if self.sent_at is not None and not isinstance(self.sent_at, datetime):
            raise TypeError(f"sent_at is a {type(self.sent_at).__qualname__}: give a datetime, with its time zone")
        if self.sent_at is not None and self.sent_at.tzinfo is None:
            raise ValueError("sent_at has no time zone: give one, as datetime.now(UTC) has it")


def broker_time(milliseconds: int | None) -> datetime | None:
    """A broker's time of a message, in ms since 1970; ``None`` where it has none, or one that is no time."""
    if milliseconds is None or not 0 < milliseconds <= LAST_INSTANT_MS:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


class Origin(NamedTuple):
    """The ids that name a message beside its record, in logs and dead letters: the broker's and the correlation id.

    Both come from outside: on one line, in ASCII, short. Empty where there is none, or where it is the key, which no log shows.
    """

    message_id: str = ""
    correlation: str = ""

    @property
    def line(self) -> str:
        """The ids as they stand behind the record's id in a line of the log."""
        message = f", message {self.message_id}" if self.message_id else ""
        return message + (f", correlation {self.correlation}" if self.correlation else "")


def origin_of(delivery: Delivery) -> Origin:
    """The ids of a delivery's message. Raises nothing, whatever the delivery holds."""
    key, message, correlation = (_shown(each) for each in (delivery.key, delivery.message_id, delivery.correlation))
    return Origin("" if message == key else message, "" if correlation == key else correlation)


def _shown(identifier: object) -> str:
    if isinstance(identifier, bytes | bytearray):
        text = bytes(identifier[:MOST_CHARACTERS]).decode("utf-8", "backslashreplace")
    elif isinstance(identifier, str | int | UUID):
        try:
            text = str(identifier)
        except ValueError:  # an integer of thousands of digits
            return ""
    else:
        return ""
    return text[:MOST_CHARACTERS].encode("unicode_escape").decode("ascii")


class Action(enum.StrEnum):
    """A broker's next step with a delivery."""

    RUN = "run"
    """Nothing yet: execute the command first."""
    ACKNOWLEDGE = "acknowledge"
    """The command is done: never deliver it again."""
    REDELIVER = "redeliver"
    """Don't acknowledge: deliver it again, later."""
    DEAD_LETTER = "dead-letter"
    """Put it aside for an operator, and don't deliver it again by itself."""


class DeliveryDecision(enum.StrEnum):
    """The decision about a delivery; ``action`` is what that means for the broker."""

    _value_: str
    action: Action
    """The action that this means for the broker."""

    def __new__(cls, value: str, action: Action) -> Self:
        """A member: its value, and its action."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.action = action
        return member

    RUN = "run", Action.RUN
    """This delivery is to be executed, now and here."""
    DUPLICATE = "duplicate", Action.ACKNOWLEDGE
    """The command was processed before."""
    IN_FLIGHT = "in-flight", Action.REDELIVER
    """Somebody else is executing the command."""
    MISMATCH = "key-reused", Action.DEAD_LETTER
    """The key was used for another payload: this one is never executed."""
    EXHAUSTED = "exhausted", Action.DEAD_LETTER
    """No attempt is left."""
    REJECTED = "rejected", Action.DEAD_LETTER
    """The key is invalid, or there is none and the policy is to reject."""
    UNAVAILABLE = "unavailable", Action.REDELIVER
    """The cache does not answer, or too many attempts are in flight here. It does not count as an attempt."""
    UNCHECKED = "unchecked", Action.DEAD_LETTER
    """The cache does not answer, and the policy is to dead-letter."""
    UNREADABLE = "record-unreadable", Action.DEAD_LETTER
    """A record of the command is damaged, or of a newer version."""


class SubscriptionSettings(StrictSettings):
    """A consumer's rules for its deliveries. Times are in seconds, sizes in bytes; wrong values fail at construction."""

    lease: Seconds = Field(
        default=30, description="how long an attempt's process may be silent; then the outcome is unknown"
    )
    heartbeat: Seconds | None = Field(
        default=None, description="seconds between renewals of the lease; by default a third of it"
    )
    ttl: Seconds = Field(default=86400, description="how long every outcome is kept, and with it the count of attempts")
    max_attempts: Annotated[int, Field(ge=0)] = Field(
        default=5, description="attempts at a command before it is dead; 0: no limit"
    )
    attempt_timeout: Seconds = Field(default=900, description="seconds for the handler; then the outcome is unknown")
    record_timeout: Seconds = Field(default=30, description="seconds to wait until the cache has taken an outcome")
    max_in_flight: Annotated[int, Field(ge=1)] = Field(
        default=1000, description="attempts at once; further deliveries are redelivered"
    )
    max_result: Bytes = Field(
        default=1048576, description="bytes of a result; of a larger one only the success is recorded"
    )
    on_cache_down: OnCacheDown | Literal["dead_letter"] = Field(
        default="fail_closed",
        description="while the cache can't be reached: redeliver later, execute unprotected, or dead-letter",
    )
    on_missing_key: Literal["run", "reject", "message_id"] = Field(
        default="run",
        description="a delivery without a key: execute unprotected, dead-letter, or take the broker's message id",
    )
    on_mismatch: OnMismatch = Field(
        default="reject", description="another payload under a used key: dead-letter, or warn and take it for the same"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "SubscriptionSettings":
        if self.heartbeat is not None and self.heartbeat > self.lease / 2:
            raise ValueError("heartbeat must be at most half of lease")
        return self

    def policy(self, consumer: str, process: str = "") -> Policy:
        """These settings as a policy for claim, gate and attempt; ``process`` stands for the host's name in records."""
        rules = IdempotencySettings(
            ttl=self.ttl,
            error_ttl=self.ttl,
            lease=self.lease,
            on_error="retry",
            on_unknown="retry",
            on_cache_down="fail_open" if self.on_cache_down == "fail_open" else "fail_closed",
            attempt_timeout=self.attempt_timeout,
        )
        heartbeat = self.lease / 3 if self.heartbeat is None else self.heartbeat
        return replace(compile_policy(rules), route=consumer, heartbeat=heartbeat, process=process)


def check_names(consumer: str, aliases: Sequence[str]) -> None:
    """Raises ``TypeError`` and ``ValueError`` for what are no names of a consumer, its own and its former ones."""
    if isinstance(aliases, str):
        raise TypeError("aliases is a str: give a list of names")
    for name in (consumer, *aliases):
        if not CONSUMER.fullmatch(name):
            raise ValueError(f"a consumer's name has 1 to 64 letters, digits, '.', '_' and '-', not {name!r}")
    if consumer in aliases or len(set(aliases)) != len(aliases):
        raise ValueError("aliases are former names of the consumer, each given once")
