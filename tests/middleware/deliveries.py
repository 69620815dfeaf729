"""The processes of a consumer as tests need them: one that died, one that took over, and what is in the records."""

import os
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from oncegate import Delivery, DeliveryDecision, Subscription
from oncegate.cache.record import Claim, ClaimRequest, Record, State, StoredResponse
from oncegate.cache.store import Cache
from oncegate.middleware.consumers.addresses import delivery_fingerprint
from oncegate.middleware.rules.keys.key import execution_key, fingerprint, record_key
from testing.records import LONG_MS, read, take_over
from testing.waiting import until

PAYLOAD = b'{"amount": 5}'
PAY = Delivery("key-1", PAYLOAD)
GATEWAYS = fingerprint("POST", b"/payments", b"", PAYLOAD)
"""What the gateway makes of the request that submitted it."""
STATES = frozenset({State.FAILED, State.UNKNOWN})


async def decided(subscription: Subscription, delivery: Delivery = PAY) -> DeliveryDecision:
    """What is decided about ``delivery``; one that would run is given back."""
    begun = await subscription.begin(delivery)
    if begun.run:
        await begun.execution.release()
        return DeliveryDecision.RUN
    return begun.decision


class Records:
    """The records of `PAY`'s key in a test's namespace."""

    def __init__(self, cache: Cache, namespace: str) -> None:
        self.cache = cache
        self.submission = record_key(namespace, "key-1", None)

    def of(self, consumer: str) -> str:
        return execution_key(self.submission, consumer)

    async def execution(self, consumer: str) -> Record:
        return (await read(self.cache, self.of(consumer))).record

    async def state(self, consumer: str) -> State | None:
        found = await self.cache.get(self.of(consumer))
        return found.record.state if found else None

    async def until(self, consumer: str, state: State) -> None:
        """Waits for its execution record to be in this state."""

        async def reached() -> bool:
            return await self.state(consumer) is state

        await until(reached)

    async def kept(self, consumer: str) -> tuple[State, int, bytes | None]:
        """Of its execution record, the state, the number of attempts, and what is kept of the response."""
        record = await self.execution(consumer)
        return record.state, record.attempt, None if record.response is None else record.response.body

    async def die(self, consumer: str) -> None:
        """A process of ``consumer`` begins an attempt and dies: the lease lapses."""
        claim = await self.claim(self.of(consumer), delivery_fingerprint(PAY), lease_ms=1)
        assert claim.won
        await self.until(consumer, State.UNKNOWN)

    async def claim(
        self, key: str, print_: bytes, *, lease_ms: int = LONG_MS, token: bytes = b"", submission: bool = False
    ) -> Claim:
        token = token or os.urandom(16)
        return await self.cache.claim(
            key, ClaimRequest(token, print_, lease_ms, LONG_MS, STATES, submission=submission)
        )

    async def submit(self, state: State | None, *, mark: bool, print_: bytes = GATEWAYS) -> None:
        """The gateway's own record: in flight (``None``) or as ``state``, marked as a submission or executed at once."""
        token = os.urandom(16)
        assert (await self.claim(self.submission, print_, token=token, submission=mark)).won
        if state is not None:
            response = StoredResponse(201, (), b"the gateway's", 1) if state is State.SUCCEEDED else None
            outcome = Record(state, token, print_, 1, response, submission=mark)
            assert await self.cache.complete(self.submission, outcome, ttl_ms=LONG_MS)


def taking_over(key: str) -> Callable[[Cache], Coroutine[Any, Any, None]]:
    """Another process of the consumer takes the command over, as soon as its lease has lapsed."""
    return partial(take_over, key=key)
