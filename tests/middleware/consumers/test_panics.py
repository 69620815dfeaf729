"""Handlers that raise what is no ``Exception``, or end the process: no lease is held for it, and no event loop ends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncegate import Action, Subscription
from oncegate.cache.record import State
from testing.waiting import until
from tests.middleware.conftest import MakeSubscription
from tests.middleware.consumers.test_handlers import Handler
from tests.middleware.deliveries import PAY, Records


class Panic(BaseException):
    """As func_timeout's, or what a panic in an extension written in Rust becomes."""


@pytest.mark.parametrize("kind", [Panic, GeneratorExit])
async def test_what_is_no_exception_is_a_failure_too(
    subscribe: MakeSubscription, records: Records, kind: type[BaseException]
) -> None:
    def blocking() -> None:
        raise kind("no")

    handlers: list[Any] = [Handler(kind("no")), blocking]
    for number, handler in enumerate(handlers, 1):
        subscription = subscribe("ledger")
        begun = await subscription.execute(PAY, handler)
        assert (begun.action, type(begun.execution.raised), begun.attempt) == (Action.REDELIVER, kind, number)
        assert await records.state("ledger") is State.FAILED
        await subscription.drain()
        assert subscription.slots == 0


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_what_ends_the_process_goes_on_and_leaves_the_outcome_unknown(
    subscribe: MakeSubscription, records: Records, kind: type[BaseException]
) -> None:
    def blocking() -> None:
        raise kind

    async def by_hand(subscription: Subscription) -> None:
        async for attempt in subscription.once(PAY):
            async with attempt:
                raise kind

    runs: list[Callable[[Subscription], Awaitable[object]]] = [
        lambda subscription: subscription.execute(PAY, Handler(kind())),
        lambda subscription: subscription.execute(PAY, blocking),
        by_hand,
    ]
    for number, run in enumerate(runs, 1):
        subscription = subscribe("ledger")
        with pytest.raises(kind):
            await run(subscription)
        assert (await records.kept("ledger"))[:2] == (State.UNKNOWN, number)
        await subscription.drain()
        assert subscription.slots == 0


async def test_a_consumer_whose_coroutine_is_closed_lets_its_lease_go(
    subscribe: MakeSubscription, records: Records
) -> None:
    """As when nobody holds its task any more, and it is collected."""
    subscription = subscribe("ledger")

    async def by_hand(_: Any, handler: Handler) -> None:
        async for attempt in subscription.once(PAY):
            async with attempt:
                await handler()

    consumers: list[Any] = [subscription.execute, by_hand]
    for number, consume in enumerate(consumers, 1):
        handler = Handler(held=True)
        task: asyncio.Task[Any] = asyncio.ensure_future(consume(PAY, handler))
        await handler.began.wait()
        task.get_coro().close()
        await until(lambda: subscription.slots == 0)
        assert (await records.kept("ledger"))[:2] == (State.UNKNOWN, number)
        task.cancel()
        await asyncio.wait([task])
