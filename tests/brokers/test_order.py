"""FastStream under an inbox that keeps an order: the aggregate and the number come as headers, whatever order they come in.

Rules of docs/contract.md: R12.17.
"""

from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import uuid4

import pytest
from faststream import Context
from sqlalchemy import NullPool, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

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


async def test_what_is_early_is_delivered_again_until_its_turn_has_come(
    bench: RabbitBench, consumers: Consumers, place: SyncPlace
) -> None:
    engine = create_async_engine(place.url.replace("psycopg", "asyncpg"), poolclass=NullPool)

    async def handle(body: dict[str, Any], session: Annotated[AsyncSession, Context("session")]) -> None:
        await session.execute(EFFECT, {"what": body["key"]})

    ledger = Inbox("ledger", order="contiguous")
    await consumers.start(handle, inbox=ledger, sessions=async_sessionmaker(engine), max_attempts=1)
    await publish(bench, 3, 2)
    await publish(bench, 1)
    await until(lambda: len(applied(place)) == 3)
    assert applied(place) == ["1", "2", "3"]
    await settled(bench)
    await engine.dispose()


async def test_a_plain_function_s_are_parked_and_what_is_no_number_is_a_dead_letter(
    bench: RabbitBench, consumers: Consumers, place: SyncPlace
) -> None:
    engine = create_engine(place.url, poolclass=NullPool)
    ledger = Inbox("ledger", order="contiguous")

    @ledger.transaction(sessionmaker(engine))
    def handle(body: dict[str, Any], session: Session) -> None:
        session.execute(EFFECT, {"what": body["key"]})

    await consumers.start(handle)
    await publish(bench, 3, 2, "1.5")

    async def parked() -> bool:
        both = len(place.execute("SELECT 1 FROM oncegate_parked")) == 2
        return both and await bench.dead() == [{"key": "1.5"}]

    await until(parked)
    await publish(bench, 1)
    await until(lambda: len(applied(place)) == 3)
    assert applied(place) == ["1", "2", "3"]
    await settled(bench)
