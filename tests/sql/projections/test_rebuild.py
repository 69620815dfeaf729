"""A projection is made again from the first event on, while it runs, and beside live traffic: all of the old or all of the new.

Rules of docs/contract.md: R12.52.
"""

import asyncio
import random
import signal
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from oncegate.sql import InboxBusy, ProjectionMisused
from testing.waiting import until, wait_until
from tests.sql.places import Place, done, place_of
from tests.sql.projections.accounts import (
    Ledger,
    add,
    applied,
    applied_count,
    balances,
    more_applied,
    position,
    projection,
)
from tests.sql.projections.test_projection import at_work, caught_up, on_both, on_postgresql
from tests.sql.projections.test_projection_kills import right, started


async def empty(place: Place, balance: Any, *, before: str = "", ends: bool = True) -> None:
    """What a user does: reset, and then empty the read model. In a thread: it waits for a runner in this event loop."""

    async def within(session: Any) -> None:
        if before:
            await done(session.execute(text(before)))
        await done(balance.reset(session))
        for table in ("balance", "applied"):
            await done(session.execute(text(f"DELETE FROM {table}")))
        if not ends:
            raise LookupError("rolled back")

    await asyncio.to_thread(place.transact, within)


async def test_it_is_made_again_while_it_runs_or_stays_as_it_was(place: Place) -> None:
    ledger, balance = Ledger(), projection(place, batch=3)
    await ledger.produced(place, *["a", "b", "a"] * 4)
    async with at_work(place, balance):
        await caught_up(place, ledger)
        with pytest.raises(LookupError):
            await empty(place, balance, ends=False)
        right(place, ledger)
        for _ in range(3):
            await empty(place, balance)
            await ledger.produced(place, "a", "c")
            await caught_up(place, ledger)
            right(place, ledger)


@on_postgresql
async def test_it_waits_for_the_batch_under_way_and_no_longer_than_wait_timeout(place: Place) -> None:
    """Else what that batch commits is in the read model that was emptied, and comes again."""
    ledger, held, entered = Ledger(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(event: Any, session: Session) -> None:
        add(event, session)
        loop.call_soon_threadsafe(entered.set)
        if event.version == 2:
            wait_until(held.is_set, "it goes on")

    # In a thread, whichever the place's kind is: an event loop could do nothing else meanwhile.
    plain = place_of(place.url.replace("asyncpg", "psycopg"))
    balance = projection(plain, work=work)
    await ledger.produced(place, "a", "a")
    async with at_work(plain, balance):
        await entered.wait()
        with pytest.raises(InboxBusy):
            await empty(place, projection(place, wait_timeout=0.1))
        reset = asyncio.create_task(empty(place, projection(place, wait_timeout=60)))
        await asyncio.to_thread(wait_until, lambda: _waits(place), "it waits for the batch")
        assert not reset.done()
        held.set()
        await reset
        await caught_up(place, ledger)
    right(place, ledger)


def _waits(place: Place) -> bool:
    query = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return bool(place.in_a_thread(lambda: place.execute(query)))


@on_postgresql
async def test_behind_a_write_it_is_refused(place: Place) -> None:
    with pytest.raises(ProjectionMisused, match="reset comes first"):
        await empty(place, projection(place), before="INSERT INTO balance VALUES ('x', 1)")


async def test_the_next_version_catches_up_beside_the_one_in_use(place: Place) -> None:
    ledger = Ledger()
    await ledger.produced(place, *["a", "b"] * 3)

    def other(event: Any, session: Session) -> None:
        values = {"account": f"v2/{event.account}", "amount": event.amount}
        session.execute(text("INSERT INTO balance VALUES (:account, :amount) ON CONFLICT (account) DO UPDATE"
                             " SET amount = balance.amount + excluded.amount"), values)  # fmt: skip

    async with at_work(place, projection(place)):
        await caught_up(place, ledger)
        async with at_work(place, projection(place, "balance.v2", other)):
            await ledger.produced(place, "a")
            await until(
                lambda: balances(place).get("v2/a") == ledger.balances()["a"] == balances(place)["a"], "both are whole"
            )
    assert balances(place) == ledger.balances() | {f"v2/{name}": each for name, each in ledger.balances().items()}


async def rebuilt(place: Place, events: int, resets: int, batch: int = 3) -> None:
    """Reset under live traffic, while runners are killed."""
    ledger, chance = Ledger(), random.Random(2)
    for begin in range(0, events, 1000):
        await ledger.produced(place, *[f"account-{chance.randrange(20)}" for _ in range(min(1000, events - begin))])
    runners = [started(place, "runs", str(batch)) for _ in range(2)]
    try:
        for _ in range(resets):
            before = applied_count(place)
            wait_until(partial(more_applied, place, before), "events are applied", within=120)
            await empty(place, projection(place, wait_timeout=60))
            await ledger.produced(place, *[f"account-{chance.randrange(20)}" for _ in range(50)])
            wait_until(lambda: applied_count(place) >= ledger.count // 2, "half of it is made again", within=600)
            for number, runner in enumerate(runners):
                runner.send_signal(signal.SIGKILL)
                runner.communicate()
                runners[number] = started(place, "runs", str(batch))
        wait_until(lambda: applied_count(place) >= ledger.count, "all of it is made again", within=600)
    finally:
        for runner in runners:
            runner.kill()
            runner.communicate()
    right(place, ledger)
    assert position(place).failed_at is None


@pytest.mark.timeout(600)
@on_both
async def test_made_again_beside_live_traffic_and_killed_half_way_it_is_the_ledger(place: Place) -> None:
    await rebuilt(place, events=600, resets=1)


@pytest.mark.long
@pytest.mark.timeout(3600)
@on_both
async def test_a_hundred_thousand_events_are_applied_again_beside_live_traffic(place: Place) -> None:
    await rebuilt(place, events=100_000, resets=2, batch=200)


@pytest.mark.timeout(300)
@on_both
async def test_killed_before_its_commit_a_reset_leaves_all_of_the_old(place: Place) -> None:
    ledger = Ledger()
    await ledger.produced(place, *["a", "b"] * 5)
    async with at_work(place, projection(place)):
        await caught_up(place, ledger)
    resetting = started(place, "resets")
    resetting.communicate(timeout=100)
    assert resetting.returncode == -signal.SIGKILL
    right(place, ledger)
    async with at_work(place, projection(place)):
        await ledger.produced(place, "a")
        await caught_up(place, ledger)
        right(place, ledger)
        await empty(place, projection(place))
        await caught_up(place, ledger)
    right(place, ledger)
    assert applied(place) == ledger.numbers()
