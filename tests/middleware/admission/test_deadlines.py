"""Time limits: what ends at once pays for none, what lasts is ended in time, and many share one timer."""

import asyncio
from collections.abc import Awaitable

import pytest

from oncegate.middleware.admission.limits.deadlines import Deadlines, LoopDeadlines
from oncegate.middleware.admission.limits.within import DONE, within
from testing.inside import each_of


async def limited(seconds: float, work: Awaitable[object]) -> bool:
    """Await work, with a time limit if it waits; whether it did."""
    steps = work.__await__()
    waits_for = next(steps, DONE)
    if waits_for is not DONE:
        await within(seconds, steps, waits_for)
    return waits_for is not DONE


async def test_what_ends_at_once_has_no_limit_and_ends_with_its_error() -> None:
    async def result() -> int:
        return 7

    async def error() -> None:
        raise LookupError

    assert not await limited(0.0, result())
    with pytest.raises(LookupError):
        await limited(0.0, error())


async def test_what_waits_goes_on_where_it_waited() -> None:
    seen: list[object] = []

    async def steps() -> None:
        for number in range(3):
            await asyncio.sleep(0)
            seen.append(number)
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, "told")
        seen.append(await future)
        try:
            failing = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(failing.set_exception, KeyError("told, too"))
            await failing
        except KeyError as error:
            seen.append(error.args[0])

    assert await limited(10.0, steps())
    assert seen == [0, 1, 2, "told", "told, too"]


async def test_what_lasts_too_long_is_cancelled_and_may_clean_up() -> None:
    seen: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cleaned up")

    with pytest.raises(TimeoutError):
        await limited(0.01, endless())
    assert seen == ["cleaned up"]


async def test_a_cancellation_from_outside_stays_one() -> None:
    begun = asyncio.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(limited(10.0, endless()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_awaitable_that_is_no_coroutine_will_do() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, 3)
    assert await limited(10.0, future)
    assert not await limited(10.0, future)  # it is done by now


async def test_limits_are_reached_in_their_order_and_those_dropped_are_not() -> None:
    deadlines = Deadlines(asyncio.get_running_loop(), 0.02)
    reached: list[str] = []
    last = asyncio.Event()
    deadlines.set(lambda: reached.append("first"))
    dropped = deadlines.set(lambda: reached.append("dropped"))

    def fails() -> None:
        reached.append("fails")
        raise LookupError

    deadlines.set(fails)
    deadlines.drop(dropped)
    await asyncio.sleep(0.01)
    began = asyncio.get_running_loop().time()
    deadlines.set(last.set)
    await asyncio.wait_for(last.wait(), 30)
    assert reached == ["first", "fails"]
    assert asyncio.get_running_loop().time() - began >= 0.019  # not with the one before it
    deadlines.drop(dropped)  # once more does no harm


async def test_each_loop_has_its_own_and_closed_ones_are_forgotten() -> None:
    limits = LoopDeadlines()

    def in_a_loop() -> Deadlines:
        async def of_this_loop() -> Deadlines:
            return limits.of(1.0)

        return asyncio.run(of_this_loop())

    others = [await asyncio.to_thread(in_a_loop) for _ in range(3)]
    own = limits.of(1.0)
    assert own not in others
    assert limits.of(1.0) is own
    assert limits.of(2.0) is not own
    assert len(each_of(limits)) == 2
