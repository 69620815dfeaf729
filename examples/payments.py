"""Payments over HTTP and RabbitMQ, each booked once in PostgreSQL, however often it is sent and whatever dies on the way.

pip install 'oncegate[fastapi,sql]' asyncpg aio-pika
DATABASE=postgresql+asyncpg://user@host/shop RABBITMQ=amqp://guest:guest@host/ uvicorn payments:app
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import aio_pika
from aio_pika.abc import AbstractIncomingMessage
from fastapi import FastAPI, Header
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from oncegate import Action, Delivery, Subscription
from oncegate.sql import Inbox

engine = create_async_engine(os.environ["DATABASE"])
billing = Inbox("billing")
subscription = Subscription("billing", cache="memory://")  # what it forgets with its process, the inbox knows


@billing.transaction(async_sessionmaker(engine))
async def book(body: bytes, session: AsyncSession) -> None:
    """The effect, in one transaction with the message's marker."""
    await session.execute(text("UPDATE account SET balance = balance + :amount"), json.loads(body))


async def consume(message: AbstractIncomingMessage) -> None:
    """Acknowledged once it is booked."""
    delivery = Delivery(str(message.headers["Idempotency-Key"]), message.body)
    begun = await subscription.execute(delivery, book, message.body)
    if begun.action is Action.ACKNOWLEDGE:
        await message.ack()
    elif begun.action is Action.DEAD_LETTER:
        await message.reject()  # to the queue's dead-letter exchange, where it has one
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
        queue = await channel.declare_queue("payments", durable=True)
        tag = await queue.consume(consume)
        app.state.exchange = channel.default_exchange
        yield
        await queue.cancel(tag)
        await subscription.drain()
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.post("/payments", status_code=202)
async def pay(payment: dict[str, int], idempotency_key: Annotated[str, Header()]) -> str:
    """Accepted: a client that gets no answer sends it again, with the same key."""
    message = aio_pika.Message(
        json.dumps(payment).encode(),
        headers={"Idempotency-Key": idempotency_key},
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )
    await app.state.exchange.publish(message, "payments")
    return "accepted"


@app.get("/balance")
async def balance() -> int:
    """What all payments add up to."""
    async with engine.connect() as connection:
        return int(await connection.scalar(text("SELECT balance FROM account")) or 0)
