"""Numbers of aggregates: unique and without gaps, given in the transaction of what they number.

Rules of docs/contract.md: R12.30.
"""

import pickle
import random
import threading
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from oncegate.middleware.outcome.errors import NotProcessed, NotRetryable
from oncegate.sql import OutboxMisused, Sequences, VersionConflict
from tests.sql.conftest import ON_POSTGRESQL
from tests.sql.held import PATIENT, Pool
from tests.sql.places import Place, SyncPlace

orders = Sequences("orders")
WRITERS = 64
IDS = ["a", "A", " a", "a ", "a\t", "é", "e\u0301", "\x00", "a" * 499 + "b", "a" * 500, "1", "\ud800"]
"""Differ by case, by white space, by the Unicode form, by their length, by the last of 500 characters."""


def numbered(place: Place, aggregate: str = "a", expected: int | None = None) -> int:
    number: int = place.run(lambda session: orders.next(session, aggregate, expected))
    return number


def test_numbers_begin_at_one_for_each_aggregate_and_name(place: Place) -> None:
    assert [numbered(place), numbered(place), numbered(place, "b"), numbered(place)] == [1, 2, 1, 3]
    assert place.run(lambda session: Sequences("invoices").next(session, "a")) == 1


def test_a_rollback_gives_the_number_back(place: Place) -> None:
    def fail(session: Session) -> None:
        assert orders.next(session, "a") == 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        place.run(fail)
    assert numbered(place) == 1


@pytest.mark.parametrize("place", ["asyncpg", "aiosqlite"], indirect=True)
async def test_sessions_and_connections_of_asyncio_await_it(place: Place) -> None:
    engine = create_async_engine(place.url)
    async with engine.begin() as connection:
        assert await orders.next(connection, "a") == 1
    with pytest.raises(VersionConflict):
        async with engine.begin() as connection:
            await orders.next(connection, "a", expected=0)
    await engine.dispose()


@pytest.mark.parametrize("place", ["psycopg", "pysqlite"], indirect=True)
def test_many_writers_leave_no_gap_and_give_none_twice_though_a_third_roll_back(place: Place, pool: Pool) -> None:
    if not place.is_postgresql:
        place.connect_with(connect_args={"timeout": PATIENT})
    begin = threading.Barrier(16)
    place.execute("DELETE FROM effects")

    def write(writer: int) -> None:
        if writer < 16:
            begin.wait()

        def step(session: Session) -> None:
            if not place.is_postgresql:
                session.execute(text("BEGIN IMMEDIATE"))  # SQLite lets nobody wait who has read
            number = orders.next(session, "a")
            session.execute(text("INSERT INTO effects (what) VALUES (:what)"), {"what": f"{number:03}"})
            if writer % 3 == 0:
                raise ZeroDivisionError

        if writer % 3 == 0:
            with pytest.raises(ZeroDivisionError):
                place.run(step)
        else:
            place.run(step)

    for done in [pool.submit(write, writer) for writer in range(WRITERS)]:
        done.result()
    stayed = sum(writer % 3 != 0 for writer in range(WRITERS))
    assert place.effects() == [f"{number:03}" for number in range(1, stayed + 1)]


def test_an_expected_version_is_the_number_seen_last(place: Place) -> None:
    assert numbered(place, expected=0) == 1
    assert numbered(place, expected=1) == 2
    for expected in (0, 1, 3):
        with pytest.raises(VersionConflict) as conflict:
            numbered(place, expected=expected)
        assert (conflict.value.expected, conflict.value.current) == (expected, 2)
    with pytest.raises(VersionConflict) as conflict:
        numbered(place, "new", expected=1)
    assert conflict.value.current == 0
    assert isinstance(conflict.value, NotRetryable)
    assert str(pickle.loads(pickle.dumps(conflict.value))) == str(conflict.value)
    assert place.execute("SELECT count(*) FROM oncegate_sequence")[0][0] == 1, "a conflict writes nothing"


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
def test_of_writers_who_have_seen_the_same_version_one_goes_on(place: Place, pool: Pool) -> None:
    begin = threading.Barrier(8)

    def write(expected: int) -> int:
        begin.wait()
        try:
            return numbered(place, expected=expected)
        except VersionConflict as conflict:
            return -conflict.current

    for expected in (0, 1):
        numbers = [each.result() for each in [pool.submit(write, expected) for _ in range(8)]]
        assert sorted(numbers) == [-expected - 1] * 7 + [expected + 1]


def test_aggregates_are_told_apart_as_their_ids_are(place: Place) -> None:
    shuffled = random.sample(IDS * 2, len(IDS) * 2)
    numbers = [(aggregate, numbered(place, aggregate)) for aggregate in shuffled]
    assert sorted(numbers) == sorted((aggregate, number) for aggregate in IDS for number in (1, 2))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("",), ValueError),
        ((1,), TypeError),
        (("a", -1), ValueError),
        (("a", "1"), TypeError),
        (("a", True), TypeError),
    ],
)
def test_what_is_no_id_and_no_version_is_refused(arguments: Any, error: type[Exception]) -> None:
    with create_engine("sqlite://").connect() as connection, pytest.raises(error):
        orders.next(connection, *arguments)


def test_what_would_not_hold_is_refused(tmp_path: Any) -> None:
    place = SyncPlace(f"sqlite:///{tmp_path}/app.db")
    with pytest.raises(OutboxMisused, match="oncegate outbox create"):
        numbered(place)
    autocommit = create_engine(place.url, isolation_level="AUTOCOMMIT")
    with autocommit.connect() as connection, pytest.raises(OutboxMisused, match="AUTOCOMMIT") as misused:
        orders.next(connection, "a")
    assert isinstance(misused.value, NotProcessed)
    with pytest.raises(TypeError, match="give a Session"):
        orders.next(autocommit, "a")  # type: ignore[call-overload]  # what is no session is the point
    with pytest.raises(ValueError, match="name"):
        Sequences("no name")
