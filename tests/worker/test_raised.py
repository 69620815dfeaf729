"""What is raised out of a command means the same of it whoever executes it: a processor, a subscription, a worker.

Rules of docs/contract.md: R5.9, R5.18.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import pytest

from oncegate import CommandProcessor, IdempotencySettings, NotProcessed, OutcomeUnknown, Subscription
from oncegate.app.commands.handler import Handler
from oncegate.app.commands.processing import Processing
from oncegate.app.commands.submission_life import SubmissionLife
from oncegate.cache.backoff import Backoff
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import State
from oncegate.cache.redis.streams.stream import Command
from oncegate.middleware.consumers.delivery import Delivery, SubscriptionSettings
from oncegate.middleware.rules.key import caller_scope, execution_key, record_key

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
    raise asyncio.CancelledError


async def _mute(_: Any) -> None:
    raise Mute


async def _failed(_: Any) -> None:
    raise ValueError("declined")


def _plain_exit(_: Any) -> None:
    raise SystemExit


async def _exit(_: Any) -> None:
    raise SystemExit


async def _processed(raises: Raise, cache: MemoryCache) -> str:
    settings = IdempotencySettings(attempt_timeout=TIMEOUT)
    processor: CommandProcessor[Any, Any] = CommandProcessor(raises, name="pay", cache=cache, settings=settings)
    with suppress(BaseException):
        await processor.process({}, idempotency_key="k")
    return record_key("default", "k", caller_scope(""))


async def _subscribed(raises: Raise, cache: MemoryCache) -> str:
    subscription = Subscription("ledger", cache=cache, settings=SubscriptionSettings(timeout=TIMEOUT))
    with suppress(SystemExit):
        await subscription.execute(Delivery("k", b"{}"), raises, {})
    return execution_key(record_key("default", "k", None), "ledger")


async def _worked(raises: Raise, cache: MemoryCache) -> str:
    pauses = Backoff(1.0, 1.0)
    processing = Processing(
        Subscription("ledger", cache=cache, settings=SubscriptionSettings(timeout=TIMEOUT)),
        handler := Handler(raises, threads=1),
        pauses,
        recheck=pauses,
        worker="w",
        life=cast(SubmissionLife, None),  # used for what is over alone
    )
    command = Command("k" * 20 + ":" + "s" * 20, "k", bytes(16), "POST", "/pay", "*", b"{}")
    assert (await processing.process(b"1-0", command.fields(), 1)).again is not None
    await handler.close()
    return execution_key(f"default:{command.command}", "ledger")


@pytest.mark.parametrize("execute", [_processed, _subscribed, _worked])
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
