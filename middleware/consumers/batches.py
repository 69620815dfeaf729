"""Begins the deliveries of a batch, calls a handler for them together, and records what came of each."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from oncegate.middleware.consumers.begun import Begun
from oncegate.middleware.consumers.delivery import Delivery
from oncegate.middleware.consumers.handling import kept, settle_raised
from oncegate.middleware.outcome.calling import call
from oncegate.middleware.outcome.errors import ENDS_PROCESS
from oncegate.middleware.outcome.raised import is_left
from oncegate.middleware.rules.arguments import is_async


async def begin_all(begin: Callable[[Delivery], Awaitable[Begun]], deliveries: Sequence[Delivery]) -> list[Begun]:
    """The decisions about ``deliveries``. Where this is cancelled, those that were to run are given back."""
    tasks = [asyncio.ensure_future(begin(delivery)) for delivery in deliveries]
    try:
        return await asyncio.gather(*tasks)
    except asyncio.CancelledError:
        await asyncio.wait(tasks)
        begun = [task.result() for task in tasks if not task.cancelled()]
        await asyncio.gather(*[each.release() for each in begun if each.run])
        raise


async def run_batch(
    batch: Sequence[Begun], called: Callable[[], Any], handler: Callable[..., Any], timeout: float
) -> None:
    """Call the handler for the deliveries of ``batch``, which run, and settle each. Raises what `run_handler` raises."""
    task, in_loop = asyncio.current_task(), is_async(handler)
    try:
        async with asyncio.timeout(timeout if in_loop else None) as limit:
            outcomes = outcomes_of(await call(called, in_loop=in_loop), len(batch))
    except BaseException as error:  # whatever a handler raises is its commands' outcome, as of a single one
        if is_left(error, task):
            for begun in batch:
                begun.abandon_soon("the consumer was closed")
            raise
        timed_out = limit.expired()
        await asyncio.gather(*[settle_raised(begun, error, timed_out=timed_out) for begun in batch])
        if isinstance(error, (asyncio.CancelledError, *ENDS_PROCESS)):
            raise
    else:
        await asyncio.gather(*[_settle(begun, outcome) for begun, outcome in zip(batch, outcomes, strict=True)])


def outcomes_of(returned: Any, count: int) -> Sequence[Any]:
    """What a batch's handler returned: one item for each of ``count`` messages. Raises ``TypeError`` for anything else."""
    if returned is None:
        return [None] * count
    if not isinstance(returned, list | tuple) or len(returned) != count:
        raise TypeError(
            f"the handler of a batch returns None, or a list with one result for each of its {count} messages"
        )
    return returned


async def _settle(begun: Begun, outcome: Any) -> None:
    if isinstance(outcome, Exception):
        await settle_raised(begun, outcome)
    else:
        begun.returned = outcome
        await begun.succeed(kept(begun))
