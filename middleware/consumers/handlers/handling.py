"""Calls a consumer's handler for a delivery, or for those of a batch, and records what comes of each as its outcome."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final

from oncegate.cache.errors import OncegateError
from oncegate.cache.record import State, StoredResponse
from oncegate.middleware.consumers.begun import FAILED_STATUS, Begun, Execution, Recording, not_kept
from oncegate.middleware.consumers.delivery import Action, Delivery
from oncegate.middleware.consumers.handlers.sent_back import log_sent_back
from oncegate.middleware.consumers.transactional import DeliveryContext
from oncegate.middleware.outcome.calling import call
from oncegate.middleware.outcome.errors import ENDS_PROCESS, NotRetryable, Parked, reduced
from oncegate.middleware.outcome.raised import failure_of, is_left, kind_and_text, outcome_of
from oncegate.middleware.outcome.results import JSON_CODEC, dumped
from oncegate.middleware.rules.checks.arguments import is_async

log = logging.getLogger("oncegate.subscription")

_CURRENT: Final[ContextVar[tuple[DeliveryContext, ...]]] = ContextVar("oncegate.executing", default=())


class NotRecorded(OncegateError):
    """A command was executed, and its success is not in the cache: don't acknowledge the message. ``recording`` says why."""

    def __init__(self, recording: Recording, record: str) -> None:
        super().__init__(f"record {record}: the success is not recorded ({recording.value}): don't acknowledge")
        self.recording = recording

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


def current() -> tuple[DeliveryContext, ...]:
    """The delivery for which this task or thread executes a handler, or those of its batch; none outside of one."""
    return _CURRENT.get()


@contextmanager
def executing(*contexts: DeliveryContext) -> Iterator[None]:
    """Within it, and in the tasks and threads that are started in it, ``contexts`` are `current`."""
    token = _CURRENT.set(contexts)
    trace = contexts[0].trace if len(contexts) == 1 else None
    leave = None if trace is None else trace.enter()  # of a batch's, none is the one that is executed
    try:
        yield
    finally:
        if leave is not None:
            leave()
        with suppress(ValueError):  # closed from elsewhere, as by the garbage collector: its context is another one
            _CURRENT.reset(token)


async def run_handler(
    execution: Execution, called: Callable[[], Any], handler: Callable[..., Any], timeout: float
) -> None:
    """Call the handler for a delivery that runs, and settle it. Raises only a cancellation, and what ends the process.

    A coroutine is cancelled after ``timeout``. A thread can't be: it runs on, and its end is recorded unless the command
    was taken over by then.
    """
    if is_async(handler):
        await _settle(execution, called, timeout)
        return
    task = asyncio.get_running_loop().create_task(_settle_thread(execution, called))
    done, _ = await asyncio.wait([task], timeout=timeout)
    if done:
        if (ends := task.result()) is not None:
            raise ends
    else:
        log.warning("record %s: the handler's thread ran into its time-out and runs on", execution.named)
        execution.overran()


async def _settle(execution: Execution, called: Callable[[], Any], timeout: float) -> None:
    task = asyncio.current_task()
    try:
        async with asyncio.timeout(timeout) as limit:
            execution.returned = await call(called, in_loop=True)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its command's outcome
        await _settle_all([execution], error, task, timed_out=limit.expired())
    else:
        await execution.succeed(kept(execution))


async def _settle_all(
    batch: Sequence[Execution], error: BaseException, task: "asyncio.Task[Any] | None", *, timed_out: bool
) -> None:
    """Record what a handler, called by ``task``, raised for all of ``batch``. Raises it where it ends more than the call."""
    if is_left(error, task):
        for execution in batch:
            execution.abandon_soon("the consumer was closed")
        raise error
    log_sent_back(batch[0].named, error)
    await asyncio.gather(*[_settle_failure(execution, error, timed_out=timed_out) for execution in batch])
    if isinstance(error, (asyncio.CancelledError, *ENDS_PROCESS)):
        raise error


async def _settle_thread(execution: Execution, called: Callable[[], Any]) -> BaseException | None:
    """Returns what is to be raised: out of a task of its own, it would end the event loop."""
    task = asyncio.current_task()
    try:
        execution.returned = await call(called, in_loop=False)
    except BaseException as error:  # as above
        # Cancelled at the process's end, when the thread may still be at work: the lease is left to lapse.
        if isinstance(error, asyncio.CancelledError) or is_left(error, task):
            raise
        log_sent_back(execution.named, error)
        await _settle_failure(execution, error)
        return error if isinstance(error, ENDS_PROCESS) else None
    await execution.succeed(kept(execution))
    return None


async def settle_raised(
    execution: Execution, error: BaseException, *, timed_out: bool = False, status: int = FAILED_STATUS
) -> None:
    """Record what came out of a handler as its command's outcome, a failure with ``status``: see `outcome_of`."""
    await _settle_failure(execution, failure_of(error), timed_out=timed_out, status=status)


async def _settle_failure(
    execution: Execution, error: BaseException, *, timed_out: bool = False, status: int = FAILED_STATUS
) -> None:
    execution.raised = error
    if timed_out and execution.context.rolled_back and isinstance(error, TimeoutError):
        error = TimeoutError("ran into the time-out, and was rolled back")
    state, note = outcome_of(error, overdue=timed_out and not execution.context.rolled_back)
    if state is None:
        if isinstance(error, Parked):
            await execution.release(Action.ACKNOWLEDGE)
        else:
            kind, text = kind_and_text(error)
            await execution.release(reason=text or kind)
    elif state is State.FAILED:
        await execution.fail(error, final=isinstance(error, NotRetryable), status=status)
    elif isinstance(error, (asyncio.CancelledError, *ENDS_PROCESS)):  # nothing is waited for any more
        await execution.abandon(note)
    else:
        await execution.unknown(note)


def kept(execution: Execution) -> bytes | StoredResponse:
    """The handler's return value, in the form in which it is recorded."""
    if isinstance(execution.returned, StoredResponse):
        return execution.returned
    result = dumped(JSON_CODEC.dump, execution.returned, execution.named)
    return not_kept() if result is None else result


def result_of(begun: Begun) -> Any:
    """The result that a duplicate repeats, read back from what `kept` made. Raises ``ValueError`` for what is no JSON."""
    return JSON_CODEC.load(begun.result or b"")


# -- batches


async def begin_all(begin: Callable[[Delivery], Awaitable[Begun]], deliveries: Sequence[Delivery]) -> list[Begun]:
    """The decisions about ``deliveries``. Where this is cancelled, those that were to run are given back."""
    tasks = [asyncio.ensure_future(begin(delivery)) for delivery in deliveries]
    try:
        return await asyncio.gather(*tasks)
    except asyncio.CancelledError:
        await asyncio.wait(tasks)
        begun = [task.result() for task in tasks if not task.cancelled()]
        await asyncio.gather(*[each.execution.release() for each in begun if each.run])
        raise


async def run_batch(
    batch: Sequence[Execution], called: Callable[[], Any], handler: Callable[..., Any], timeout: float
) -> None:
    """Call the handler for the deliveries of ``batch``, which run, and settle each. Raises what `run_handler` raises."""
    task, in_loop = asyncio.current_task(), is_async(handler)
    try:
        async with asyncio.timeout(timeout if in_loop else None) as limit:
            outcomes = outcomes_of(await call(called, in_loop=in_loop), len(batch))
    except BaseException as error:  # noqa: BLE001 - as of a single one
        await _settle_all(batch, error, task, timed_out=limit.expired())
    else:
        await asyncio.gather(
            *[_settle_each(execution, outcome) for execution, outcome in zip(batch, outcomes, strict=True)]
        )


def outcomes_of(returned: Any, count: int) -> Sequence[Any]:
    """The results of a batch's handler, one for each of ``count`` messages. Raises ``TypeError`` for anything else."""
    if returned is None:
        return [None] * count
    if not isinstance(returned, list | tuple) or len(returned) != count:
        raise TypeError(
            f"the handler of a batch returns None, or a list with one result for each of its {count} messages"
        )
    return returned


async def _settle_each(execution: Execution, outcome: Any) -> None:
    if isinstance(outcome, Exception):
        log_sent_back(execution.named, outcome)
        await settle_raised(execution, outcome)
    else:
        execution.returned = outcome
        await execution.succeed(kept(execution))
