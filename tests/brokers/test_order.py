"""FastStream under an inbox that keeps an order: the aggregate and the number come as headers, whatever order they come in.

Rules of docs/contract.md: R12.17.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import NullPool, create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from oncegate import Subscription
from oncegate.faststream import SubscriptionMiddleware
from oncegate.sql import Inbox
from testing.waiting import until
from tests.brokers.benches import KEY, RabbitBench
from tests.brokers.conftest import Consumers, settled
from tests.sql.places import EFFECT, SyncPlace


@pytest.fixture
async def bench(rabbit_broker_url: str) -> AsyncIterator[RabbitBench]:
    bench = RabbitBench(rabbit_broker_url)
    await bench.open()
    yield bench
    await bench.clear()
    await bench.close()


async def publish(bench: RabbitBench, *numbers: object) -> None:
    for number in numbers:
        headers = {KEY: f"k{number}-{uuid4().hex}", "Oncegate-Aggregate": "caf\u00e9", "oncegate-sequence": str(number)}
        await bench.publish({"key": f"{number}"}, headers)


def applied(place: SyncPlace) -> list[str]:
    return [row.what for row in place.execute("SELECT what FROM effects ORDER BY ctid")]


def applying(place: SyncPlace) -> Callable[..., Any]:
    """A plain handler that parks what comes early, and notes what it applies."""

    @Inbox("ledger", order="contiguous").transaction(sessionmaker(create_engine(place.url, poolclass=NullPool)))
    def handle(body: dict[str, Any], session: Session) -> None:
        session.execute(EFFECT, {"what": body["key"]})

    return handle


async def test_a_middleware_that_could_not_park_is_refused_at_its_making() -> None:
    """Eleven early messages would fill a window of ten, and what they wait for would never come."""
    engine = create_async_engine("sqlite+aiosqlite://")
    subscription = Subscription("ledger", cache="memory://")
    for right in (Inbox("ledger"), Inbox("ledger", order="latest")):
        SubscriptionMiddleware(subscription, inbox=right, sessions=async_sessionmaker(engine))
    with pytest.raises(ValueError, match="@inbox"):
        SubscriptionMiddleware(
            subscription, inbox=Inbox("ledger", order="contiguous"), sessions=async_sessionmaker(engine)
        )
    await engine.dispose()


async def test_more_early_messages_than_the_window_takes_stop_nobody(
    bench: RabbitBench, consumers: Consumers, place: SyncPlace
) -> None:
    await consumers.start(applying(place))
    await publish(bench, *range(40, 1, -1))
    await publish(bench, 1)
    await until(lambda: len(applied(place)) == 40)
    assert applied(place) == [str(number) for number in range(1, 41)]
    await settled(bench)


async def test_a_plain_function_s_are_parked_and_what_is_no_number_is_a_dead_letter(
    bench: RabbitBench, consumers: Consumers, place: SyncPlace
) -> None:
    await consumers.start(applying(place))
    await publish(bench, 3, 2, "1.5")

    async def parked() -> bool:
        both = len(place.execute("SELECT 1 FROM oncegate_parked")) == 2
        return both and await bench.dead() == [{"key": "1.5"}]

    await until(parked)
    await publish(bench, 1)
    await until(lambda: len(applied(place)) == 3)
    assert applied(place) == ["1", "2", "3"]
    await settled(bench)
