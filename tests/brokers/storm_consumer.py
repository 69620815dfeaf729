"""A consumer of `tests.brokers.test_storm`, in one of FastStream's two forms, under an inbox that keeps an order.

python -m tests.brokers.storm_consumer KIND FORM URL QUEUE REDIS_URL DATABASE PREFETCH

By ``transaction`` it adds each amount, by ``middleware`` it overwrites what is older: an inbox there can't park.
"""

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from typing import Annotated, Any

from faststream import Context
from faststream.middlewares import AckPolicy
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from oncegate import NotRetryable
from oncegate.faststream import SubscriptionMiddleware
from oncegate.middleware.consumers.handlers.handling import current
from oncegate.sql import Inbox
from tests.brokers.consumers import subscription

LEASE = 1.5
PAUSE, MAX_PAUSE = 0.1, 0.5
ACK_WAIT = 1.0
"""Seconds until NATS delivers again what a killed consumer held."""
ADDS = text(
    "UPDATE account SET balance = balance + :amount, last = :number,"
    " inversions = inversions + CASE WHEN last = :number - 1 THEN 0 ELSE 1 END WHERE id = :account"
)
OVERWRITES = text(
    "UPDATE account SET balance = :amount, last = :number,"
    " inversions = inversions + CASE WHEN last < :number THEN 0 ELSE 1 END WHERE id = :account"
)
"""An inversion is a number that comes behind a later one, or with a gap before it."""


async def apply(event: dict[str, Any], session: AsyncSession, effect: Any) -> None:
    if event["poison"] == "for good":
        raise NotRetryable("no such account")
    if event["poison"] == "twice" and current()[0].attempt <= 2:
        raise ValueError("not yet")
    await session.execute(effect, {name: event[name] for name in ("account", "number", "amount")})


def subscribed(kind: str, url: str, name: str, hook: Any, handler: Any, prefetch: int) -> Any:
    """The broker, with a window of ``prefetch`` messages."""
    if kind == "rabbit":
        from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

        dead: Any = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dead"}
        rabbit = RabbitBroker(url, middlewares=[hook], logger=None, default_channel=Channel(prefetch_count=prefetch))
        queue = RabbitQueue(name, durable=True, arguments=dead)
        rabbit.subscriber(queue, ack_policy=AckPolicy.NACK_ON_ERROR)(handler)
        return rabbit
    from faststream.nats import JStream, NatsBroker, PullSub
    from nats.js.api import ConsumerConfig

    broker = NatsBroker(url, middlewares=[hook], logger=None)
    broker.subscriber(
        f"{name}.commands",
        stream=JStream(name),
        durable="consumer",
        pull_sub=PullSub(batch_size=prefetch, timeout=0.2),
        max_workers=prefetch,
        config=ConsumerConfig(ack_wait=ACK_WAIT, max_ack_pending=prefetch),
        ack_policy=AckPolicy.NACK_ON_ERROR,
    )(handler)
    return broker


async def main(kind: str, form: str, url: str, name: str, redis_url: str, database: str, prefetch: str) -> None:
    engine = create_async_engine(database, pool_size=20, max_overflow=40)
    sessions = async_sessionmaker(engine)
    # Kills count as attempts, too, and are many: what is to be given up says so itself.
    one = subscription(redis_url, name, lease=LEASE, max_attempts=1000)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    pauses: dict[str, Any] = {"pause": PAUSE, "max_pause": MAX_PAUSE}
    handler: Any
    async with AsyncExitStack() as stack:
        if form == "transaction":
            ledger = Inbox("ledger", order="contiguous", max_attempts=1000, wait_timeout=60)

            @ledger.transaction(sessions)
            async def add(body: dict[str, Any], session: AsyncSession) -> None:
                await apply(body, session, ADDS)

            handler, hook = add, SubscriptionMiddleware(one, **pauses)
            one.only(add)
            await stack.enter_async_context(ledger.following(every=0.5))
        else:

            async def overwrite(body: dict[str, Any], session: Annotated[AsyncSession, Context()]) -> None:
                await apply(body, session, OVERWRITES)

            inbox = Inbox("ledger", order="latest", wait_timeout=60)
            handler, hook = overwrite, SubscriptionMiddleware(one, **pauses, inbox=inbox, sessions=sessions)
        broker = subscribed(kind, url, name, hook, handler, int(prefetch))
        await broker.start()
        await ended.wait()
        await broker.stop()
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
