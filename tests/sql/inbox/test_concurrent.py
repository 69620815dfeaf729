"""Deliveries of one message at the same time: the body runs once, and nobody gets an error of it.

Rules of docs/contract.md: R12.14.
"""

import threading
from typing import Any

import pytest
from sqlalchemy import text

from oncegate.middleware.outcome.errors import NotProcessed
from oncegate.sql import Inbox, InboxBusy
from testing.waiting import wait_until
from tests.sql.conftest import ON_POSTGRESQL
from tests.sql.held import PATIENT, Held, Pool, deliver_at_once, is_waiting
from tests.sql.places import Outcome, Place

billing = Inbox("billing", wait_timeout=PATIENT)


def test_ten_at_once_run_the_body_once(patient: Place, pool: Pool) -> None:
    together = threading.Barrier(10)

    def deliver() -> Outcome:
        together.wait()
        return patient.deliver(billing, "a", keep=7)

    outcomes = [each.result() for each in [pool.submit(deliver) for _ in range(10)]]
    assert sorted((each.first, each.result) for each in outcomes) == [(False, 7)] * 9 + [(True, None)]
    assert patient.effects() == ["a"]


def test_the_second_waits_and_skips(patient: Place, pool: Pool) -> None:
    deliver_at_once(patient, billing, billing, pool)


def test_the_second_runs_where_the_first_rolls_back(patient: Place, pool: Pool) -> None:
    first = Held(patient, billing, "a", pool)
    second = pool.submit(patient.deliver, billing, "a")
    wait_until(is_waiting(patient), "the second waits")
    first.release(ZeroDivisionError())
    assert second.result().first
    with pytest.raises(ZeroDivisionError):
        first.outcome.result()
    assert patient.effects() == ["a"]


def test_who_waits_too_long_is_delivered_again(place: Place, pool: Pool) -> None:
    if not place.is_postgresql:
        place.connect_with(connect_args={"timeout": 0.05})
    hasty = Inbox("billing", wait_timeout=0.05)
    first = Held(place, billing, "a", pool)
    with pytest.raises(InboxBusy) as busy:
        place.deliver(hasty, "a")
    assert isinstance(busy.value, NotProcessed)
    first.release()
    first.outcome.result()
    assert not place.deliver(hasty, "a").first


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_stricter_isolation_delivers_again_and_never_twice(place: Place, level: str, pool: Pool) -> None:
    place.connect_with(isolation_level=level)
    first = Held(place, billing, "a", pool)
    second = pool.submit(place.deliver, billing, "a", before="SELECT count(*) FROM effects")
    wait_until(is_waiting(place), "the second waits")
    first.release()
    assert first.outcome.result().first
    with pytest.raises(InboxBusy):
        second.result()
    assert not place.deliver(billing, "a").first
    assert place.effects() == ["a"]


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
def test_messages_in_another_order_do_not_wait_for_each_other_for_ever(place: Place, pool: Pool) -> None:
    """PostgreSQL ends one of two transactions that wait for each other; that one is delivered again."""
    both = threading.Barrier(2)

    def deliver(one: str, other: str) -> bool:
        def work(session: Any) -> bool:
            billing.first(session, one)
            both.wait(PATIENT)
            billing.first(session, other)
            session.execute(text("INSERT INTO effects (what) VALUES ('x')"))
            return True

        try:
            return bool(place.run(work))
        except InboxBusy:
            return False

    done = [pool.submit(deliver, "a", "b"), pool.submit(deliver, "b", "a")]
    assert sorted(each.result() for each in done) == [False, True]
    assert place.effects() == ["x"]
