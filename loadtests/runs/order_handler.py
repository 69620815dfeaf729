"""The consumer of `loadtests.runs.order`: it adds deltas to accounts under an inbox that keeps their order, and checks nothing.

    python -m loadtests.runs.order_handler RABBITMQ_URL QUEUE DATABASE DIES_ONE_IN

Some events fail at their first attempt. Now and then it kills its own process: in its transaction, or right behind a COMMIT, so
between a number and what is parked behind it, or between parking and the acknowledgement.
"""

import asyncio
import json
import os
import random
import signal
import sys
from typing import Any

from aio_pika.abc import AbstractIncomingMessage
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from loadtests import rabbit
from oncegate import Delivery, Subscription, SubscriptionSettings
from oncegate.middleware.consumers.begun import Begun
from oncegate.middleware.consumers.handlers.handling import current
from oncegate.sql import Inbox

PREFETCH = 32
EFFECT = text(
    "UPDATE account SET balance = balance + :amount, last = :number,"
    " inversions = inversions + CASE WHEN last = :number - 1 THEN 0 ELSE 1 END WHERE id = :account"
)
"""An inversion is a number that is not the one behind the account's last."""


async def consume(url: str, name: str, database: str, dies_one_in: str) -> None:
    """Until SIGTERM. Its hook's records are in memory, and gone with the process."""
    ledger = Inbox("ledger", order="contiguous", max_attempts=1000)
    sessions = async_sessionmaker(create_async_engine(database, pool_size=PREFETCH // 2, max_overflow=PREFETCH))
    settings = SubscriptionSettings(max_attempts=1000)
    subscription = Subscription("ledger", cache="memory://", settings=settings)
    one_in = int(dies_one_in)

    def die_now_and_then(*_: object) -> None:
        if one_in and random.randrange(one_in) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    @ledger.transaction(sessions)
    async def book(delta: dict[str, Any], session: AsyncSession) -> None:
        if delta["fails"] and current()[0].attempt == 1:
            raise ValueError("at first")
        await session.execute(EFFECT, {name: delta[name] for name in ("account", "number", "amount")})
        die_now_and_then()

    async def execute(message: AbstractIncomingMessage) -> Begun:
        delta = json.loads(message.body)
        account, number = f"account-{delta['account']}", delta["number"]
        delivery = Delivery(f"{account}-{number}", message.body, aggregate=account, sequence=number)
        return await subscription.execute(delivery, book, delta)

    if one_in:
        event.listen(Session, "after_commit", die_now_and_then)
    async with ledger.following(every=1.0):
        await rabbit.consume(url, name, subscription, execute, prefetch=PREFETCH)


if __name__ == "__main__":
    asyncio.run(consume(*sys.argv[1:]))
