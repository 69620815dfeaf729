"""Batches: each message of one has its effect once, whatever fails in it or dies; `first_many`, and ``transaction(batch=True)``.

Rules of docs/contract.md: R12.14.
"""

import asyncio
import signal
import threading
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from oncegate import Action, Delivery, MemoryCache, Subscription
from oncegate.sql import Inbox, InboxMisused, KeyReused
from testing import template
from tests.sql.conftest import PRELOADED, WAYS
from tests.sql.handlers.batches import KEYS, POISON, billing, consume, consume_pooled, handler
from tests.sql.held import PATIENT, Pool
from tests.sql.places import EFFECT, AsyncPlace, Place, done


def many(place: Place, keys: list[str], **options: Any) -> list[Any]:
    """The entries of a batch, in a transaction of its own; the first ones keep their keys."""

    async def mark(session: Any) -> list[Any]:
        entries = await done(billing.first_many(session, keys, **options))
        for entry, key in zip(entries, keys, strict=True):
            if entry:
                await done(entry.keep(key))
        return list(entries)

    found: list[Any] = place.transact(mark)
    return found


@pytest.mark.parametrize("place", WAYS, indirect=True)
def test_an_entry_for_each_key_in_their_order(place: Place) -> None:
    assert [bool(entry) for entry in many(place, ["b", "a", "b", "c"])] == [True, True, False, True]
    again = many(place, ["d", "c", "a"])
    assert [(entry.first, entry.result) for entry in again] == [(True, None), (False, "c"), (False, "a")]
    assert len({entry.record for entry in again}) == 3
    assert many(place, []) == []


def test_parallel_arguments_are_each_messages_own(place: Place) -> None:
    assert all(many(place, ["a", "a"], callers=["one", "other"], payloads=[b"1", b"2"]))
    with pytest.raises(KeyReused):
        many(place, ["b", "a"], callers=["one", "one"], payloads=[b"1", b"2"])
    with pytest.raises(KeyReused):  # within the batch, too
        many(place, ["c", "c"], payloads=[b"1", b"2"])
    with pytest.raises(ValueError, match="zip"):
        many(place, ["a", "b"], callers=["one"])
    with pytest.raises(TypeError, match="give a list"):
        many(place, "ab")  # type: ignore[arg-type]  # wrong on purpose


def test_one_statement_for_all_messages_and_names(place: Place) -> None:
    statements: list[str] = []
    event.listen(
        place.sync_engine,
        "before_cursor_execute",
        lambda _c, _u, statement, *_: statements.append(statement.split()[0]),
    )
    renamed = Inbox("billing", aliases=["payments"])

    def work(session: Session) -> None:
        assert all(renamed.first_many(session, [str(number) for number in range(500)]))
        assert not any(renamed.first_many(session, [str(number) for number in range(500)]))

    place.run(work)
    found = [each for each in statements if each in ("WITH", "INSERT", "SELECT", "UPDATE")]
    of_postgresql = ["WITH", "WITH"]  # the one statement has read what it could not write
    assert found == (of_postgresql if place.is_postgresql else ["INSERT", "INSERT", "SELECT"])
    assert len(place.markers()) == 1000


def test_batches_in_opposite_order_do_not_wait_in_a_circle(patient: Place, pool: Pool) -> None:
    keys = [str(number) for number in range(300)]
    for _ in range(3):
        patient.execute("DELETE FROM oncegate_inbox")
        both = threading.Barrier(2)

        def deliver(keys: list[str], both: threading.Barrier = both) -> int:
            both.wait(PATIENT)
            return sum(map(bool, many(patient, keys)))

        done = [pool.submit(deliver, keys), pool.submit(deliver, keys[::-1])]
        assert sorted(each.result() for each in done) == [0, 300]


@pytest.mark.timeout(300)  # it commits each message, on a machine that may be busy
@pytest.mark.parametrize("place", ["asyncpg", "pysqlite"], indirect=True)  # each database, and each kind of session
def test_a_batch_killed_half_way_has_one_effect_each_and_the_poison_alone_is_dead(place: Place) -> None:
    """Of 200; 20 of them were processed before, and 3 stand in it twice."""
    place.execute("DELETE FROM effects")
    place.execute("DELETE FROM oncegate_inbox")
    for number in range(20):
        place.deliver(billing, str(number), payload=str(number))
    numbers = [*range(197), KEYS + 100, KEYS + 10, KEYS + 160]
    command = ["-m", "tests.sql.handlers.batches", place.url, "197", "80"]
    killed = template.run(*command, preloaded=PRELOADED, timeout=300, cwd=template.ROOT)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(place.effects()) == 20 + 60 + 1
    came_of = asyncio.run(consume_pooled(place.url, numbers))
    dead = [number for number, begun in zip(numbers, came_of, strict=True) if begun.action is Action.DEAD_LETTER]
    assert dead == [POISON]
    again = [number for number, begun in zip(numbers, came_of, strict=True) if begun.action is Action.REDELIVER]
    assert again == [KEYS + 100, KEYS + 10, KEYS + 160]  # in flight meanwhile, in the same batch
    assert sorted(place.effects(), key=int) == [str(number) for number in range(197) if number != POISON]


def test_a_batch_is_one_transaction_as_long_as_nothing_fails(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    async def run_twice() -> list[Any]:
        subscription = Subscription("billing", cache=MemoryCache())
        numbers = list(range(20))
        deliveries = [Delivery(str(number), b"p") for number in numbers]
        came_of = await subscription.execute_many(deliveries, pay, numbers)
        assert await subscription.drain() == 0
        return [(begun.action, begun.execution.returned) for begun in came_of]

    plain = handler(place)

    def pay(numbers: list[int]) -> Any:
        calls.append(len(numbers))
        return plain(numbers)

    for _ in range(2):
        assert asyncio.run(run_twice()) == [(Action.ACKNOWLEDGE, number) for number in range(20)]
    assert (calls, len(place.effects())) == ([20, 20], 20)
    assert "one by one" not in caplog.text


@pytest.mark.parametrize("place", ["psycopg", "pysqlite"], indirect=True)  # it is written once
@pytest.mark.parametrize("returned", [[1, 2, 3], "ab", {1: 2, 3: 4}])
def test_a_result_for_each_message_or_none_at_all(place: Place, returned: Any) -> None:
    """Anything else is refused, before it is committed."""

    def pay(session: Session, numbers: list[int]) -> Any:
        session.execute(EFFECT, [{"what": str(number)} for number in numbers])
        return returned

    came_of = asyncio.run(consume(place.handler(billing, pay, batch=True), [1, 2]))
    assert [type(begun.execution.raised) for begun in came_of] == [TypeError, TypeError]
    assert (place.effects(), place.markers()) == ([], [])


def test_outside_of_a_batch_it_is_refused(place: Place) -> None:
    result = handler(place)
    with pytest.raises(InboxMisused, match=r"Subscription\.execute_many"):
        asyncio.run(result([1])) if isinstance(place, AsyncPlace) else result([1])


def test_a_handler_of_one_is_refused_in_a_batch(place: Place) -> None:
    single = place.handler(billing, lambda session, payload: None)
    came_of = asyncio.run(consume(single, [1, 2]))
    assert all("needs transaction(..., batch=True)" in str(begun.execution.raised) for begun in came_of)
