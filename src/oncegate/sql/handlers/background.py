"""What an inbox does beside its deliveries, while a context is entered."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from oncegate.sql.database.errors import InboxMisused, InboxUnavailable, meaning
from oncegate.sql.order.table import PARKED

log = logging.getLogger("oncegate.inbox")

Sweep = Callable[[], Awaitable[None]]


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """While it is entered, ``work`` is done; then it is cancelled."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def keep_sweeping(sweeps: Sequence[Sweep], every: float) -> None:
    """Call ``sweeps`` at once, and about every so many seconds. What fails is logged, and done the next time."""
    while True:
        for sweep in sweeps:
            try:
                await sweep()
            except (SQLAlchemyError, OSError, InboxUnavailable, InboxMisused) as error:
                found = meaning(error, PARKED)
                log.warning(
                    "parked messages can't be looked for: %s: %s", type(found).__name__, str(found).partition("\n")[0]
                )
        await asyncio.sleep(every * random.uniform(0.5, 1.0))  # several processes do it, and not all at once
