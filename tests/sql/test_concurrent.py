"""Deliveries of one message at the same time: the body runs once, and nobody gets an error of it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from oncegate.middleware.outcome.errors import NotProcessed
from oncegate.sql import Inbox, InboxBusy
from testing.waiting import wait_until
from tests.sql.conftest import ON_POSTGRESQL
from tests.sql.places import Outcome, Place

# Patient: what is shown is not how slow a machine may be. SQLite's driver has the limit.
PATIENT = 60.0
billing = Inbox("billing", wait_timeout=PATIENT)


class Held:
    """A first delivery in a thread, held after its effect and before its commit."""

    def __init__(self, place: Place, inbox: Inbox, key: str, pool: ThreadPoolExecutor, **options: Any) -> None:
        self._entered, self._released = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self.outcome: Future[Outcome] = pool.submit(place.deliver, inbox, key, effect=self._hold, **options)
        assert self._entered.wait(PATIENT)

    def _hold(self) -> None:
        self._entered.set()
        assert self._released.wait(PATIENT)
        if self._error is not None:
            raise self._error

    def release(self, error: Exception | None = None) -> None:
        """Let it commit, or roll back for ``error``."""
        self._error = error
        self._released.set()


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def patient(place: Place) -> Place:
    if not place.is_postgresql:
        place.connect_with(connect_args={"timeout": PATIENT})
    return place


def is_waiting(place: Place) -> Callable[[], bool]:
    """Whether somebody waits for another transaction; SQLite doesn't tell."""
    return lambda: bool(
        not place.is_postgresql
        or place.execute(
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
    )


def test_ten_at_once_run_the_body_once(patient: Place, pool: ThreadPoolExecutor) -> None:
    together = threading.Barrier(10)

    def deliver() -> Outcome:
        together.wait()
        return patient.deliver(billing, "a", keep=7)

    outcomes = [each.result() for each in [pool.submit(deliver) for _ in range(10)]]
    assert sorted((each.first, each.result) for each in outcomes) == [(False, 7)] * 9 + [(True, None)]
    assert patient.effects() == ["a"]


def test_the_second_waits_and_skips(patient: Place, pool: ThreadPoolExecutor) -> None:
    first = Held(patient, billing, "a", pool, keep=7)
    second = pool.submit(patient.deliver, billing, "a")
    wait_until(is_waiting(patient), "the second waits")
    assert not second.done()
    first.release()
    assert (second.result().first, second.result().result) == (False, 7)
    assert first.outcome.result().first
    assert patient.effects() == ["a"]


def test_the_second_runs_where_the_first_rolls_back(patient: Place, pool: ThreadPoolExecutor) -> None:
    first = Held(patient, billing, "a", pool)
    second = pool.submit(patient.deliver, billing, "a")
    wait_until(is_waiting(patient), "the second waits")
    first.release(ZeroDivisionError())
    assert second.result().first
    with pytest.raises(ZeroDivisionError):
        first.outcome.result()
    assert patient.effects() == ["a"]


def test_who_waits_too_long_is_delivered_again(place: Place, pool: ThreadPoolExecutor) -> None:
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
def test_a_stricter_isolation_delivers_again_and_never_twice(
    place: Place, level: str, pool: ThreadPoolExecutor
) -> None:
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
def test_messages_in_another_order_do_not_wait_for_each_other_for_ever(place: Place, pool: ThreadPoolExecutor) -> None:
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
