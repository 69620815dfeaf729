"""Messages that come early under `Inbox.transaction`: parked, acknowledged, and run in their order once their turn has come.

Rules of docs/contract.md: R12.17.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from sqlalchemy import MetaData, NullPool, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from oncegate import Action, Begun, Delivery, DeliveryDecision, MemoryCache, NotProcessed, NotRetryable, Subscription
from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.record import Claim, ClaimRequest
from oncegate.cache.store import Adopt
from oncegate.middleware.consumers.delivery import SubscriptionSettings
from oncegate.middleware.outcome.errors import Parked
from oncegate.sql import Inbox, InboxBusy, InboxMisused, SequenceEarly, SequenceForked
from oncegate.sql.inbox.create import create
from oncegate.sql.order.table import parked_table
from oncegate.sql.order.waiting import Operated, backlog
from testing.waiting import until as wait_for
from testing.waiting import wait_until
from tests.sql.held import PATIENT, Held, Pool, is_waiting
from tests.sql.places import EFFECT, Place

BOTH = pytest.mark.parametrize("place", ["asyncpg", "pysqlite"], indirect=True)
OTHERS = pytest.mark.parametrize("place", ["psycopg", "aiosqlite"], indirect=True)


def inbox(**options: Any) -> Inbox:
    return Inbox("ledger", order="contiguous", wait_timeout=PATIENT, **options)


def applies(session: Session, payload: Any) -> Any:
    session.execute(EFFECT, {"what": payload})
    return payload


def deliveries(*numbers: int, aggregate: str = "a") -> list[Delivery]:
    return [Delivery(f"{aggregate}-{each}", b"p", aggregate=aggregate, sequence=each) for each in numbers]


def consume(handler: Callable[..., Any], *which: Delivery) -> list[Begun]:
    """What the hook says of deliveries, in their order; it has no records of an earlier process."""

    async def run() -> list[Begun]:
        subscription = Subscription("ledger", cache=MemoryCache())
        done = [await subscription.execute(each, handler, f"{each.aggregate}{each.sequence:03}") for each in which]
        await subscription.drain()
        return done

    return asyncio.run(run())


def sweep(ledger: Inbox, until: Callable[[], Any]) -> None:
    """Sweep again and again, as `Inbox.following` does, until that has come true."""

    async def swept() -> bool:
        for each in ledger._sweeps:
            await each()
        return bool(await asyncio.to_thread(until))

    asyncio.run(wait_for(swept, "swept"))


def parked(place: Place) -> list[int]:
    counted = "(SELECT coalesce(sum(parked), 0) FROM oncegate_order) AS counted"
    found = place.execute(f"SELECT sequence, {counted} FROM oncegate_parked ORDER BY sequence")
    assert all(row.counted == len(found) for row in found)
    return [row.sequence for row in found]


@pytest.mark.parametrize("place", ["asyncpg", "psycopg", "aiosqlite", "pysqlite"], indirect=True)
def test_what_is_early_is_parked_acknowledged_and_follows_in_its_order(place: Place) -> None:
    handler = place.handler(inbox(), applies)
    early = consume(handler, *deliveries(3, 4, 2))
    assert [begun.action for begun in early] == [Action.ACKNOWLEDGE] * 3
    assert all(isinstance(begun.raised, Parked) and not begun.succeeded for begun in early)
    assert (place.effects(), parked(place)) == ([], [2, 3, 4])
    (first,) = consume(handler, *deliveries(1))
    assert first.returned == "a001"
    assert (place.effects(), parked(place)) == (["a001", "a002", "a003", "a004"], [])
    assert [begun.action for begun in consume(handler, *deliveries(4, 3, 5))] == [Action.ACKNOWLEDGE] * 3
    assert place.effects() == ["a001", "a002", "a003", "a004", "a005"]


@BOTH
def test_a_parked_one_that_is_delivered_again_is_parked_once_and_keeps_its_result(place: Place) -> None:
    handler = place.handler(inbox(), applies)
    consume(handler, *deliveries(2, 2))
    assert parked(place) == [2]
    consume(handler, *deliveries(1))
    (again,) = consume(handler, *deliveries(2))
    assert (again.action, again.returned) == (Action.ACKNOWLEDGE, "a002")
    consume(handler, *deliveries(4))
    (other,) = consume(handler, Delivery("another", b"p", aggregate="a", sequence=4))
    assert (type(other.raised), other.action) == (SequenceForked, Action.DEAD_LETTER)


@BOTH
def test_the_hook_counts_no_attempt_and_records_no_success_of_what_is_parked(place: Place) -> None:
    handler = place.handler(inbox(), applies)

    async def run() -> list[Begun]:
        subscription = Subscription("ledger", cache=MemoryCache())
        (two, one) = deliveries(2, 1)
        return [await subscription.execute(each, handler, each.key) for each in (two, two, one, two)]

    found = asyncio.run(run())
    assert [(begun.attempt, begun.run, begun.succeeded) for begun in found] == [
        (1, True, False), (1, True, False), (1, True, True), (1, False, False),
    ]  # fmt: skip
    assert found[3].result == b'"a-2"'


@BOTH
def test_a_number_that_is_parked_while_the_one_before_commits_follows_at_once(place: Place, pool: Pool) -> None:
    """Whoever comes first: the one who parks waits for the other's end, and finds that its turn has come."""
    if not place.is_postgresql:
        place.connect_with(connect_args={"timeout": PATIENT})
    ledger = inbox()
    handler = place.handler(ledger, applies)
    for one, two in ((1, 2), (3, 4)):  # of a new aggregate, and of one that has a row
        held = Held(place, ledger, f"a-{one}", pool, aggregate="a", sequence=one)
        early = pool.submit(consume, handler, *deliveries(two))
        wait_until(is_waiting(place), "it waits")
        held.release()
        assert early.result(PATIENT)[0].returned == f"a{two:03}"
    assert (place.effects(), parked(place)) == (["a-1", "a-3", "a002", "a004"], [])


@BOTH
def test_all_of_an_aggregate_at_once(place: Place, pool: Pool) -> None:
    if not place.is_postgresql:
        place.connect_with(connect_args={"timeout": PATIENT})
    handler = place.handler(inbox(), applies)
    count = 12
    done = [pool.submit(consume, handler, each) for each in deliveries(*range(count, 0, -1))]
    assert all(each.result(PATIENT)[0].action is Action.ACKNOWLEDGE for each in done)
    place_in_table = "ctid" if place.is_postgresql else "rowid"
    order = [row.what for row in place.execute(f"SELECT what FROM effects ORDER BY {place_in_table}")]
    assert order == [f"a{number:03}" for number in range(1, count + 1)]
    assert parked(place) == []


class Event(BaseModel):
    name: str
    amount: int


def test_a_payload_comes_back_as_the_handler_takes_it(tmp_path: Any) -> None:
    place_url = f"sqlite:///{tmp_path}/app.db"
    engine = create_engine(place_url)
    create(place_url, None)
    ledger, seen = inbox(), []

    @ledger.transaction(sessionmaker(engine))
    def book(event: Event, session: Session, raw: bytes, extra: Any = None) -> None:
        seen.append((event, raw, extra))

    async def run(*items: tuple[int, Any]) -> list[Begun]:
        subscription = Subscription("ledger", cache=MemoryCache())
        return [
            await subscription.execute(
                deliveries(number)[0], book, Event(name="é", amount=number), b"\xff", extra=extra
            )
            for number, extra in items
        ]

    done = asyncio.run(run((2, {"a": [1]}), (3, object())))
    assert [(begun.action, type(begun.raised)) for begun in done] == [
        (Action.ACKNOWLEDGE, Parked), (Action.REDELIVER, SequenceEarly),
    ]  # fmt: skip
    asyncio.run(run((1, None)))
    assert seen[1] == (Event(name="é", amount=2), b"\xff", {"a": [1]})
    assert isinstance(seen[1][0], Event)
    engine.dispose()


@OTHERS
def test_one_that_fails_holds_up_its_own_aggregate_alone_and_is_tried_again(place: Place) -> None:
    """What has failed for good is delivered again by an operator, and the rest follow; another aggregate went on."""
    broken = {"a001", "a003"}

    def work(session: Session, payload: Any) -> Any:
        if payload in broken:
            raise NotRetryable("no such account") if payload == "a001" else ZeroDivisionError
        return applies(session, payload)

    ledger = inbox(max_attempts=2)
    handler = place.handler(ledger, work)
    (dead, *_) = consume(handler, *deliveries(1, 2, 3, 4), *deliveries(1, 2, aggregate="b"))
    assert dead.action is Action.DEAD_LETTER
    assert (place.effects(), parked(place)) == (
        ["b001", "b002"],
        [1, 2, 3, 4],
    )  # and the one they wait for, for operators
    broken.remove("a001")
    consume(handler, *deliveries(1))
    assert place.effects() == ["a001", "a002", "b001", "b002"]
    row = place.execute("SELECT attempts, dead, reason FROM oncegate_parked WHERE sequence = 3")[0]
    assert (row.attempts, bool(row.dead)) == (1, False)
    assert row.reason.startswith("ZeroDivisionError")
    sweep(ledger, lambda: place.execute("SELECT 1 FROM oncegate_parked WHERE sequence = 3 AND dead"))
    assert parked(place) == [3, 4]


@BOTH
def test_a_conflict_costs_a_parked_one_no_attempt(place: Place) -> None:
    raised: list[Exception] = [InboxBusy("another"), NotProcessed("no connection")]

    def work(session: Session, payload: Any) -> Any:
        if payload == "a002" and raised:
            raise raised.pop()
        return applies(session, payload)

    ledger = inbox(max_attempts=1)
    handler = place.handler(ledger, work)
    consume(handler, *deliveries(2, 1))
    sweep(ledger, lambda: not parked(place))
    assert place.effects() == ["a001", "a002"]


@BOTH
def test_beyond_max_parked_it_is_delivered_again_and_counts_no_attempt(place: Place) -> None:
    handler = place.handler(inbox(max_parked=2), applies)
    found = consume(handler, *deliveries(2), *deliveries(2, aggregate="b"), *deliveries(3, 2))
    assert [begun.action for begun in found] == [
        Action.ACKNOWLEDGE, Action.ACKNOWLEDGE, Action.REDELIVER, Action.ACKNOWLEDGE,
    ]  # fmt: skip
    assert isinstance(found[2].raised, SequenceEarly)


@BOTH
def test_latest_parks_nothing(place: Place) -> None:
    """Nor does anything wait for one that has failed for good."""

    def work(session: Session, payload: Any) -> Any:
        if payload == "a006":
            raise NotRetryable
        return applies(session, payload)

    handler = place.handler(Inbox("state", order="latest"), work)
    consume(handler, *deliveries(3, 2, 5, 6, 7))
    assert (place.effects(), parked(place)) == (["a003", "a005", "a007"], [])


def test_a_batch_is_refused_where_it_is_defined_and_where_it_is_delivered() -> None:
    sessions = sessionmaker(create_engine("sqlite://"))
    with pytest.raises(TypeError, match=r"leave out batch=True, and use Subscription\.execute$"):
        inbox().transaction(sessions, batch=True)

    @inbox().transaction(sessions)
    def book(payloads: Any, session: Session) -> None: ...

    async def run() -> list[Begun]:
        subscription = Subscription("ledger", cache=MemoryCache())
        return await subscription.execute_many(deliveries(1, 2), book, ["one", "two"])

    for begun in asyncio.run(run()):
        assert isinstance(begun.raised, InboxMisused)
        assert str(begun.raised).endswith("takes one message at a time, by Subscription.execute")


def recorded(place: Place, handler: Callable[..., Any], numbers: tuple[int, ...], **options: Any) -> Begun:
    """The hook's decision about number 2, after ``numbers`` were delivered in this order, by its records alone."""

    async def run() -> Begun:
        subscription = Subscription("ledger", cache=MemoryCache(), **options)
        for each in deliveries(*numbers):
            await subscription.execute(each, handler, f"a{each.sequence:03}")
        begun = await subscription.begin(deliveries(2)[0])
        if begun.run:
            await begun.release()
        return begun

    return asyncio.run(run())


@BOTH
def test_the_hook_s_record_gets_the_outcome_of_what_was_parked(place: Place) -> None:
    begun = recorded(place, place.handler(inbox(), applies), (3, 2, 1))
    assert (begun.decision, begun.result) == (DeliveryDecision.DUPLICATE, b'"a002"')
    assert parked(place) == []


@BOTH
def test_and_that_of_one_that_has_failed_for_good(place: Place) -> None:
    """Which an operator may have tried again: it is done then."""
    broken = {"a002"}

    def work(session: Session, payload: Any) -> Any:
        if payload in broken:
            raise NotRetryable("no such account")
        return applies(session, payload)

    handler, cache = place.handler(inbox(), work), MemoryCache()

    async def run(*numbers: int) -> Begun:
        subscription = Subscription("ledger", cache=cache)
        for each in deliveries(*numbers):
            await subscription.execute(each, handler, f"a{each.sequence:03}")
        begun = await subscription.begin(deliveries(2)[0])
        assert not begun.run
        return begun

    failed = asyncio.run(run(2, 1))
    assert failed.decision is DeliveryDecision.EXHAUSTED
    assert failed.response is not None
    assert orjson.loads(failed.response.body or b"") == {
        "type": "NotRetryable", "message": "no such account", "dead": True,
    }  # fmt: skip
    broken.clear()
    place.execute("UPDATE oncegate_parked SET dead = false")  # oncegate inbox retry
    again = asyncio.run(run(3))
    assert (again.decision, again.result, parked(place)) == (DeliveryDecision.DUPLICATE, b'"a002"', [])


class Leaving(MemoryCache):
    """Takes no claim once it is ``away``."""

    away = False

    async def claim(self, key: str, request: ClaimRequest, *, adopt: Adopt | None = None) -> Claim:
        if self.away:
            raise CacheUnavailable("away")
        return await super().claim(key, request, adopt=adopt)


@BOTH
def test_an_outcome_that_was_not_recorded_is_recorded_by_a_sweep(place: Place) -> None:
    """As after a death behind the commit: another process has the row, with its outcome."""
    cache, ledger = Leaving(), inbox()

    def work(session: Session, payload: Any) -> Any:
        cache.away = True
        return applies(session, payload)

    handler = place.handler(ledger, work)

    async def decided(*numbers: int) -> Begun:
        subscription = Subscription("ledger", cache=cache)
        for each in deliveries(*numbers):
            await subscription.execute(each, handler, f"a{each.sequence:03}")
        cache.away = False
        return await subscription.begin(deliveries(2)[0])

    assert asyncio.run(decided(2, 1)).run  # and its attempt ends with the event loop
    assert (place.effects(), parked(place)) == (["a001", "a002"], [2])
    assert waiting_rows(place) == 0
    place.execute("UPDATE oncegate_parked SET due_at = parked_at")
    cache = Leaving()
    Subscription("ledger", cache=cache).only(handler)
    sweep(ledger, lambda: not parked(place))
    begun = asyncio.run(decided())
    assert (begun.decision, begun.result) == (DeliveryDecision.DUPLICATE, b'"a002"')


def waiting_rows(place: Place) -> int:
    table = parked_table(MetaData())
    return int(place.run(lambda session: backlog(session.connection(), table, "ledger")).parked)


def test_a_time_out_of_the_last_attempt_is_noted_for_operators(tmp_path: Any) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/app.db"
    create(url, None)
    engine = create_async_engine(url, poolclass=NullPool)

    @inbox().transaction(async_sessionmaker(engine))
    async def book(amount: int, session: AsyncSession) -> None:
        await asyncio.Event().wait()

    async def run() -> Begun:
        settings = SubscriptionSettings(max_attempts=1, timeout=0.2)
        subscription = Subscription("ledger", cache=MemoryCache(), settings=settings)
        return await subscription.execute(deliveries(1)[0], book, 5)

    begun = asyncio.run(run())
    assert begun.action is Action.DEAD_LETTER
    (found,) = Operated(None).waiting(url)
    assert (found.waits_for, found.record, found.attempts) == (1, begun.record, 1)
    assert found.reason
    assert found.reason.startswith("TimeoutError")
