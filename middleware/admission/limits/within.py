"""A time limit for awaitables that usually finish without waiting.

Work that finishes in its first step, as most does, gets no time-out, which would cost more than the work:

    steps = work.__await__()
    waits_for = next(steps, DONE)
    if waits_for is not DONE:
        await within(seconds, steps, waits_for)

What it returns is lost: `next` drops it, and spares an exception with it.
"""

import asyncio
from collections.abc import Callable, Generator
from types import coroutine
from typing import Any, Final

DONE: Final = object()
"""What the first step of work gives that is over with it."""


async def within(
    seconds: float,
    steps: Generator[Any, Any, object],
    waits_for: Any,
    waits: Callable[[asyncio.Timeout], None] | None = None,
) -> None:
    """Await the rest of work whose first step was taken by hand, and waits for something. ``waits`` is called before.

    Raises ``TimeoutError`` where it takes longer.
    """
    async with asyncio.timeout(seconds) as limit:
        if waits is not None:
            waits(limit)
        await _rest(steps, waits_for)


@coroutine
def _rest(steps: Generator[Any, Any, object], waits_for: Any) -> Generator[Any, Any, None]:
    try:
        while True:
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - a cancellation, too: it is for the awaitable to deal with
                waits_for = steps.throw(error)
            else:
                waits_for = next(steps)
    except StopIteration:
        pass
