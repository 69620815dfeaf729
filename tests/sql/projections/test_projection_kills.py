"""Wherever a runner dies or stands still, each event is applied once, in its stream's order: the ledger is the producer's.

Rules of docs/contract.md: R12.50.
"""

import ast
import asyncio
import random
import signal
import subprocess
from functools import partial
from typing import Any

import pytest

from testing.template import ROOT, Forked
from testing.waiting import wait_until
from tests.sql.conftest import PRELOADED
from tests.sql.places import Place
from tests.sql.projections.accounts import Ledger, applied, applied_count, balances, more_applied, projection
from tests.sql.projections.test_projection import at_work, caught_up, on_both

STEPS = 24
"""Of a batch of three there are: its statements, seven to nine with two for each event, a commit, and what is behind it."""
KILLS = 10
MODULES = (*PRELOADED, "tests.sql.projections.accounts")


def started(place: Place, *arguments: str) -> "subprocess.Popen[str]":
    command = ["-m", "tests.sql.projections.runners", place.url, *arguments]
    return Forked(*command, preloaded=MODULES, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def right(place: Place, ledger: Ledger) -> None:
    assert applied(place) == ledger.numbers()
    assert balances(place) == ledger.balances()


@pytest.mark.timeout(300)
@on_both
async def test_killed_at_each_statement_it_applies_each_event_once(place: Place) -> None:
    ledger = Ledger()
    for _ in range(25):
        await ledger.produced(place, "a", "b", "a")
    dying = started(place, "dies", "1", str(STEPS))
    printed, _ = dying.communicate(timeout=250)
    assert ast.literal_eval(printed) == [-signal.SIGKILL] * STEPS
    assert 0 < applied_count(place) < ledger.count, "some batches were whole"
    async with at_work(place, projection(place)):
        await caught_up(place, ledger)
    right(place, ledger)


@pytest.mark.timeout(300)
@on_both
def test_of_two_runners_one_takes_over_from_the_other_that_is_killed(place: Place) -> None:
    ledger, chance = Ledger(), random.Random(1)
    ledger.produce(place, *[f"account-{chance.randrange(5)}" for _ in range(60)])
    runners: list[Any] = [started(place, "runs") for _ in range(2)]
    try:
        for number in range(KILLS):
            before = applied_count(place)
            ledger.produce(place, *[f"account-{chance.randrange(5)}" for _ in range(60)])
            wait_until(partial(more_applied, place, before), f"somebody is at work, kill {number}")
            one = chance.randrange(2)
            runners[one].kill()
            runners[one].communicate()
            runners[one] = started(place, "runs")
        wait_until(lambda: applied_count(place) >= ledger.count, "all events are applied")
    finally:
        for runner in runners:
            runner.kill()
            runner.communicate()
    right(place, ledger)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("place", ["asyncpg", "psycopg"], indirect=True)
async def test_one_that_stands_still_is_taken_over_from_and_commits_nothing_when_it_goes_on(place: Place) -> None:
    ledger = Ledger()
    await ledger.produced(place, *["a", "b"] * 5)
    still = started(place, "stands", "2")
    try:
        assert still.stdout is not None
        assert still.stdout.readline() == "stands still\n"
        async with at_work(place, projection(place)):
            await caught_up(place, ledger)  # once the server has ended the other one's transaction
        right(place, ledger)
        still.send_signal(signal.SIGCONT)
        assert "can't be reached" in await asyncio.to_thread(still.stdout.readline), "its transaction is gone"
        await ledger.produced(place, "a", "b")  # for whoever of the two it is that looks first
        async with at_work(place, projection(place)):
            await caught_up(place, ledger)
    finally:
        still.kill()
        still.communicate()
    right(place, ledger)
