"""A relay in a process of its own, on a stream of Redis, which dies, or stands still, where it is told to.

python -m tests.sql.outbox.relays DATABASE REDIS POINT
"""

import asyncio
import os
import signal
import sys

from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from oncegate.sql import OutboxMessage, OutboxSource, Relay
from oncegate.sql.outbox.publishing import RedisStreams

BEFORE, AFTER, REMOVED, STILL = "before it publishes", "after it has", "before the commit", "stands still"
POINTS = (BEFORE, AFTER, REMOVED)
LATE = b"late"


async def main(url: str, redis: str, point: str) -> None:
    of_asyncio = "asyncpg" in url or "aiosqlite" in url
    engine = create_async_engine(url) if of_asyncio else create_engine(url)
    streams = RedisStreams(redis)

    @event.listens_for(engine.sync_engine if isinstance(engine, AsyncEngine) else engine, "commit")
    def on_commit(_: object) -> None:
        if point == REMOVED and seen:
            os.kill(os.getpid(), signal.SIGKILL)

    seen: list[str] = []

    async def publish(message: OutboxMessage) -> None:
        if point == BEFORE and len(seen) >= 2:
            os.kill(os.getpid(), signal.SIGKILL)
        await streams(message)
        seen.append(message.key)
        if point == AFTER and len(seen) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if point == STILL and len(seen) == 3:
            os.kill(os.getpid(), signal.SIGSTOP)

    relay = Relay(OutboxSource(engine, stall_limit=2), publish, confirm_timeout=1)
    await relay.publish_batch()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
