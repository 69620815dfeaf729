"""Payments over HTTP and RabbitMQ, each booked once in PostgreSQL, however often it is sent and whatever dies on the way.

pip install '/path/to/the/checkout[sql]' asyncpg aio-pika
DATABASE=postgresql+asyncpg://user@host/shop RABBITMQ=amqp://guest:guest@host/ uvicorn payments:app
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated

try:
    import aio_pika
    import asyncpg
    from aio_pika.abc import AbstractIncomingMessage
    from sqlalchemy import MetaData, text
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
except ImportError as missing:
    sys.exit(f"{missing.name} is not installed: pip install '/path/to/the/checkout[sql]' asyncpg aio-pika")
from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel, Field

from oncegate import (
    Action,
    Delivery,
    IdempotencyMiddleware,
    IdempotencySettings,
    MemoryCache,
    Subscription,
    SubscriptionSettings,
)
from oncegate.sql import Inbox

if unset := [name for name in ("DATABASE", "RABBITMQ") if not os.environ.get(name)]:
    sys.exit(
        f"{', '.join(unset)} is not set: DATABASE=postgresql+asyncpg://user@host/shop RABBITMQ=amqp://guest:guest@host/"
    )
log = logging.getLogger("payments")
DEAD = "payments.dead"  # what is given up, for a person to look at: it has had its 202

engine = create_async_engine(os.environ["DATABASE"], pool_pre_ping=True)  # the database may restart
billing = Inbox("billing")
# What the cache forgets with its process, the inbox knows. Who has no key would be booked unprotected: he is given up.
subscription = Subscription("billing", cache="memory://", settings=SubscriptionSettings(on_missing_key="reject"))


@billing.transaction(async_sessionmaker(engine))
async def book(body: bytes, session: AsyncSession) -> None:
    """The effect, in one transaction with the message's marker."""
    await session.execute(text("UPDATE account SET balance = balance + :amount"), json.loads(body))


def delivery_of(message: AbstractIncomingMessage) -> Delivery:
    """Who has no key is refused by the hook. By the time that it was sent, the inbox knows what it may have forgotten."""
    key, sent = message.headers.get("Idempotency-Key"), message.timestamp
    if sent is not None and sent.tzinfo is None:
        sent = sent.replace(tzinfo=UTC)
    return Delivery(key if isinstance(key, str) else None, message.body, sent_at=sent)


async def consume(message: AbstractIncomingMessage) -> None:
    """Acknowledged once it is booked. Whatever happens here, the broker hears of it: else its window fills, and nothing comes."""
    try:
        begun = await subscription.execute(delivery_of(message), book, message.body)
    except Exception as error:  # noqa: BLE001 - a mistake of ours: the message stays
        log.error("a message can't be processed: %s", type(error).__name__)
        await asyncio.sleep(1)
        await message.nack()
        return
    if begun.action is Action.ACKNOWLEDGE:
        await message.ack()
    elif begun.action is Action.DEAD_LETTER:
        log.warning("to %s: %s", DEAD, begun.reason)
        await message.reject()
    else:
        await asyncio.sleep(1)  # the database is away, or the handler has failed
        await message.nack()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The tables, the queue, the consumer."""
    async with engine.begin() as connection:
        await connection.run_sync(billing.table(MetaData()).create, checkfirst=True)
        await connection.execute(text("CREATE TABLE IF NOT EXISTS account (balance BIGINT)"))
        await connection.execute(text("INSERT INTO account SELECT 0 WHERE NOT EXISTS (SELECT FROM account)"))
    async with await aio_pika.connect_robust(os.environ["RABBITMQ"]) as broker:
        channel = await broker.channel()
        await channel.set_qos(prefetch_count=10)
        await channel.declare_queue(DEAD, durable=True)
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
        queue = await channel.declare_queue("payments", durable=True, arguments=dead)
        tag = await queue.consume(consume)
        app.state.exchange = channel.default_exchange
        yield
        await queue.cancel(tag)
        await subscription.drain()
    await engine.dispose()


app = FastAPI(lifespan=lifespan)
# Another payload under a used key gets 422, not 202. Several processes need a cache that they share: redis://
app.add_middleware(IdempotencyMiddleware, cache=MemoryCache(), settings=IdempotencySettings(on_missing_key="reject"))


class Payment(BaseModel):
    """What is refused here is no message that fails later, after its 202."""

    amount: Annotated[int, Field(gt=0, le=10**9)]


@app.post("/payments", status_code=202)
async def pay(payment: Payment, idempotency_key: Annotated[str, Header()]) -> str:
    """Accepted: a client that gets no answer sends it again, with the same key."""
    message = aio_pika.Message(
        payment.model_dump_json().encode(),
        headers={"Idempotency-Key": idempotency_key},
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        timestamp=datetime.now(UTC),
    )
    await app.state.exchange.publish(message, "payments")
    return "accepted"


@app.get("/balance")
async def balance() -> int:
    """What all payments add up to."""
    try:
        async with engine.connect() as connection:
            return int(await connection.scalar(text("SELECT balance FROM account")) or 0)
    except (SQLAlchemyError, asyncpg.PostgresError, OSError) as away:  # the latter two while it connects
        log.warning("the balance can't be read: %s", type(away).__name__)
        raise HTTPException(503, "the database is away", {"Retry-After": "1"}) from None
