"""Waiting for what must come true, instead of sleeping and hoping."""

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], object], within: float = 60.0) -> None:
    """Return once ``condition()`` is true; fail the test if it is not within a time that no slow machine needs."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - what is awaited happens in another process
            await asyncio.sleep(0.005)
