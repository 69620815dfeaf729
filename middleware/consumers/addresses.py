"""Where the records of a message are, and its payload's fingerprint: by the first secret, and by the other one of two."""

import asyncio
from collections.abc import Sequence
from typing import Any

from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.record import FINGERPRINT_BYTES, Claim
from oncegate.cache.store import Cache
from oncegate.middleware.admission.request import Address
from oncegate.middleware.consumers.delivery import Delivery, SubscriptionSettings
from oncegate.middleware.outcome.results import command_form, octets
from oncegate.middleware.rules.errors import KeyInvalid
from oncegate.middleware.rules.keys.digests import UNKEYED, Digests
from oncegate.middleware.rules.keys.key import (
    RECORD_ID,
    caller_scope,
    check_key,
    execution_key,
    fingerprint,
    key_of_id,
    key_text,
    record_key,
)


class Rejected(Exception):
    """A delivery that can't be enforced as the settings want it. The text says why, without the key."""


class Addresses:
    """The addresses of a `Subscription`'s records; ``names`` are the consumer's and its aliases."""

    def __init__(
        self, cache: Cache, namespace: str, names: Sequence[str], settings: SubscriptionSettings, digests: Digests
    ) -> None:
        self._cache = cache
        self._namespace = namespace
        self._names = names
        self._settings = settings
        self._digests = digests

    def first(self, delivery: Delivery) -> Address | None:
        """The address by the first secret; ``None`` where the message has no key and needs none. Raises `Rejected`."""
        return self._by(delivery, self._digests)

    def other(self, delivery: Delivery) -> Address | None:
        """The address by the other secret; ``None`` where the message brings all that is digested.

        An id that the message brings is the same by both.
        """
        former, is_digested = self._digests.former, not delivery.record or delivery.fingerprint is None
        return self._by(delivery, former) if former is not None and is_digested else None

    def _by(self, delivery: Delivery, digests: Digests) -> Address | None:
        key = command_key(self._namespace, delivery, self._settings, digests)
        return None if key is None else Address(key, delivery_fingerprint(delivery, digests))

    async def is_at(self, other: Address, address: Address, of_gateway: bool) -> bool:
        """Whether what is known of the command is at ``other``, and nothing at ``address``. Raises `CacheError`."""
        if other.key == address.key:  # an id that came with the message
            return False
        try:
            there = await self._is_recorded(other.key, of_gateway)
            return there and not await self._is_recorded(address.key, of_gateway)
        except CacheUnavailable:
            if self._settings.on_cache_down != "fail_open":
                raise
            return False

    async def _is_recorded(self, key: str, of_gateway: bool) -> bool:
        names = [execution_key(key, name) for name in self._names]
        return any(await asyncio.gather(*map(self._cache.peek, [*names, key] if of_gateway else names)))

    async def gateways(self, key: str, of_gateway: bool) -> Claim | None:
        """The gateway's record of a command that came through it, which only the gateway's fingerprint shows.

        A service behind the gateway that publishes a message under its request's key sends a command of its own. If
        that request's record counted for it, the message would be lost before it was ever processed.
        """
        return await self._cache.peek(key) if of_gateway else None


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
