"""Work for operators in pieces: between two of them, the loop does what requests need.

Strategy. A piece is a fraction of a millisecond, and its size is a count: so many records, so many lines. After it, the loop
has its turn. Where that had something to do, the next piece waits for some milliseconds besides: a request meets the loop
several times on its way, and would wait for a piece at each. So a page is made as fast as it can be while nobody sends
requests, and in a twentieth of the time of a loop that is busy.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from time import thread_time
from typing import Final, TypeVar

BUSY_SECONDS: Final = 0.00005
"""A turn of the loop takes longer where others have work for it, and less where they have none."""
REST_SECONDS: Final = 0.004
"""From one piece to the next where the loop is busy."""
Item = TypeVar("Item")


async def others_first() -> None:
    """Come back once the loop has done what else there is to do; `REST_SECONDS` later, if there was something."""
    begun = thread_time()
    await asyncio.sleep(0)
    if thread_time() - begun > BUSY_SECONDS:
        await asyncio.sleep(REST_SECONDS)


async def in_pieces(items: Iterable[Item], size: int) -> AsyncIterator[Item]:
    """The ``items``, with a turn of others' behind each ``size`` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % size == 0:
            await others_first()
