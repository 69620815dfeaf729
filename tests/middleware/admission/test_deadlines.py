"""Time limits: what ends at once pays for none, what lasts is ended in time, and many share one timer."""

import asyncio

import pytest

from oncegate.middleware.admission.limits.deadlines import Deadlines, LoopDeadlines
from oncegate.middleware.admission.limits.within import within
from testing.inside import each_of


async def test_what_ends_at_once_ends_with_its_result_or_its_error() -> None:
    async def result() -> int:
        return 7

    async def error() -> None:
        raise LookupError

    assert await within(0.0, result()) == 7
    with pytest.raises(LookupError):
        await within(0.0, error())


async def test_what_waits_goes_on_where_it_waited() -> None:
    seen: list[object] = []

    async def steps() -> str:
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
        return "done"

    assert await within(10.0, steps()) == "done"
    assert seen == [0, 1, 2, "told", "told, too"]


async def test_what_lasts_too_long_is_cancelled_and_may_clean_up() -> None:
    seen: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cleaned up")

    with pytest.raises(TimeoutError):
        await within(0.01, endless())
    assert seen == ["cleaned up"]


async def test_a_cancellation_from_outside_stays_one() -> None:
    begun = asyncio.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(within(10.0, endless()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_awaitable_that_is_no_coroutine_will_do() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, 3)
    assert await within(10.0, future) == 3


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
