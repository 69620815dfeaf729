"""A consumer of batches, as a process that is killed half way through one.

python -m tests.sql.batches URL FIRST LAST [--die-after N]

Its messages are numbers, of which POISON can't be processed; their keys are modulo KEYS, so that some stand in the batch twice.
It dies after the N-th COMMIT, and prints how many messages it may acknowledge and which ones are dead.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from oncegate import Action, Begun, Delivery, MemoryCache, Subscription, SubscriptionSettings
from oncegate.sql import Inbox
from tests.sql.places import EFFECT, AsyncPlace, SyncPlace

KEYS = 1000
POISON = 321
PATIENT = 60.0
billing = Inbox("billing", wait_timeout=PATIENT)


def handler(place: Any) -> Callable[..., Any]:
    """Writes all effects of a batch, in a session of the place's kind."""

    def effects(numbers: list[int]) -> list[dict[str, str]]:
        return [{"what": str(number % KEYS)} for number in numbers]

    def check(numbers: list[int]) -> list[int]:
        if POISON in numbers:
            raise ValueError(POISON)
        return numbers

    if isinstance(place, AsyncPlace):

        @billing.transaction(async_sessionmaker(place.engine), batch=True)
        async def pay_with_asyncio(numbers: list[int], session: AsyncSession) -> list[int]:
            await session.execute(EFFECT, effects(numbers))
            return check(numbers)

        return pay_with_asyncio

    @billing.transaction(sessionmaker(place.engine), batch=True)
    def pay(numbers: list[int], session: Session) -> list[int]:
        session.execute(EFFECT, effects(numbers))
        return check(numbers)

    return pay


async def consume(pay: Callable[..., Any], numbers: list[int]) -> list[Begun]:
    """What came of a batch of messages; the hook remembers nothing of an earlier one."""
    settings = SubscriptionSettings(max_attempts=1)
    subscription = Subscription("billing", cache=MemoryCache(), settings=settings)
    deliveries = [Delivery(str(number % KEYS), str(number % KEYS)) for number in numbers]
    done = await subscription.execute_many(deliveries, pay, numbers)
    await subscription.drain()
    return done


async def consume_pooled(url: str, numbers: list[int]) -> list[Begun]:
    """The same by connections that are used again."""
    place: Any = (AsyncPlace if "asyncpg" in url or "aiosqlite" in url else SyncPlace)(url, poolclass=None)
    done = await consume(handler(place), numbers)
    disposed = place.engine.dispose()
    if isinstance(place, AsyncPlace):
        await disposed
    return done


def main(url: str, first: str, last: str, *options: str) -> None:
    if options:
        commits = iter(range(int(options[1])))
        event.listen(Session, "after_commit", lambda _: None if next(commits, -1) >= 0 else die())
    done = asyncio.run(consume_pooled(url, list(range(int(first), int(last)))))
    acknowledged = sum(begun.action is Action.ACKNOWLEDGE for begun in done)
    dead = [int(first) + number for number, begun in enumerate(done) if begun.action is Action.DEAD_LETTER]
    print(json.dumps([acknowledged, dead]))  # noqa: T201  # read by the test


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
