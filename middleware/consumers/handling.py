"""Calls a consumer's handler, and records its result or error as the command's outcome."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from oncegate.cache.errors import OncegateError
from oncegate.cache.record import State, StoredResponse
from oncegate.middleware.consumers.begun import FAILED, Begun, Recording, not_kept
from oncegate.middleware.consumers.delivery import Action
from oncegate.middleware.outcome.calling import call
from oncegate.middleware.outcome.errors import ENDS_PROCESS, NotRetryable, Parked, reduced
from oncegate.middleware.outcome.raised import failure_of, is_left, outcome_of
from oncegate.middleware.outcome.results import JsonCodec, dumped
from oncegate.middleware.rules.arguments import is_async

log = logging.getLogger("oncegate.subscription")

_CODEC = JsonCodec(Any)


class NotRecorded(OncegateError):
    """A command was executed, and its success is not in the cache: don't acknowledge the message. ``recording`` says why."""

    def __init__(self, recording: Recording, record: str) -> None:
        super().__init__(f"record {record}: the success is not recorded ({recording.value}): don't acknowledge")
        self.recording = recording

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


async def run_handler(begun: Begun, called: Callable[[], Any], handler: Callable[..., Any], timeout: float) -> None:
    """Call the handler for a delivery that runs, and settle it. Raises only a cancellation, and what ends the process.

    A coroutine is cancelled after ``timeout``. A thread can't be: it runs on, and its end is recorded unless the command
    was taken over by then.
    """
    if is_async(handler):
        await _settle(begun, called, timeout)
        return
    task = asyncio.get_running_loop().create_task(_settle_thread(begun, called))
    done, _ = await asyncio.wait([task], timeout=timeout)
    if done:
        if (ends := task.result()) is not None:
            raise ends
    else:
        log.warning("record %s: the handler's thread ran into its time-out and runs on", begun.named)
        begun.overran()


async def _settle(begun: Begun, called: Callable[[], Any], timeout: float) -> None:
    task = asyncio.current_task()
    try:
        async with asyncio.timeout(timeout) as limit:
            begun.returned = await call(called, in_loop=True)
    except (
        BaseException
    ) as error:  # whatever a handler raises is its command's outcome: recorded, and given to the caller
        if is_left(error, task):
            begun.abandon_soon("the consumer was closed")
            raise
        await settle_raised(begun, error, timed_out=limit.expired())
        if isinstance(error, (asyncio.CancelledError, *ENDS_PROCESS)):
            raise
    else:
        await begun.succeed(kept(begun))


async def _settle_thread(begun: Begun, called: Callable[[], Any]) -> BaseException | None:
    """Returns what is to be raised: out of a task of its own, it would end the event loop."""
    task = asyncio.current_task()
    try:
        begun.returned = await call(called, in_loop=False)
    except (
        asyncio.CancelledError
    ):  # at the process's end, and the thread may still be at work: the lease is left to lapse
        raise
    except (
        BaseException
    ) as error:  # whatever a handler raises is its command's outcome: recorded, and given to the caller
        if is_left(error, task):
            raise
        await settle_raised(begun, error)
        return error if isinstance(error, ENDS_PROCESS) else None
    await begun.succeed(kept(begun))
    return None


async def settle_raised(begun: Begun, error: BaseException, *, timed_out: bool = False, status: int = FAILED) -> None:
    """Record an exception out of a handler as its command's outcome, a failure with ``status``: see `outcome_of`."""
    begun.raised = error = failure_of(error)
    if timed_out and begun.rolled_back and isinstance(error, TimeoutError):
        error = TimeoutError("ran into the time-out, and was rolled back")
    state, note = outcome_of(error, overdue=timed_out and not begun.rolled_back)
    if state is None:
        await begun.release(Action.ACKNOWLEDGE if isinstance(error, Parked) else Action.REDELIVER)
    elif state is State.FAILED:
        await begun.fail(error, final=isinstance(error, NotRetryable), status=status)
    elif isinstance(error, (asyncio.CancelledError, *ENDS_PROCESS)):  # nothing is waited for any more
        await begun.abandon(note)
    else:
        await begun.unknown(note)


def kept(begun: Begun) -> bytes | StoredResponse:
    """What was ``returned``, as it is recorded."""
    if isinstance(begun.returned, StoredResponse):
        return begun.returned
    result = dumped(_CODEC.dump, begun.returned, begun.named)
    return not_kept() if result is None else result


def result_of(begun: Begun) -> Any:
    """What `kept` has made of a result, of a delivery that has one. Raises ``ValueError`` for what is no JSON."""
    return _CODEC.load(begun.result or b"")
