"""The handler of `loadtests.runs.inbox`, and its consumer of RabbitMQ: it adds an amount to an account, and checks nothing.

    python -m loadtests.runs.inbox_handler RABBITMQ_URL QUEUE

Now and then it kills its own process: in its transaction, or between its COMMIT and whatever records or acknowledges that.
What became of each call is a line of a file.
"""

import asyncio
import json
import os
import random
import signal
import sys
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from aio_pika.abc import AbstractIncomingMessage
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from loadtests import rabbit
from oncegate import Delivery, Subscription, SubscriptionSettings
from oncegate.middleware.consumers.begun import Begun
from oncegate.sql import Inbox

DATABASE, OUTCOMES, DIES, RECORDS = "RUN_DATABASE", "RUN_OUTCOMES", "RUN_DIES_ONE_IN", "RUN_RECORDS"
"""The variables that name the database and the file, say in how many calls it dies once (0: never), and name the hook's cache."""
EXECUTED, SKIPPED, DIED_BEFORE, DIED_AFTER = "executed", "skipped", "died before COMMIT", "died after COMMIT"
EFFECT = text("UPDATE account SET balance = balance + :amount WHERE id = :account")
MAX_ATTEMPTS = 1000
"""Kills are no fault of the message's."""
PREFETCH = 10
LEASE = 3.0

billing = Inbox("billing")
_executed: ContextVar[list[bool]] = ContextVar("executed")


@cache
def _sessions() -> async_sessionmaker[AsyncSession]:
    return async_sessionmaker(create_async_engine(os.environ[DATABASE], pool_size=PREFETCH))


def _note(outcome: str) -> None:
    with Path(os.environ[OUTCOMES]).open("a") as outcomes:
        outcomes.write(f"{outcome}\n")


def _die_now_and_then(outcome: str) -> None:
    one_in = int(os.environ.get(DIES, "0"))
    if one_in and random.randrange(one_in) == 0:
        _note(outcome)
        os.kill(os.getpid(), signal.SIGKILL)


async def _add(payment: dict[str, Any], session: AsyncSession) -> dict[str, Any]:
    _executed.get().append(True)
    await session.execute(EFFECT, payment)
    _die_now_and_then(DIED_BEFORE)
    return {"added": payment["amount"]}


@cache
def _add_once() -> Any:
    return billing.transaction(_sessions())(_add)


async def pay(payment: dict[str, Any]) -> Any:
    """Add the payment's amount to its account, in the inbox's transaction."""
    executed: list[bool] = []
    _executed.set(executed)
    result = await _add_once()(payment)
    if result != {"added": payment["amount"]}:
        raise RuntimeError(f"another result was kept: {result}")
    _die_now_and_then(DIED_AFTER)
    _note(EXECUTED if executed else SKIPPED)
    return result


# -- the consumer of RabbitMQ -----------------------------------------------------------------------------------------


async def consume(url: str, name: str) -> None:
    """Until SIGTERM. Its hook's records are in memory, and gone with the process, where no other cache is named."""
    settings = SubscriptionSettings(max_attempts=MAX_ATTEMPTS, lease=LEASE)
    subscription = Subscription("billing", cache=os.environ.get(RECORDS, "memory://"), settings=settings)

    async def execute(message: AbstractIncomingMessage) -> Begun:
        key = str(message.headers["Idempotency-Key"])
        return await subscription.execute(Delivery(key, message.body), pay, json.loads(message.body))

    await rabbit.consume(url, name, subscription, execute, prefetch=PREFETCH)


if __name__ == "__main__":
    asyncio.run(consume(*sys.argv[1:]))
