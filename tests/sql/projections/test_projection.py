"""A projection applies each committed event once, in its aggregate's order, with its position in the same transaction.

Rules of docs/contract.md: R12.50.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from oncegate.sql import Projection
from testing.waiting import until
from tests.sql.outbox.sinks import ended
from tests.sql.places import Place
from tests.sql.projections.accounts import (
    ADD,
    EVENTS,
    Ledger,
    add,
    applied,
    applied_count,
    balances,
    engine_of,
    position,
    projection,
)

on_postgresql = pytest.mark.parametrize("place", ["asyncpg", "psycopg"], indirect=True)
on_both = pytest.mark.parametrize("place", ["asyncpg", "pysqlite"], indirect=True)


@asynccontextmanager
async def at_work(place: Place, *projections: Projection, **options: Any) -> AsyncIterator[None]:
    engine = engine_of(place)
    runners = [each.runner(engine, **options) for each in projections]
    tasks = [asyncio.create_task(runner.run()) for runner in runners]
    try:
        yield
    finally:
        for runner in runners:
            runner.stop()
        await asyncio.gather(*tasks)
        await ended(engine)


async def caught_up(place: Place, ledger: Ledger) -> None:
    await until(lambda: applied_count(place) >= ledger.count, "all events are applied")


async def test_events_are_applied_once_in_order_and_those_that_come_later_too(place: Place) -> None:
    ledger, balance = Ledger(), projection(place, batch=3)
    ledger.produce(place, *["a", "b", "a", "c"] * 3)
    async with at_work(place, balance):
        await caught_up(place, ledger)
        ledger.produce(place, "a", "d")
        await caught_up(place, ledger)
    assert (balances(place), applied(place)) == (ledger.balances(), ledger.numbers())
    async with at_work(place, projection(place)):  # the next process
        ledger.produce(place, "a")
        await caught_up(place, ledger)
    assert (balances(place), applied(place)) == (ledger.balances(), ledger.numbers())
