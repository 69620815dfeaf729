"""The consumer of `loadtests.order_run`: it adds deltas to accounts under an inbox that keeps their order, and checks nothing.

    python -m loadtests.order_handler RABBITMQ_URL QUEUE DATABASE DIES_ONE_IN

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

import aio_pika
from aio_pika.abc import AbstractIncomingMessage
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from oncegate import Action, Delivery, Subscription, SubscriptionSettings
from oncegate.middleware.consumers.executing import current
from oncegate.sql import Inbox

PREFETCH = 32
PAUSE = 0.2
"""Seconds until a message is given back that is to be delivered again."""
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
    ended, one_in = asyncio.Event(), int(dies_one_in)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)

    def die_now_and_then(*_: object) -> None:
        if one_in and random.randrange(one_in) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    @ledger.transaction(sessions)
    async def book(delta: dict[str, Any], session: AsyncSession) -> None:
        if delta["fails"] and current()[0].attempt == 1:
            raise ValueError("at first")
        await session.execute(EFFECT, {name: delta[name] for name in ("account", "number", "amount")})
        die_now_and_then()

    async def on_message(message: AbstractIncomingMessage) -> None:
        delta = json.loads(message.body)
        account, number = f"account-{delta['account']}", delta["number"]
        delivery = Delivery(f"{account}-{number}", message.body, aggregate=account, sequence=number)
        begun = await subscription.execute(delivery, book, delta)
        if begun.action is Action.ACKNOWLEDGE:
            await message.ack()
        elif begun.action is Action.DEAD_LETTER:
            await message.reject()
        else:
            await asyncio.sleep(PAUSE)
            await message.nack()

    if one_in:
        event.listen(Session, "after_commit", die_now_and_then)
    async with await aio_pika.connect(url) as connection, ledger.following(every=1.0):
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.get_queue(name)
        tag = await queue.consume(on_message)
        await ended.wait()
        await queue.cancel(tag)
        await subscription.drain()


if __name__ == "__main__":
    asyncio.run(consume(*sys.argv[1:]))
