"""Calls a consumer's handler, and records its result or error as the command's outcome."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

from oncegate.cache.errors import OncegateError
from oncegate.cache.record import StoredResponse
from oncegate.middleware.consumers.begun import Begun, Recording, not_kept
from oncegate.middleware.outcome.errors import (
    ENDS_PROCESS,
    NotProcessed,
    NotRetryable,
    OutcomeUnknown,
    is_closed,
    reduced,
)
from oncegate.middleware.outcome.results import JsonCodec

log = logging.getLogger("oncegate.subscription")

_CODEC = JsonCodec(Any)


class NotRecorded(OncegateError):
    """A command was executed, and its success is not in the cache: don't acknowledge the message. ``recording`` says why."""

    def __init__(self, recording: Recording, record: str) -> None:
        super().__init__(f"record {record}: the success is not recorded ({recording.value}): don't acknowledge")
        self.recording = recording

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


async def run_handler(begun: Begun, call: Callable[[], Any], handler: Callable[..., Any], timeout: float) -> None:
    """Call the handler for a delivery that runs, and settle it. Raises only a cancellation, and what ends the process.

    A coroutine is cancelled after ``timeout``. A thread can't be: it runs on, and its end is recorded unless the command
    was taken over by then.
    """
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
        await _settle(begun, cast(Callable[[], Awaitable[Any]], call), timeout)
        return
    task = asyncio.get_running_loop().create_task(_settle_thread(begun, call))
    done, _ = await asyncio.wait([task], timeout=timeout)
    if done:
        if (ends := task.result()) is not None:
            raise ends
    else:
        log.warning("record %s: the handler's thread ran into its time-out and runs on", begun.record)
        begun.overran()


async def _settle(begun: Begun, call: Callable[[], Awaitable[Any]], timeout: float) -> None:
    task = asyncio.current_task()
    try:
        async with asyncio.timeout(timeout) as limit:
            begun.returned = await call()
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            await settle_raised(begun, error)
            raise
        await settle_raised(begun, _cancelled_inside(error))
    except BaseException as error:  # whatever a handler raises is its failure: kept, and told to the caller
        if is_closed(error, task):
            begun.abandon_soon("the consumer was closed")
            raise
        await settle_raised(begun, error, timed_out=limit.expired())
        if isinstance(error, ENDS_PROCESS):
            raise
    else:
        await begun.succeed(_kept(begun))


async def _settle_thread(begun: Begun, call: Callable[[], Any]) -> BaseException | None:
    """Returns what is to be raised: out of a task of its own, it would end the event loop."""
    task = asyncio.current_task()
    try:
        begun.returned = await _in_thread(call)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # whatever a handler raises is its failure: kept, and told to the caller
        if is_closed(error, task):
            raise
        await settle_raised(begun, error)
        return error if isinstance(error, ENDS_PROCESS) else None
    await begun.succeed(_kept(begun))
    return None
    # After a cancellation, at the process's end, the thread may still be at work: the lease is left to lapse.


def _cancelled_inside(error: BaseException) -> RuntimeError:
    """The error for a cancellation that we did not request: raised as it is, it would end the consumer's own task."""
    failure = RuntimeError("something in the handler was cancelled")
    failure.__cause__ = error
    return failure


async def settle_raised(begun: Begun, error: BaseException, *, timed_out: bool = False) -> None:
    """Record an exception out of a handler as its command's outcome.

    A cancellation is not a failure, nor is what ends the process: the effect may have happened.
    """
    begun.raised = error
    if isinstance(error, asyncio.CancelledError):
        await begun.abandon("the consumer was cancelled")
    elif isinstance(error, ENDS_PROCESS):
        await begun.abandon(f"the handler raised {type(error).__name__}")
    elif timed_out:
        await begun.unknown("ran into its time-out")
    elif isinstance(error, NotProcessed):
        await begun.release()
    elif isinstance(error, OutcomeUnknown):
        await begun.unknown(str(error))
    else:
        await begun.fail(error, final=isinstance(error, NotRetryable))


def _kept(begun: Begun) -> bytes | StoredResponse:
    if isinstance(begun.returned, StoredResponse):
        return begun.returned
    try:
        return _CODEC.dump(begun.returned)
    except BaseException as error:  # noqa: BLE001  # whatever a value's own serializer raises: the effect has happened all the same
        log.warning("record %s: the result can't be stored: %s", begun.record, type(error).__name__)
        return not_kept()


async def _in_thread(call: Callable[[], Any]) -> Any:
    def called() -> Any:
        try:
            return call()
        except StopIteration as error:  # no future takes it: the call would never end
            raise RuntimeError("the handler raised StopIteration") from error
        except asyncio.CancelledError as error:
            raise _cancelled_inside(error) from error

    result = await asyncio.to_thread(called)
    return await result if inspect.isawaitable(result) else result
