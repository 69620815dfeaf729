"""The markers of several messages are written by one statement, which tells for each of them whether it was the first."""

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import MetaData, text
from sqlalchemy.orm import Session

from oncegate.sql.database.terms import limits_of
from oncegate.sql.marking.statements import Marked, MarkerStatements, Message
from oncegate.sql.marking.table import inbox_table
from testing.waiting import wait_until
from tests.sql.conftest import ON_POSTGRESQL
from tests.sql.held import PATIENT, Pool, is_waiting
from tests.sql.places import Place

TABLE = inbox_table(MetaData())


def record(number: int) -> str:
    return f"{number:020}:{'s' * 20}"


def mark(place: Place, numbers: Sequence[int], names: Sequence[str] = ("billing",)) -> list[frozenset[str]]:
    """What the statement returns, in a transaction of its own."""

    found: list[frozenset[str]] = place.run(lambda session: written(session, numbers, names))
    return found


def written(session: Session, numbers: Sequence[int], names: Sequence[str] = ("billing",)) -> list[frozenset[str]]:
    return [frozenset(each.written) for each in marked(session, numbers, names)]


def marked(session: Session, numbers: Sequence[int], names: Sequence[str]) -> list[Marked]:
    connection = session.connection()
    known = MarkerStatements(connection.dialect.name, TABLE, names, limits_of(PATIENT, PATIENT))
    return known.mark(connection, [Message(record(number), b"%016d" % number) for number in numbers])


def test_each_is_the_first_or_is_not(place: Place) -> None:
    assert mark(place, [1, 3]) == [{"billing"}, {"billing"}]
    assert mark(place, [2, 3, 4, 1]) == [{"billing"}, set(), {"billing"}, set()]
    assert [mark(place, [number]) for number in (4, 5)] == [[set()], [{"billing"}]]
    assert place.markers() == [("billing", record(number)) for number in (1, 2, 3, 4, 5)]


def test_what_stands_there_twice_is_the_first_once(place: Place) -> None:
    assert mark(place, [1, 2, 1, 1]) == [{"billing"}, {"billing"}, set(), set()]


def test_each_message_is_marked_under_each_name(place: Place) -> None:
    mark(place, [1], ["billing"])
    assert mark(place, [1, 2], ["billing-v2", "billing"]) == [{"billing-v2"}, {"billing", "billing-v2"}]
    assert mark(place, [3], ["billing-v3", "billing"]) == [{"billing", "billing-v3"}]
    assert mark(place, [2], ["billing-v3", "billing"]) == [{"billing-v3"}]


def test_of_none_nothing_is_written(place: Place) -> None:
    assert mark(place, []) == []
    assert place.markers() == []


def test_thousands_are_one_statement(place: Place) -> None:
    assert all(mark(place, range(5000), ["a", "b"]))
    assert not any(mark(place, range(5000), ["a", "b"]))


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
def test_the_order_of_the_rows_is_always_the_same(place: Place, pool: Pool) -> None:
    """Else the second one would have written 9 when it waits for 5, and the first one would be in a deadlock."""

    def work(session: Session) -> Any:
        first = written(session, [5])
        second = pool.submit(mark, place, [9, 5, 9])
        place.in_a_thread(lambda: wait_until(is_waiting(place), "the second waits"))
        return [first, written(session, [9]), [second]]

    first, third, (second,) = place.run(work)
    assert (first, third, second.result()) == ([{"billing"}], [{"billing"}], [set(), set(), set()])


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
@pytest.mark.parametrize("numbers", [[1], [1, 2]])
def test_a_marker_that_is_deleted_meanwhile_is_written_and_was_not_there(
    place: Place, pool: Pool, numbers: list[int]
) -> None:
    """The statement still sees it: it began before that was committed."""
    names = ["billing", "payments"]
    mark(place, numbers, names)

    def again(session: Session) -> list[Marked]:
        return marked(session, numbers, names)

    def work(session: Session) -> Any:
        session.execute(text("DELETE FROM oncegate_inbox WHERE consumer = 'billing'"))
        second = pool.submit(place.run, again)
        place.in_a_thread(lambda: wait_until(is_waiting(place), "the second waits"))
        return [second]

    (second,) = place.run(work)
    found = [(set(each.written), {there.consumer for there in each.earlier}) for each in second.result()]
    assert found == [({"billing"}, {"payments"})] * len(numbers)
