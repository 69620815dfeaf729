"""A consumer of batches, as a process that is killed half way through one.

python -m tests.sql.handlers.batches URL COUNT N

Its messages are numbers, of which POISON can't be processed; their keys are modulo KEYS, so that some stand in the batch twice.
It dies after the N-th COMMIT.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session

from oncegate import Begun, Delivery, MemoryCache, Subscription, SubscriptionSettings
from oncegate.sql import Inbox
from tests.sql.places import EFFECT, Place, done, place_of

KEYS = 1000
POISON = 121
PATIENT = 60.0
billing = Inbox("billing", wait_timeout=PATIENT)


def handler(place: Place) -> Callable[..., Any]:
    """Writes all effects of a batch, in a session of the place's kind."""

    def pay(session: Session, numbers: list[int]) -> list[int]:
        session.execute(EFFECT, [{"what": str(number % KEYS)} for number in numbers])
        if POISON in numbers:
            raise ValueError(POISON)
        return numbers

    return place.handler(billing, pay, batch=True)


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
    place = place_of(url, poolclass=None)
    came_of = await consume(handler(place), numbers)
    await done(place.engine.dispose())
    return came_of


def main(url: str, count: str, commits: str) -> None:
    left = iter(range(int(commits)))
    event.listen(Session, "after_commit", lambda _: None if next(left, -1) >= 0 else die())
    asyncio.run(consume_pooled(url, list(range(int(count)))))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
