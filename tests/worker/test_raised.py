"""What is raised out of a command means the same of it whoever executes it: a middleware, a processor, a subscription, a worker.

Rules of docs/contract.md: R5.9, R5.18.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import pytest

from oncegate import (
    CommandProcessor,
    IdempotencyMiddleware,
    IdempotencySettings,
    NotProcessed,
    OutcomeUnknown,
    Subscription,
)
from oncegate.app.commands.executor import Confirm, Executor
from oncegate.app.commands.handler import Handler
from oncegate.app.commands.processing import Processing
from oncegate.app.commands.submission_life import SubmissionLife
from oncegate.cache.backoff import Backoff
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import State, StoredResponse
from oncegate.cache.redis.streams.stream import Command
from oncegate.middleware.consumers.command_context import CommandContext
from oncegate.middleware.consumers.delivery import Delivery, SubscriptionSettings
from oncegate.middleware.rules.keys.key import caller_scope, execution_key, record_key
from testing.asgi_client import Client

Raise = Callable[[Any], Awaitable[None]]
TIMEOUT = 0.05


class Mute(OutcomeUnknown):
    """Its text can't be had."""

    def __str__(self) -> str:
        raise ValueError("no text")


async def _raised_of_a_time_out(_: Any) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        raise ValueError("gave up") from None


async def _refused_after_a_time_out(_: Any) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        raise NotProcessed("it did not even begin") from None


async def _out_of_time(_: Any) -> None:
    await asyncio.get_running_loop().create_future()


async def _cancelled_inside(_: Any) -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


async def _mute(_: Any) -> None:
    raise Mute


async def _failed(_: Any) -> None:
    raise ValueError("declined")


def _plain_exit(_: Any) -> None:
    raise SystemExit


async def _exit(_: Any) -> None:
    raise SystemExit


async def _over_http(raises: Raise, cache: MemoryCache) -> str:
    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        if (ran := raises(scope)) is not None:
            await ran

    settings = IdempotencySettings(attempt_timeout=TIMEOUT)
    middleware = IdempotencyMiddleware(app, cache=cache, settings=settings)
    with suppress(Exception, SystemExit):  # and no cancellation: nobody has ended the request
        await Client("POST", b"/pay", [(b"idempotency-key", b"k")]).call(middleware)
    return record_key("default", "k", None)


async def _processed(raises: Raise, cache: MemoryCache) -> str:
    settings = IdempotencySettings(attempt_timeout=TIMEOUT)
    processor: CommandProcessor[Any, Any] = CommandProcessor(raises, name="pay", cache=cache, settings=settings)
    with suppress(BaseException):
        await processor.process({}, idempotency_key="k")
    return record_key("default", "k", caller_scope(""))


async def _subscribed(raises: Raise, cache: MemoryCache) -> str:
    subscription = Subscription("ledger", cache=cache, settings=SubscriptionSettings(attempt_timeout=TIMEOUT))
    with suppress(SystemExit):
        await subscription.execute(Delivery("k", b"{}"), raises, {})
    return execution_key(record_key("default", "k", None), "ledger")


async def _in_a_loop(raises: Raise, cache: MemoryCache) -> str:
    subscription = Subscription("ledger", cache=cache, settings=SubscriptionSettings(attempt_timeout=TIMEOUT))
    with suppress(BaseException):
        async for attempt in subscription.once(Delivery("k", b"{}")):
            async with attempt:
                await raises({})
    return execution_key(record_key("default", "k", None), "ledger")


class Forwards:
    """An executor that executes in the worker's own task, as that which forwards to a service."""

    can_be_cut = True
    loggable = True

    def __init__(self, raises: Raise) -> None:
        self._raises = raises

    async def execute(self, command: Command, context: CommandContext, confirm: Confirm) -> StoredResponse:
        if (ran := self._raises({})) is not None:
            await ran
        raise AssertionError("it did not raise")

    async def close(self) -> None:
        return


async def _forwarded(raises: Raise, cache: MemoryCache) -> str:
    return await _executed(Forwards(raises), cache)


async def _worked(raises: Raise, cache: MemoryCache) -> str:
    return await _executed(Handler(raises, threads=1), cache)


async def _executed(executor: Executor, cache: MemoryCache) -> str:
    pauses = Backoff(1.0, 1.0)
    processing = Processing(
        Subscription("ledger", cache=cache, settings=SubscriptionSettings(attempt_timeout=TIMEOUT)),
        executor,
        pauses,
        recheck=pauses,
        worker="w",
        life=cast(SubmissionLife, None),  # used for what is over alone
    )
    command = Command("k" * 20 + ":" + "s" * 20, "k", bytes(16), "POST", "/pay", "*", b"{}")
    assert (await processing.process(b"1-0", command.fields(), 1)).again is not None
    await executor.close()
    return execution_key(f"default:{command.command}", "ledger")


@pytest.mark.parametrize("execute", [_over_http, _processed, _subscribed, _worked, _forwarded])
@pytest.mark.parametrize(
    ("raises", "state"),
    [
        (_failed, State.FAILED),
        (_out_of_time, State.UNKNOWN),
        (_raised_of_a_time_out, State.UNKNOWN),
        (_refused_after_a_time_out, None),
        (_cancelled_inside, State.FAILED),
        (_mute, State.UNKNOWN),
        (_exit, State.UNKNOWN),
        (_plain_exit, State.UNKNOWN),
    ],
)
async def test_what_is_raised_means_the_same_whoever_executes_it(
    execute: Callable[[Raise, MemoryCache], Awaitable[str]], raises: Raise, state: State | None
) -> None:
    cache = MemoryCache()
    async with asyncio.timeout(30):
        held = await cache.get(await execute(raises, cache))
    assert (held and held.record.state) == state


@pytest.mark.parametrize(
    ("raises", "state"), [(_failed, State.FAILED), (_cancelled_inside, State.FAILED), (_exit, State.UNKNOWN)]
)
async def test_what_is_raised_in_the_body_of_a_loop_means_the_same(raises: Raise, state: State) -> None:
    cache = MemoryCache()
    held = await cache.get(await _in_a_loop(raises, cache))
    assert held is not None
    assert held.record.state is state


@pytest.mark.parametrize("execute", [_over_http, _processed])
async def test_a_cancellation_of_the_command_s_own_task_leaves_the_outcome_unknown(
    execute: Callable[[Raise, MemoryCache], Awaitable[str]],
) -> None:
    """As when an event loop ends with all its tasks: nobody knows how far it came."""

    async def ended(_: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    cache = MemoryCache()
    held = await cache.get(await execute(ended, cache))
    assert held is not None
    assert (held.record.state, held.record.trace.note) == (State.UNKNOWN, "was cancelled")
