"""The outcome of a parked message: in the hook's record, and for operators.

Rules of docs/contract.md: R12.17.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from sqlalchemy import MetaData, NullPool
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from oncegate import Action, Begun, DeliveryDecision, MemoryCache, NotRetryable, Subscription
from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.record import Claim, ClaimRequest
from oncegate.middleware.consumers.delivery import SubscriptionSettings
from oncegate.sql.handlers.ordered import OrderedHandler
from oncegate.sql.inbox.create import create
from oncegate.sql.order.table import parked_table
from oncegate.sql.order.waiting import OrderTables, parked_totals
from tests.sql.handlers.parking import BOTH, applies, consume, deliveries, failing, inbox, parked, sweep
from tests.sql.places import Place


def recorded(cache: MemoryCache, handler: Callable[..., Any], *numbers: int) -> Begun:
    """The hook's decision about number 2, after ``numbers`` were delivered in this order, by its records in ``cache`` alone."""

    async def run() -> Begun:
        subscription = Subscription("ledger", cache=cache)
        for each in deliveries(*numbers):
            await subscription.execute(each, handler, f"a{each.sequence:03}")
        return await subscription.begin(deliveries(2)[0])

    return asyncio.run(run())


@BOTH
def test_the_hook_s_record_gets_the_outcome_of_what_was_parked(place: Place) -> None:
    begun = recorded(MemoryCache(), place.handler(inbox(), applies), 3, 2, 1)
    assert (begun.decision, begun.result) == (DeliveryDecision.DUPLICATE, b'"a002"')
    assert parked(place) == []


@BOTH
def test_and_that_of_one_that_has_failed_for_good(place: Place) -> None:
    """Which an operator may have tried again: it is done then."""
    broken, work = failing("a002")
    handler, cache = place.handler(inbox(), work), MemoryCache()
    failed = recorded(cache, handler, 2, 1)
    assert failed.decision is DeliveryDecision.EXHAUSTED
    assert failed.response is not None
    assert orjson.loads(failed.response.body or b"") == {
        "type": "NotRetryable", "message": "no such account", "dead": True,
    }  # fmt: skip
    broken.clear()
    place.execute("UPDATE oncegate_parked SET dead = false")  # oncegate inbox retry
    again = recorded(cache, handler, 3)
    assert (again.decision, again.result, parked(place)) == (DeliveryDecision.DUPLICATE, b'"a002"', [])


@BOTH
@pytest.mark.parametrize("error", [NotRetryable("no such account"), ZeroDivisionError("no such account")])
def test_one_whose_turn_comes_while_it_is_parked_has_failed_at_once_if_it_fails_for_good(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """No sweep is needed to end its status: its own delivery has the error."""

    def work(session: Session, payload: Any) -> Any:
        raise error

    def follow(*args: Any) -> Any:
        place.in_a_thread(lambda: place.deliver(inbox(), "a-1", aggregate="a", sequence=1))
        return followed(*args)

    followed = OrderedHandler.follow
    monkeypatch.setattr(OrderedHandler, "follow", follow)
    failed = recorded(MemoryCache(), place.handler(inbox(max_attempts=1), work), 2)
    assert failed.decision is DeliveryDecision.EXHAUSTED
    assert failed.response is not None
    assert orjson.loads(failed.response.body or b"") == {
        "type": type(error).__name__, "message": "no such account", "dead": True,
    }  # fmt: skip
    assert place.execute("SELECT sequence, outcome FROM oncegate_parked WHERE dead") == [(2, None)]


class Leaving(MemoryCache):
    """Takes no claim once it is ``away``."""

    away = False

    async def claim(self, key: str, request: ClaimRequest, **call: Any) -> Claim:
        if self.away:
            raise CacheUnavailable("away")
        return await super().claim(key, request, **call)


@BOTH
def test_an_outcome_that_was_not_recorded_is_recorded_by_a_sweep(place: Place) -> None:
    """As after a death behind the commit: another process has the row, with its outcome."""
    cache, ledger = Leaving(), inbox()

    def work(session: Session, payload: Any) -> Any:
        cache.away = True
        return applies(session, payload)

    handler = place.handler(ledger, work)
    recorded(cache, handler, 2, 1)
    assert (place.effects(), parked(place)) == (["a001", "a002"], [2])
    assert waiting_rows(place) == 0
    place.execute("UPDATE oncegate_parked SET due_at = parked_at")
    cache = Leaving()
    Subscription("ledger", cache=cache).only(handler)
    sweep(ledger, lambda: not parked(place))
    begun = recorded(cache, handler)
    assert (begun.decision, begun.result) == (DeliveryDecision.DUPLICATE, b'"a002"')


@BOTH
def test_a_last_attempt_that_comes_early_is_parked_and_follows(place: Place) -> None:
    """It is noted where its turn has come alone, since its process may die."""
    handler = place.handler(inbox(), applies)
    consume(handler, *deliveries(2, 2, 1), max_attempts=1)
    assert (place.effects(), parked(place)) == (["a001", "a002"], [])


def waiting_rows(place: Place) -> int:
    table = parked_table(MetaData())
    return len(place.run(lambda session: parked_totals(session.connection(), table, "ledger")))


def test_a_time_out_of_the_last_attempt_is_noted_for_operators(tmp_path: Any) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/app.db"
    create(url, None)
    engine = create_async_engine(url, poolclass=NullPool)

    @inbox().transaction(async_sessionmaker(engine))
    async def book(amount: int, session: AsyncSession) -> None:
        await asyncio.Event().wait()

    async def run() -> Begun:
        settings = SubscriptionSettings(max_attempts=1, attempt_timeout=1)  # a connection and the marker are in it
        subscription = Subscription("ledger", cache=MemoryCache(), settings=settings)
        return await subscription.execute(deliveries(1)[0], book, 5)

    begun = asyncio.run(run())
    assert begun.action is Action.DEAD_LETTER
    (found,) = OrderTables(None).waiting(url)
    assert (found.waits_for, found.record, found.attempts) == (1, begun.record, 1)
    assert found.reason
    assert found.reason.startswith("TimeoutError")
