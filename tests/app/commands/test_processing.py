"""A worker's entries, one by one: who runs beside whom, and what is logged of those that nothing was begun of.

Rules of docs/contract.md: R12.71, R12.72.
"""

import asyncio
import logging
from typing import cast

import pytest

from oncegate import NotProcessed, Subscription
from oncegate.app.commands import alone
from oncegate.app.commands.alone import Alone
from oncegate.app.commands.executor import Confirm
from oncegate.app.commands.processing import Processing
from oncegate.app.commands.submission_life import SubmissionLife
from oncegate.cache.backoff import Backoff
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import ClaimRequest, StoredResponse
from oncegate.cache.redis.streams.stream import Command
from oncegate.middleware.consumers.command_context import CommandContext
from oncegate.middleware.consumers.delivery import SubscriptionSettings
from oncegate.middleware.consumers.handlers import sent_back
from oncegate.middleware.rules.keys.key import execution_key
from testing.waiting import until

SUSPECT, OTHER, NEXT = (letter * 20 + ":" + "s" * 20 for letter in "abc")


class NoLife:
    """What ties a command's records together, where there is one alone."""

    async def tie(self, command: Command, entry: str) -> None:
        return


class Gated:
    """An executor whose commands run until they are let go. ``running`` are those that do."""

    can_be_cut = True
    loggable = True

    def __init__(self) -> None:
        self.running: dict[str, asyncio.Event] = {}

    async def execute(self, command: Command, context: CommandContext, confirm: Confirm) -> StoredResponse:
        self.running[command.command] = asyncio.Event()
        await self.running[command.command].wait()
        del self.running[command.command]
        return StoredResponse(201, (), b"", 1)

    async def close(self) -> None:
        return


class Closed(Gated):
    """An executor that can begin nothing."""

    async def execute(self, command: Command, context: CommandContext, confirm: Confirm) -> StoredResponse:
        raise NotProcessed(f"the shop is closed for record {command.command}")


def processing(executor: Gated, cache: MemoryCache) -> Processing:
    pauses = Backoff(1.0, 1.0)
    settings = SubscriptionSettings(attempt_timeout=600, lease=60)
    subscription = Subscription("ledger", cache=cache, settings=settings)
    return Processing(subscription, executor, pauses, pauses, "w", cast(SubmissionLife, NoLife()))


def command(name: str) -> Command:
    return Command(name, "k", bytes(16), "POST", "/pay", "*", b"{}")


async def crashed(cache: MemoryCache, name: str) -> None:
    """Leave ``name`` as a process does that dies while it executes it."""
    key = execution_key(f"default:{name}", "ledger")
    await cache.claim(key, ClaimRequest(bytes(16), bytes(16), 1, 600_000))

    async def lapsed() -> bool:
        held = await cache.get(key)
        return held is not None and held.record.lapsed

    while not await lapsed():  # noqa: ASYNC110 - time does it, and nobody to be awaited
        await asyncio.sleep(0.001)


async def test_nothing_begins_beside_a_suspect() -> None:
    """Each step of the loop is one: how many one takes to begin is counted first, by one that nobody holds up."""
    executor, cache = Gated(), MemoryCache()
    worked = processing(executor, cache)
    await crashed(cache, SUSPECT)

    suspect = asyncio.create_task(worked.process(b"1-0", command(SUSPECT).fields(), 2))
    await until(lambda: SUSPECT in executor.running, "the suspect runs")
    other = asyncio.create_task(worked.process(b"2-0", command(OTHER).fields(), 1))
    elsewhere = processing(executor, cache)  # of another worker
    free = asyncio.create_task(elsewhere.process(b"3-0", command(NEXT).fields(), 1))
    steps = 0
    while NEXT not in executor.running:
        await asyncio.sleep(0)
        steps += 1
    for _ in range(10 * steps + 100):
        await asyncio.sleep(0)
    assert set(executor.running) == {SUSPECT, NEXT}

    executor.running[SUSPECT].set()
    await until(lambda: OTHER in executor.running, "what waited for it begins")
    executor.running[OTHER].set()
    executor.running[NEXT].set()
    async with asyncio.timeout(30):
        done = await asyncio.gather(suspect, other, free)
    assert [each.again for each in done] == [None] * 3


async def enter(gate: Alone) -> None:
    async with asyncio.timeout(30):
        await gate.enter()


async def test_a_suspect_waits_for_those_inside_and_others_wait_for_it() -> None:
    gate = Alone()
    await enter(gate)
    await enter(gate)
    suspect = asyncio.create_task(gate.alone())
    late = asyncio.create_task(enter(gate))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not suspect.done()
    assert not late.done()
    assert not await gate.alone(), "two suspects at once"
    gate.leave(alone=False)
    async with asyncio.timeout(30):
        assert await suspect
    for _ in range(100):
        await asyncio.sleep(0)
    assert not late.done()
    gate.leave(alone=True)
    await late


async def test_a_suspect_waits_for_one_that_hangs_no_longer_than_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "PATIENCE", 0.01)
    gate = Alone()
    await enter(gate)
    await enter(gate)
    async with asyncio.timeout(30):
        assert await gate.alone()


async def test_one_that_is_cancelled_while_it_waits_holds_nobody_up() -> None:
    gate = Alone()
    await enter(gate)
    await enter(gate)
    suspect = asyncio.create_task(gate.alone())
    late = asyncio.create_task(enter(gate))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not late.done()
    suspect.cancel()
    await late


async def test_what_is_not_begun_for_one_cause_is_a_warning_once_a_minute_with_the_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    monkeypatch.setattr(sent_back, "monotonic", lambda: now)
    monkeypatch.setattr(sent_back, "_logged", {})
    caplog.set_level(logging.DEBUG, "oncegate.worker")
    worked = processing(Closed(), MemoryCache())

    async def try_all() -> None:
        for name in (SUSPECT, OTHER, NEXT):
            assert (await worked.process(b"1-0", command(name).fields(), 1)).again is not None

    def lines(level: int) -> list[str]:
        found = [each for each in caplog.records if each.levelno == level]
        return [line for each in found if "nothing was begun" in (line := each.getMessage())]

    await try_all()
    await try_all()
    assert len(lines(logging.WARNING)) == 1
    assert len(lines(logging.DEBUG)) == 5, "each is seen by who looks closely"
    now += sent_back.EVERY
    await try_all()
    assert len(lines(logging.WARNING)) == 2
    assert lines(logging.WARNING)[-1].endswith("(5 others since the last line)")
    assert "the shop is closed" in lines(logging.WARNING)[0]
