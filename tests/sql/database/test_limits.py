"""Nobody waits for ever: time limits of a transaction with a marker, on PostgreSQL, and of no other.

A consumer that stands still with its transaction open loses it, and its successor runs.
"""

import math
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from oncegate.sql import Inbox
from tests.sql.conftest import ON_POSTGRESQL
from tests.sql.places import Outcome, Place

SETTINGS = ("lock_timeout", "idle_in_transaction_session_timeout")
pytestmark = pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)


def limits(session: Any) -> list[str]:
    return [session.execute(text(f"SHOW {setting}")).scalar_one() for setting in SETTINGS]


def test_the_limits_are_of_this_transaction_alone(place: Place) -> None:
    def work(session: Any) -> list[list[str]]:
        before = limits(session)
        Inbox("billing").first(session, "a")
        during = limits(session)
        session.commit()
        return [before, during, limits(session)]

    assert place.run(work, begins=False) == [["0", "0"], ["5s", "1min"], ["0", "0"]]


def test_a_limit_that_the_server_has_no_number_for_is_its_longest(place: Place) -> None:
    def work(session: Any) -> list[str]:
        Inbox("billing", wait_timeout=math.inf, idle_timeout=1e300).first(session, "a")
        return limits(session)

    assert place.run(work) == ["2147483647ms"] * 2


def test_a_session_keeps_the_limits_that_it_has(place: Place) -> None:
    def work(session: Any) -> list[str]:
        session.execute(text("SET lock_timeout = '7s'"))
        session.execute(text("SET idle_in_transaction_session_timeout = '9s'"))
        Inbox("billing").first(session, "a")
        return limits(session)

    assert place.run(work) == ["7s", "9s"]


def test_a_consumer_that_stands_still_loses_its_transaction_and_its_successor_runs(place: Place) -> None:
    """The late one's COMMIT fails, although it has got no error before."""
    hasty, patient = Inbox("billing", idle_timeout=0.2), Inbox("billing", wait_timeout=60)
    successors: list[Outcome] = []

    def stands_still() -> None:
        # Waits until the server has ended this one's transaction, which is idle meanwhile.
        successors.append(place.in_a_thread(lambda: place.deliver(patient, "a")))

    with pytest.raises((DBAPIError, OSError)):
        place.deliver(hasty, "a", effect=stands_still)
    assert [each.first for each in successors] == [True]
    assert place.effects() == ["a"]
