"""Messages that come early under `Inbox.transaction`: parked, acknowledged, and run in their order once their turn has come.

Rules of docs/contract.md: R12.17.
"""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import MetaData, create_engine, select
from sqlalchemy.orm import Session, sessionmaker

from oncegate import Action, Begun, Delivery, MemoryCache, NotProcessed, NotRetryable, Subscription
from oncegate.middleware.outcome.errors import Parked
from oncegate.sql import Inbox, InboxBusy, InboxMisused, SequenceEarly, SequenceForked
from oncegate.sql.inbox.create import create
from oncegate.sql.order.table import parked_table
from testing.waiting import wait_until
from tests.sql.handlers.parking import BOTH, OTHERS, applies, consume, deliveries, failing, inbox, parked, sweep
from tests.sql.held import PATIENT, Held, Pool, is_waiting
from tests.sql.places import Place


@pytest.mark.parametrize("place", ["asyncpg", "psycopg", "aiosqlite", "pysqlite"], indirect=True)
def test_what_is_early_is_parked_acknowledged_and_follows_in_its_order(place: Place) -> None:
    handler = place.handler(inbox(), applies)
    early = consume(handler, *deliveries(3, 4, 2))
    assert [begun.action for begun in early] == [Action.ACKNOWLEDGE] * 3
    assert all(isinstance(begun.execution.raised, Parked) and not begun.execution.succeeded for begun in early)
    assert (place.effects(), parked(place)) == ([], [2, 3, 4])
    (first,) = consume(handler, *deliveries(1))
    assert first.execution.returned == "a001"
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
    assert (again.action, again.execution.returned) == (Action.ACKNOWLEDGE, "a002")
    consume(handler, *deliveries(4))
    (other,) = consume(handler, Delivery("another", b"p", aggregate="a", sequence=4))
    assert (type(other.execution.raised), other.action) == (SequenceForked, Action.DEAD_LETTER)


@BOTH
def test_the_hook_counts_no_attempt_and_records_no_success_of_what_is_parked(place: Place) -> None:
    handler = place.handler(inbox(), applies)

    async def run() -> list[Begun]:
        subscription = Subscription("ledger", cache=MemoryCache())
        (two, one) = deliveries(2, 1)
        return [await subscription.execute(each, handler, each.key) for each in (two, two, one, two)]

    found = asyncio.run(run())
    assert [(begun.attempt, begun.run, begun.run and begun.execution.succeeded) for begun in found] == [
        (1, True, False), (1, True, False), (1, True, True), (1, False, False),
    ]  # fmt: skip
    assert found[3].result == b'"a-2"'


@BOTH
def test_a_number_that_is_parked_while_the_one_before_commits_follows_at_once(patient: Place, pool: Pool) -> None:
    """Whoever comes first: the one who parks waits for the other's end, and finds that its turn has come."""
    place, ledger = patient, inbox()
    handler = place.handler(ledger, applies)
    for one, two in ((1, 2), (3, 4)):  # of a new aggregate, and of one that has a row
        held = Held(place, ledger, f"a-{one}", pool, aggregate="a", sequence=one)
        early = pool.submit(consume, handler, *deliveries(two))
        wait_until(is_waiting(place), "it waits")
        held.release()
        assert early.result(PATIENT)[0].execution.returned == f"a{two:03}"
    assert (place.effects(), parked(place)) == (["a-1", "a-3", "a002", "a004"], [])


@BOTH
def test_all_of_an_aggregate_at_once(patient: Place, pool: Pool) -> None:
    handler = patient.handler(inbox(), applies)
    count = 12
    done = [pool.submit(consume, handler, each) for each in deliveries(*range(count, 0, -1))]
    assert all(each.result(PATIENT)[0].action is Action.ACKNOWLEDGE for each in done)
    assert patient.effects_in_order() == [f"a{number:03}" for number in range(1, count + 1)]
    # What the hook of a consumer that has ended meanwhile was to record stays for a sweep.
    assert patient.execute("SELECT sequence FROM oncegate_parked WHERE NOT applied") == []


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
    assert [(begun.action, type(begun.execution.raised)) for begun in done] == [
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
def test_one_that_has_failed_thousands_of_times_is_tried_again_after_a_minute(place: Place) -> None:
    def work(session: Session, payload: Any) -> Any:
        return applies(session, payload) if payload == "a001" else 1 / 0

    handler = place.handler(inbox(max_attempts=5000), work)
    consume(handler, *deliveries(2))
    place.execute("UPDATE oncegate_parked SET attempts = 2000")
    consume(handler, *deliveries(1))
    table = parked_table(MetaData())
    row = place.run(lambda session: session.execute(select(table)).one())
    assert (row.attempts, row.due_at - row.parked_at >= timedelta(minutes=1)) == (2001, True)


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
    assert isinstance(found[2].execution.raised, SequenceEarly)


@BOTH
def test_latest_parks_nothing(place: Place) -> None:
    """Nor does anything wait for one that has failed for good."""
    handler = place.handler(Inbox("state", order="latest"), failing("a006")[1])
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
        assert isinstance(begun.execution.raised, InboxMisused)
        assert str(begun.execution.raised).endswith("takes one message at a time, by Subscription.execute")
