"""Under FastStream the pause before a delivery is sent back grows while deliveries are sent back one after the other.

Rules of docs/contract.md: R12.37.
"""

from typing import Any
from uuid import uuid4

import pytest
from faststream.middlewares import AckPolicy
from faststream.rabbit import RabbitBroker, TestRabbitBroker

from oncegate import NotProcessed, Subscription
from oncegate.cache.backoff import Backoff
from oncegate.faststream import SubscriptionMiddleware


class NoPause:
    """Pauses for nothing, and notes after how many tries in vain it was to pause."""

    def __init__(self) -> None:
        self.tries: list[int] = []

    def pause(self, tries: int) -> float:
        self.tries.append(tries)
        return 0.0


async def test_it_grows_with_what_is_sent_back_and_ends_with_what_is_processed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hook = SubscriptionMiddleware(Subscription("billing", cache="memory://"))
    monkeypatch.setattr(hook, "pauses", pauses := NoPause())
    assert isinstance(SubscriptionMiddleware(Subscription("billing", cache="memory://")).pauses, Backoff)
    broker = RabbitBroker(middlewares=[hook])
    is_away = True

    @broker.subscriber("payments", ack_policy=AckPolicy.NACK_ON_ERROR)
    async def pay(command: dict[str, Any]) -> None:
        if is_away:
            raise NotProcessed("the database is away")

    async with TestRabbitBroker(broker):
        for number in range(7):
            is_away = number != 4
            await broker.publish({}, "payments", headers={"Idempotency-Key": uuid4().hex})
    assert pauses.tries == [2, 3, 4, 5, 2, 3]
    assert "Traceback" not in caplog.text
