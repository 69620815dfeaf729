"""A time limit for awaitables that usually finish without waiting."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from types import CoroutineType, coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def within(
    seconds: float, work: Awaitable[Result], waits: Callable[[asyncio.Timeout], None] | None = None
) -> Result:
    """Await ``work``. Raises ``TimeoutError`` where it takes longer. ``waits`` is called if it waits at all.

    Work that finishes without waiting, as most does, gets no time-out: that would cost more than the work.
    """
    steps = None
    try:
        if isinstance(work, CoroutineType):  # it takes its first step by itself, without one more object
            waits_for = work.send(None)
        else:
            steps = work.__await__()
            waits_for = next(steps)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # what it returns travels in an exception without a type
    async with asyncio.timeout(seconds) as limit:
        if waits is not None:
            waits(limit)
        return await _rest(steps or work.__await__(), waits_for)


@coroutine
def _rest(steps: Generator[Any, Any, Result], waits_for: Any) -> Generator[Any, Any, Result]:
    """Await the rest of an awaitable whose first step was taken by hand."""
    try:
        while True:
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - a cancellation, too: it is for the awaitable to deal with
                waits_for = steps.throw(error)
            else:
                waits_for = next(steps)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # see above
