"""A delivery, the decisions about it with the action that each means for the broker, and a subscription's settings."""

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

from oncegate.cache.record import FINGERPRINT_BYTES
from oncegate.middleware.outcome.results import command_form, octets
from oncegate.middleware.rules.digests import UNKEYED, Digests
from oncegate.middleware.rules.errors import KeyInvalid
from oncegate.middleware.rules.key import RECORD_ID, caller_scope, check_key, fingerprint, key_of_id, record_key
from oncegate.middleware.rules.key_text import key_text
from oncegate.middleware.rules.policy import Policy, compile_policy
from oncegate.middleware.rules.settings import Bytes, IdempotencySettings, Seconds

CONSUMER = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""The name of a consumer: explicit, and the same for as long as its records live."""

_NO_TIME_MS = 253402300800000
"""The year 10000."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a message. Only ``key`` and ``payload`` matter for most; the rest is what the gateway's stream brings.

    ``key`` is the idempotency key, ``None`` where the message has none. It is text; bytes are taken as UTF-8, and an integer or
    a UUID by its spelling, so that ``7`` and ``"7"`` are one key. ``payload`` counts by its bytes, text by its UTF-8, and
    anything else by its JSON form with sorted members, as a command of `CommandProcessor` does. What can't be taken so is not
    refused here: a message may bring anything, and a consumer must not die of it. The decision about it is ``REJECTED``.
    ``message_id`` is the broker's, used as the key only
    where ``on_missing_key = "message_id"``, and beside ``correlation``, the id of what it is a part of, in logs and dead letters.
    ``record`` is the record's id, ``k:s``, of a command that came through the
    gateway; without it, the id is made of ``key`` and ``caller``, which scopes the key as in `CommandProcessor.process`.
    ``fingerprint`` is the gateway's, 16 bytes; without it, one is made of ``payload``. ``attempts_before`` is how many
    attempts don't count any more, because an operator drove the command again. What the gateway itself did under the key
    counts too, where its record has this very ``fingerprint``: then it is of this command. ``sent_at`` is when the broker got
    the message, with its time zone: for `oncegate.sql.Inbox`, which has forgotten what is too old. Raises ``ValueError``
    for one without a zone. ``aggregate`` is the id of what the message is about, and ``sequence`` its number among the messages
    about that: for an inbox that keeps their order.

    What must not be logged is not in its ``repr``.
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

    def __post_init__(self) -> None:
        if self.sent_at is not None and self.sent_at.tzinfo is None:
            raise ValueError("sent_at has no time zone: give one, as datetime.now(UTC) has it")


def instant(milliseconds: int | None) -> datetime | None:
    """A broker's time of a message, in ms since 1970; ``None`` where it has none, or one that is no time."""
    if milliseconds is None or not 0 < milliseconds < _NO_TIME_MS:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def entry_time(entry: bytes) -> datetime | None:
    """When an entry was added to a Redis stream, by its id, unless its producer chose that; ``None`` where it is no time."""
    milliseconds = entry.partition(b"-")[0]
    return instant(int(milliseconds)) if milliseconds.isdigit() else None


class Action(enum.StrEnum):
    """What to do with a delivery at the broker."""

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

    RUN = "run"
    """This delivery is to be executed, now and here."""
    DUPLICATE = "duplicate"
    """The command was processed before."""
    IN_FLIGHT = "in-flight"
    """Somebody else is executing the command."""
    MISMATCH = "key-reused"
    """The key was used for another payload: this one is never executed."""
    EXHAUSTED = "exhausted"
    """No attempt is left."""
    REJECTED = "rejected"
    """The key is invalid, or there is none and the policy is to reject."""
    UNAVAILABLE = "unavailable"
    """The cache does not answer, or too many attempts are in flight here. It does not count as an attempt."""
    UNCHECKED = "unchecked"
    """The cache does not answer, and the policy is to dead-letter."""
    UNREADABLE = "record-unreadable"
    """A record of the command is damaged, or of a newer version."""

    @property
    def action(self) -> Action:
        """The action that this means for the broker."""
        return ACTIONS[self]


ACTIONS = {
    DeliveryDecision.RUN: Action.RUN,
    DeliveryDecision.DUPLICATE: Action.ACKNOWLEDGE,
    DeliveryDecision.IN_FLIGHT: Action.REDELIVER,
    DeliveryDecision.MISMATCH: Action.DEAD_LETTER,
    DeliveryDecision.EXHAUSTED: Action.DEAD_LETTER,
    DeliveryDecision.REJECTED: Action.DEAD_LETTER,
    DeliveryDecision.UNAVAILABLE: Action.REDELIVER,
    DeliveryDecision.UNCHECKED: Action.DEAD_LETTER,
    DeliveryDecision.UNREADABLE: Action.DEAD_LETTER,
}


class SubscriptionSettings(BaseModel):
    """A consumer's rules for its deliveries. Times are in seconds, sizes in bytes; wrong values fail at construction."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lease: Seconds = Field(
        default=30, description="an attempt whose process is silent for this long is of unknown outcome"
    )
    heartbeat: Seconds | None = Field(
        default=None, description="between renewals of the lease; a third of it by default"
    )
    ttl: Seconds = Field(default=86400, description="how long every outcome is kept, and with it the count of attempts")
    max_attempts: Annotated[int, Field(ge=0)] = Field(default=5, description="then the command is dead; 0: no limit")
    timeout: Seconds = Field(default=900, description="for the handler; then the outcome is unknown")
    record_timeout: Seconds = Field(default=30, description="the longest wait until the cache has taken an outcome")
    max_in_flight: Annotated[int, Field(ge=1)] = Field(
        default=1000, description="attempts at once; more are redelivered"
    )
    max_result: Bytes = Field(
        default=1048576, description="a result's size; beyond: the success is recorded without it"
    )
    on_cache_down: Literal["retry", "run", "dead_letter"] = Field(
        default="retry", description="without the cache: redeliver later, execute unprotected, or dead-letter"
    )
    on_missing_key: Literal["run", "reject", "message_id"] = Field(
        default="run", description="without a key: execute unprotected, dead-letter, or take the broker's message id"
    )

    on_mismatch: Literal["reject", "warn"] = Field(
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
            unknown_ttl=self.ttl,
            lease=self.lease,
            on_error="retry",
            on_unknown="retry",
            on_cache_down="fail_open" if self.on_cache_down == "run" else "fail_closed",
            attempt_timeout=self.timeout,
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


class Rejected(Exception):
    """A delivery that can't be enforced as the settings want it. The text says why, without the key."""


def command_key(
    namespace: str, delivery: Delivery, settings: SubscriptionSettings, digests: Digests = UNKEYED
) -> str | None:
    """The look-up key of a delivered command, ``None`` where it has none and needs none. Raises `Rejected`."""
    if delivery.record:
        if not RECORD_ID.fullmatch(_text(delivery.record, "record's id")):
            raise Rejected("The record's id is not one of a gateway's.")
        return key_of_id(namespace, delivery.record)
    if delivery.key is not None:
        return record_key(namespace, _checked(delivery.key, "key"), _scope(delivery), digests)
    if settings.on_missing_key == "run":
        return None
    if settings.on_missing_key == "message_id" and delivery.message_id:
        # A scope of their own: no key that a caller chooses is taken for a broker's id.
        scope = [b"message", *(_scope(delivery) or ())]
        return record_key(namespace, _checked(delivery.message_id, "message's id"), scope, digests)
    raise Rejected("The message has no idempotency key, and the consumer takes none without.")


def delivery_fingerprint(delivery: Delivery, digests: Digests = UNKEYED) -> bytes:
    """The fingerprint of this command's payload. Raises `Rejected` for a payload or a fingerprint that is none."""
    if delivery.fingerprint is None:
        return fingerprint("DELIVERY", b"", b"", _payload(delivery.payload), digests=digests)
    try:
        given = octets(delivery.fingerprint)
    except TypeError:
        given = b""
    if len(given) != FINGERPRINT_BYTES:
        raise Rejected(f"A fingerprint has {FINGERPRINT_BYTES} bytes.")
    return given


def attempts_before(delivery: Delivery) -> int:
    """How many attempts don't count any more. Raises `Rejected` for what is no number of them."""
    before: object = delivery.attempts_before
    if not isinstance(before, int) or before < 0:
        raise Rejected("The attempts before are a number of 0 or more.")
    return before


def _payload(payload: Any) -> bytes:
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        return payload.encode("utf-8", "surrogatepass")
    try:
        return octets(payload)
    except (TypeError, ValueError, BufferError):
        pass  # neither bytes nor a view of some
    try:
        return command_form(payload)
    except Exception:  # noqa: BLE001  # whatever a value's own serializer raises
        raise Rejected(f"The payload, a {type(payload).__name__}, has no JSON form: give bytes.") from None


def _scope(delivery: Delivery) -> list[bytes] | None:
    return caller_scope(_text(delivery.caller, "caller")) if delivery.caller else None


def _checked(key: object, what: str) -> str:
    try:
        return check_key(_text(key, what))
    except KeyInvalid as error:
        raise Rejected(str(error)) from None


def _text(value: object, what: str) -> str:
    """A command's key or a caller's name, as text. Raises `Rejected`, without the value."""
    try:
        return key_text(value, what)
    except KeyInvalid as error:
        raise Rejected(str(error)) from None
