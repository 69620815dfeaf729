"""Messages about aggregates that come in any order: consumed, failed, swept, and what of them is parked."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import Session

from oncegate import Begun, Delivery, MemoryCache, NotRetryable, Subscription
from oncegate.middleware.consumers.delivery import SubscriptionSettings
from oncegate.sql import Inbox
from testing.waiting import until as wait_for
from tests.sql.held import PATIENT, swept
from tests.sql.places import EFFECT, Place

BOTH = pytest.mark.parametrize("place", ["asyncpg", "pysqlite"], indirect=True)
OTHERS = pytest.mark.parametrize("place", ["psycopg", "aiosqlite"], indirect=True)


def inbox(**options: Any) -> Inbox:
    return Inbox("ledger", order="contiguous", wait_timeout=PATIENT, **options)


def applies(session: Session, payload: Any) -> Any:
    session.execute(EFFECT, {"what": payload})
    return payload


def failing(*payloads: str) -> tuple[set[str], Callable[[Session, Any], Any]]:
    """Payloads for which the handler fails, and that handler."""
    broken = set(payloads)

    def work(session: Session, payload: Any) -> Any:
        if payload in broken:
            raise NotRetryable("no such account")
        return applies(session, payload)

    return broken, work


def deliveries(*numbers: int, aggregate: str = "a") -> list[Delivery]:
    return [Delivery(f"{aggregate}-{each}", b"p", aggregate=aggregate, sequence=each) for each in numbers]


def consume(handler: Callable[..., Any], *which: Delivery, max_attempts: int = 5) -> list[Begun]:
    """What the hook makes of deliveries, in their order; it has no records of an earlier process."""

    async def run() -> list[Begun]:
        settings = SubscriptionSettings(max_attempts=max_attempts)
        subscription = Subscription("ledger", cache=MemoryCache(), settings=settings)
        done = [await subscription.execute(each, handler, f"{each.aggregate}{each.sequence:03}") for each in which]
        await subscription.drain()
        return done

    return asyncio.run(run())


def sweep(ledger: Inbox, until: Callable[[], Any]) -> None:
    """Sweep again and again, as `Inbox.following` does, until that has come true."""

    async def is_there() -> bool:
        await swept(ledger)
        return bool(await asyncio.to_thread(until))

    asyncio.run(wait_for(is_there, "swept"))


def parked(place: Place) -> list[int]:
    counted = "(SELECT coalesce(sum(parked), 0) FROM oncegate_order) AS counted"
    found = place.execute(f"SELECT sequence, {counted} FROM oncegate_parked ORDER BY sequence")
    assert all(row.counted == len(found) for row in found)
    return [row.sequence for row in found]
