"""A consumer with an inbox, as a process that dies where a message says so.

python -m tests.brokers.paying rabbit URL QUEUE REDIS_URL LEDGER DATABASE
"""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

from faststream import Context
from faststream.middlewares import BaseMiddleware
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from oncegate.faststream import SubscriptionMiddleware
from oncegate.sql import Inbox
from tests.brokers.consumers import CONSUMERS, LEASE, Effects, subscription
from tests.sql.places import EFFECT

POINTS = ("before COMMIT", "before the reply", "after the reply", "after the record")


async def main(kind: str, url: str, name: str, redis_url: str, ledger: str, database: str) -> None:
    effects = Effects(Path(ledger))

    class Killer(BaseMiddleware[Any, Any]):
        """Around the hook: what it sees is committed, then replied to, then recorded, then acknowledged."""

        command: dict[str, Any]

        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            self.command = json.loads(msg.body)
            effects.deliver(self.command["key"])
            return await call_next(msg)

        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            effects.die_once(self.command, "before the reply")
            published = await call_next(cmd)
            effects.die_once(self.command, "after the reply")
            return published

        async def after_processed(self, exc_type: Any = None, exc_val: Any = None, exc_tb: Any = None) -> bool:
            if exc_val is None:
                effects.die_once(self.command, "after the record")
            return False

    async def pay(command: dict[str, Any], session: Annotated[AsyncSession, Context()]) -> dict[str, str]:
        await session.execute(EFFECT, {"what": command["key"]})
        effects.die_once(command, "before COMMIT")
        return {"paid": command["key"]}

    engine = create_async_engine(database)
    hook = SubscriptionMiddleware(
        subscription(redis_url, name, lease=LEASE),
        pause=0.1,
        max_pause=0.5,
        inbox=Inbox("billing", wait_timeout=60),
        sessions=async_sessionmaker(engine),
    )
    broker = CONSUMERS[kind](url, name, [Killer, hook], pay)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await broker.start()
    await ended.wait()
    await broker.stop()
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
