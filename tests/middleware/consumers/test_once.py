"""A delivery as a loop of zero or one rounds: what is not to be executed, and what each way out records."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from oncegate import (
    Action,
    Begun,
    Delivery,
    DeliveryDecision,
    Execution,
    NotProcessed,
    NotRecorded,
    NotRetryable,
    OutcomeUnknown,
    Recording,
    Subscription,
)
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import State
from oncegate.middleware.consumers.handlers.once import Once
from tests.middleware.conftest import Elsewhere, MakeSubscription
from tests.middleware.deliveries import PAY, Records, taking_over
from tests.middleware.door import PATIENCE


class Abort(BaseException):
    """As time-out libraries raise it into a handler."""


async def consume(once: Once, effects: list[str], *, ends: str = "") -> None:
    async for attempt in once:
        async with attempt as execution:
            effects.append(f"attempt {execution.attempt}")
            if ends == "break":
                break
            if ends == "return":
                return
            if ends == "continue":
                continue
            if ends == "succeed":
                await execution.succeed(b"7")


async def execute(subscription: Subscription, body: Callable[[Execution], Awaitable[object]]) -> Begun:
    """Has ``body`` executed for `PAY`; what became of it."""
    once = subscription.once(PAY)
    async for attempt in once:
        async with attempt as execution:
            await body(execution)
    assert once.begun
    assert once.action is once.begun.action
    return once.begun


@pytest.mark.parametrize("ends", ["", "break", "return", "continue", "succeed"])
async def test_a_command_is_executed_in_one_round_and_its_duplicate_in_none(
    subscribe: MakeSubscription, records: Records, ends: str
) -> None:
    effects: list[str] = []
    for decision in (DeliveryDecision.RUN, DeliveryDecision.DUPLICATE):
        once = subscribe("ledger").once(PAY)
        assert (once.action, once.begun) == (Action.REDELIVER, None), "nothing is decided yet"
        await consume(once, effects, ends=ends)
        assert once.action is Action.ACKNOWLEDGE
        assert once.begun
        assert once.begun.decision is decision
        await consume(once, effects)  # it is the same delivery still
    assert effects == ["attempt 1"]
    assert await records.state("ledger") is State.SUCCEEDED
    assert once.begun
    assert once.begun.result == (b"7" if ends == "succeed" else b"null")


async def test_what_is_not_to_be_executed_is_not_reached(subscribe: MakeSubscription) -> None:
    first = await subscribe("ledger").begin(PAY)
    effects: list[str] = []
    for delivery, action in [
        (PAY, Action.REDELIVER),
        (Delivery("key-1", b"another"), Action.DEAD_LETTER),
        (Delivery(""), Action.DEAD_LETTER),
    ]:
        once = subscribe("ledger").once(delivery)
        await consume(once, effects)
        assert once.action is action
    assert effects == []
    await first.execution.succeed()


async def test_a_failure_that_is_given_is_left_quietly(subscribe: MakeSubscription, records: Records) -> None:
    begun = await execute(subscribe("ledger"), lambda execution: execution.fail("no"))
    assert begun.action is Action.REDELIVER
    assert await records.state("ledger") is State.FAILED


async def test_to_leave_normally_is_success(subscribe: MakeSubscription, records: Records) -> None:
    begun = await execute(subscribe("ledger"), lambda _: asyncio.sleep(0))
    assert begun.action is Action.ACKNOWLEDGE
    assert await records.state("ledger") is State.SUCCEEDED


async def test_a_result_that_is_given_is_kept(subscribe: MakeSubscription) -> None:
    for _ in range(2):
        begun = await execute(subscribe("ledger"), lambda execution: execution.succeed(b"7"))
        assert begun.action is Action.ACKNOWLEDGE
    assert (begun.decision, begun.result) == (DeliveryDecision.DUPLICATE, b"7")


@pytest.mark.parametrize(
    ("raised", "state", "action"),
    [
        (ValueError("no"), State.FAILED, Action.REDELIVER),
        (Abort("no"), State.FAILED, Action.REDELIVER),
        (NotRetryable("no"), State.FAILED, Action.DEAD_LETTER),
        (OutcomeUnknown("no"), State.UNKNOWN, Action.REDELIVER),
        (NotProcessed("no"), None, Action.REDELIVER),
        (asyncio.CancelledError("no"), State.FAILED, Action.REDELIVER),  # nobody cancelled this task
        (StopAsyncIteration("no"), State.FAILED, Action.REDELIVER),
    ],
)
async def test_an_exception_is_recorded_and_goes_on(
    subscribe: MakeSubscription, records: Records, raised: BaseException, state: State | None, action: Action
) -> None:
    reached: list[Execution] = []

    async def body(execution: Execution) -> None:
        reached.append(execution)
        raise raised

    try:
        await execute(subscribe("ledger"), body)
    except BaseException as error:  # whatever it is
        met: BaseException = error
    assert met is raised or met.__cause__ is raised
    assert reached[0].action is action
    assert await records.state("ledger") is state


async def test_an_exception_after_the_success_changes_nothing(subscribe: MakeSubscription, records: Records) -> None:
    reached: list[Execution] = []

    async def body(execution: Execution) -> None:
        reached.append(execution)
        await execution.succeed()
        raise ConnectionError("no answer")

    with pytest.raises(ConnectionError):
        await execute(subscribe("ledger"), body)
    assert reached[0].action is Action.ACKNOWLEDGE
    assert await records.state("ledger") is State.SUCCEEDED


@pytest.mark.parametrize("ending", [KeyboardInterrupt(), SystemExit(3)])
async def test_the_end_of_the_process_leaves_an_unknown_outcome(
    subscribe: MakeSubscription, records: Records, ending: BaseException
) -> None:
    async def body(_: Execution) -> None:
        raise ending

    with pytest.raises(type(ending)):
        await execute(subscribe("ledger"), body)
    assert await records.state("ledger") is State.UNKNOWN


async def test_a_generator_that_is_closed_in_the_middle_lets_its_lease_go(
    subscribe: MakeSubscription, records: Records
) -> None:
    async def parts() -> AsyncIterator[int]:
        async for attempt in subscribe("ledger").once(PAY):
            async with attempt:
                yield 1

    generator: Any = parts()
    assert await anext(generator) == 1
    await generator.aclose()

    await records.until("ledger", State.UNKNOWN)


def test_what_is_closed_after_its_loop_ends_quietly() -> None:
    held: list[Any] = []
    reached: list[bool] = []

    async def execute() -> None:
        async for attempt in Subscription("ledger", cache=MemoryCache()).once(PAY):
            async with attempt:
                reached.append(True)
                await asyncio.get_running_loop().create_future()

    async def begin() -> None:
        executing = execute()
        held.append(executing)
        while not reached:  # as a task does it, but one that no runner cancels
            awaited: Any = executing.send(None)
            if awaited is not None and not reached:
                awaited._asyncio_future_blocking = False
                await asyncio.wait([awaited])

    with asyncio.Runner() as runner:
        runner.run(begin())
    assert reached
    held.pop().close()


async def test_a_success_that_is_refused_raises(
    subscribe: MakeSubscription, records: Records, elsewhere: Elsewhere
) -> None:
    reached: list[Execution] = []

    async def body(execution: Execution) -> None:
        reached.append(execution)
        elsewhere(taking_over(records.of("ledger")))

    with pytest.raises(NotRecorded) as refusal:
        await execute(subscribe("ledger", lease=0.3), body)
    assert refusal.value.recording is Recording.REFUSED
    assert reached[0].action is Action.REDELIVER


async def test_to_be_cancelled_leaves_an_unknown_outcome(subscribe: MakeSubscription, records: Records) -> None:
    began = asyncio.Event()

    async def body(_: Execution) -> None:
        began.set()
        await asyncio.sleep(PATIENCE)

    task = asyncio.create_task(execute(subscribe("ledger"), body))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await records.state("ledger") is State.UNKNOWN


# -- used otherwise ---------------------------------------------------------------------------------------------------


async def test_a_round_without_its_context_is_refused_at_its_end(subscribe: MakeSubscription, records: Records) -> None:
    rounds = 0
    with pytest.raises(RuntimeError, match="async with attempt"):  # noqa: PT012 - the loop is what raises
        async for _ in subscribe("ledger").once(PAY):
            rounds += 1
    assert rounds == 1
    assert await records.state("ledger") is State.UNKNOWN


async def test_the_context_without_its_loop_is_refused_before_anything_is_executed(subscribe: MakeSubscription) -> None:
    once = subscribe("ledger").once(PAY)
    with pytest.raises(RuntimeError, match="async for"):
        async with once:
            pytest.fail("executed")
    await consume(once, [])
    duplicate = subscribe("ledger").once(PAY)
    await consume(duplicate, [])
    for over in (once, duplicate):
        with pytest.raises(RuntimeError, match="not to be executed"):
            async with over:
                pytest.fail("executed")
