"""Where the records of a message are: by the first secret, and by the other one while two are in use."""

import asyncio
from collections.abc import Sequence

from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.record import Claim
from oncegate.cache.store import Cache
from oncegate.middleware.admission.admission import Address
from oncegate.middleware.consumers.delivery import Delivery, SubscriptionSettings, command_key, delivery_fingerprint
from oncegate.middleware.rules.digests import Digests
from oncegate.middleware.rules.key import execution_key


class Addresses:
    """Those of a `Subscription`, whose ``names`` are the consumer's and its aliases."""

    def __init__(
        self, cache: Cache, namespace: str, names: Sequence[str], settings: SubscriptionSettings, digests: Digests
    ) -> None:
        self._cache = cache
        self._namespace = namespace
        self._names = names
        self._settings = settings
        self._digests = digests

    def first(self, delivery: Delivery) -> Address | None:
        """By the first secret; ``None`` where the message has no key and needs none. Raises `Rejected`."""
        return self._by(delivery, self._digests)

    def other(self, delivery: Delivery) -> Address | None:
        """By the other one. A gateway's command says itself where its record is."""
        former = self._digests.former
        return None if former is None or delivery.record else self._by(delivery, former)

    def _by(self, delivery: Delivery, digests: Digests) -> Address | None:
        key = command_key(self._namespace, delivery, self._settings, digests)
        return None if key is None else Address(key, delivery_fingerprint(delivery, digests))

    async def is_at(self, other: Address, address: Address, of_gateway: bool) -> bool:
        """Whether what is known of the command is at ``other``, and nothing at ``address``. Raises `CacheError`."""
        try:
            there = await self._is_recorded(other.key, of_gateway)
            return there and not await self._is_recorded(address.key, of_gateway)
        except CacheUnavailable:
            if self._settings.on_cache_down != "run":
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
