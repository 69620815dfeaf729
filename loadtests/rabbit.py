"""A consumer of RabbitMQ under the hook, for the handlers of the load tests."""

import asyncio
import signal
from collections.abc import Awaitable, Callable

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from oncegate import Action, Subscription
from oncegate.middleware.consumers.begun import Begun

PAUSE = 0.2
"""Seconds until a message is given back that is to be delivered again."""


async def declare(channel: AbstractChannel, name: str) -> None:
    """The queue ``name``, and that of its dead letters."""
    await channel.declare_queue(f"{name}.dead", durable=True)
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dead"}
    await channel.declare_queue(name, durable=True, arguments=dict(dead))


async def count(channel: AbstractChannel, name: str) -> int:
    """How many messages wait in a queue; what consumers hold is not counted."""
    queue = await channel.declare_queue(name, passive=True)
    return queue.declaration_result.message_count or 0


async def consume(
    url: str,
    name: str,
    subscription: Subscription,
    execute: Callable[[AbstractIncomingMessage], Awaitable[Begun]],
    *,
    prefetch: int,
) -> None:
    """Until SIGTERM: each message of the queue ``name`` is settled as ``execute``, by ``subscription``, has decided."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)

    async def on_message(message: AbstractIncomingMessage) -> None:
        begun = await execute(message)
        if begun.action is Action.ACKNOWLEDGE:
            await message.ack()
        elif begun.action is Action.DEAD_LETTER:
            await message.reject()
        else:
            await asyncio.sleep(PAUSE)
            await message.nack()

    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=prefetch)
        queue = await channel.get_queue(name)
        tag = await queue.consume(on_message)
        await ended.wait()
        await queue.cancel(tag)
        await subscription.drain()
