"""Brokers of a test's own, which keep what they have confirmed."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from oncegate.sql import Outbox, OutboxMessage
from tests.sql.places import AsyncPlace, Place, SyncPlace

orders = Outbox("orders")


class Sink:
    """Confirms, unless ``refuses`` says no, in an order of its own within a batch."""

    def __init__(self) -> None:
        self.arrived: list[OutboxMessage] = []
        self.refuses: Callable[[OutboxMessage], bool] = lambda _: False
        self.raises: type[Exception] = ValueError
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    async def __call__(self, message: OutboxMessage) -> None:
        await asyncio.sleep(0)
        self.waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        if self.refuses(message):
            raise self.raises("no")
        self.arrived.append(message)

    def numbers(self) -> dict[str, list[int | None]]:
        """Those that arrived, by aggregate."""
        found: defaultdict[str, list[int | None]] = defaultdict(list)
        for message in self.arrived:
            found[message.aggregate].append(message.sequence)
        return dict(found)


def added(place: Place, *aggregates: str | None) -> None:
    """One message each, in one transaction."""

    def add(session: Session) -> None:
        for aggregate in aggregates:
            orders.add(session, "payments", b"1", aggregate=aggregate)

    place.in_a_thread(lambda: place.run(add))


def waiting(place: Place) -> list[tuple[Any, ...]]:
    """Aggregate and number of what is not removed."""
    query = "SELECT aggregate_id, sequence FROM oncegate_outbox ORDER BY id"
    return [tuple(row) for row in place.in_a_thread(lambda: place.execute(query))]


def engine_of(place: Place) -> Any:
    """An engine of the place's kind, for this event loop."""
    assert isinstance(place, SyncPlace | AsyncPlace)
    return create_async_engine(place.url) if isinstance(place, AsyncPlace) else place.engine


async def ended(engine: Any) -> None:
    if isinstance(engine, AsyncEngine):
        await engine.dispose()
