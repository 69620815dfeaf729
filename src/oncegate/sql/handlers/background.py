"""An inbox's work beside its deliveries, while a context is entered."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from oncegate.sql.database.errors import meaning, reason_of

log = logging.getLogger("oncegate.inbox")


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """While it is entered, ``work`` is done; then it is cancelled."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def repeat(works: Sequence[Callable[[], Awaitable[None]]], every: float, table: str, failure: str) -> None:
    """Do ``works`` at once, and about every so many seconds. What fails is logged as ``failure``, and done the next time."""
    while True:
        for work in works:
            try:
                await work()
            except Exception as error:  # noqa: BLE001  # a driver's own errors come through: nobody else would do it again
                found = meaning(error, table)
                log.warning("%s: %s: %s", failure, type(found).__name__, reason_of(found))
        await pause(every)


async def pause(seconds: float) -> None:
    """About as long: several processes do the same, and not all at once."""
    await asyncio.sleep(seconds * random.uniform(0.5, 1.0))
