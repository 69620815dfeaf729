"""The recipes of docs/patterns for a read model's own row, and for a second store: eight writers, kills, disorder."""

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import text
from sqlalchemy.orm import Session

from testing.servers import RedisServer
from testing.waiting import wait_until
from tests.sql.places import Place
from tests.sql.projections.recipes import make_rows, recipe, source

WRITERS = 8
EVENTS = 15
on_both = pytest.mark.parametrize("place", ["psycopg", "pysqlite"], indirect=True)


@pytest.fixture
def columns(place: Place, tmp_path: Path) -> SimpleNamespace:
    found = recipe("row-columns", tmp_path)
    make_rows(place, found)
    return found


def amount_of(place: Place, table: str, account: str = "a") -> Any:
    return place.execute(f"SELECT amount FROM {table} WHERE account = :account", account=account)[0].amount


def once(place: Place, step: Callable[[Any], Any]) -> Any:
    return place.run(lambda session: step(session.connection()))


def executed(statement: Any, given: dict[str, Any], db: Any) -> Any:
    return db.execute(statement, given)


def eight_writers(place: Place, deliver: Callable[[int], bool], *, in_order: bool) -> None:
    """Each event is delivered by several of them at once, until somebody has applied it, or something later was."""

    def write(number: int) -> None:
        order = list(range(1, EVENTS + 1))
        if not in_order:
            random.Random(number).shuffle(order)
        for event in order:
            deliver(event)

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(write, range(WRITERS)))


LEDGER = sum(2**event for event in range(1, EVENTS + 1))


@on_both
def test_eight_writers_on_one_row_apply_each_version_once(place: Place, columns: SimpleNamespace) -> None:
    def deliver(event: int) -> bool:
        def applied() -> bool:
            def add(db: Any) -> bool:
                done: bool = columns.add_by_version(db, "a", event, 2**event)
                return done or columns.version_of(db, "a") >= event

            return bool(once(place, add))

        return bool(wait_until(applied, f"version {event}: those before it come by other writers"))

    eight_writers(place, deliver, in_order=True)
    assert amount_of(place, "by_version") == LEDGER
    assert once(place, lambda db: columns.version_of(db, "a")) == EVENTS


@on_both
def test_without_the_condition_the_same_test_fails(place: Place, columns: SimpleNamespace) -> None:
    unguarded = text(str(columns.VERSION).replace("WHERE t.version = excluded.version - 1", ""))
    given = [{"account": "a", "version": event, "amount": 2**event} for event in range(1, EVENTS + 1)]
    eight_writers(
        place, lambda event: bool(once(place, lambda db: db.execute(unguarded, given[event - 1]))), in_order=True
    )
    assert amount_of(place, "by_version") > LEDGER


@on_both
def test_with_less_than_instead_of_equal_what_comes_late_is_lost(place: Place, columns: SimpleNamespace) -> None:
    """The deliberate fault: the ledger would be the sum of all."""
    less = text(str(columns.VERSION).replace("t.version = excluded.version - 1", "t.version < excluded.version"))
    for version in (1, 3, 2):
        given = {"account": "a", "version": version, "amount": 2**version}
        once(place, partial(executed, less, given))
    assert amount_of(place, "by_version") == 2 + 8
    for version in (1, 3, 2, 3, 1):
        once(place, partial(columns.add_by_version, account="b", version=version, amount=2**version))
    assert amount_of(place, "by_version", "b") == 2 + 4 + 8


@on_both
def test_eight_writers_on_one_row_apply_each_id_once_in_any_order(place: Place, columns: SimpleNamespace) -> None:
    def deliver(event: int) -> bool:
        return bool(once(place, lambda db: columns.add_by_id(db, "a", f"{'e' * 40}{event}", 2**event)))

    eight_writers(place, deliver, in_order=False)
    assert amount_of(place, "by_id") == LEDGER, "ids that differ behind 36 characters are different ones"


@on_both
def test_a_prefix_of_the_id_makes_one_of_two_events(place: Place, columns: SimpleNamespace) -> None:
    """The deliberate fault."""
    for event in (1, 2):
        once(place, partial(columns.add_by_id, account="a", event=f"{'e' * 40}{event}"[:36], amount=2**event))
    assert amount_of(place, "by_id") == 2


@on_both
def test_an_id_goes_when_it_is_neither_among_the_last_nor_young(place: Place, columns: SimpleNamespace) -> None:
    def add(event: str, now: int) -> bool:
        return bool(once(place, lambda db: columns.add_by_id(db, "a", event, 1, now)))

    kept, seconds = columns.KEPT, columns.SECONDS
    assert add("first", 0)
    for number in range(kept + 5):
        assert add(f"e{number}", 1)
    assert not add("first", seconds - 1), "it is young, though not among the last"
    assert add("later", seconds + 1)
    assert not add(f"e{kept + 4}", seconds * 9), "it is among the last, though old"
    assert add("first", seconds * 9), "neither: it is applied again"


@on_both
def test_by_position_duplicates_are_skipped_and_what_is_late_is_lost(place: Place, columns: SimpleNamespace) -> None:
    found = [
        once(place, partial(columns.add_by_position, account="a", position=position, amount=position))
        for position in (3, 3, 7, 5, 9)
    ]
    assert found == [True, False, True, False, True]
    assert amount_of(place, "by_position") == 3 + 7 + 9


@on_both
def test_rolled_back_the_guard_goes_with_the_effect(place: Place, columns: SimpleNamespace) -> None:
    def fails(session: Session) -> None:
        assert columns.add_by_version(session.connection(), "a", 1, 5)
        raise LookupError

    with pytest.raises(LookupError):
        place.run(fails)
    assert once(place, lambda db: columns.add_by_version(db, "a", 1, 5))
    assert amount_of(place, "by_version") == 5


# -- a second store ---------------------------------------------------------------------------------------------------

DIES = """
import os, signal
store, point = Redis(port={port}), {point!r}
if point == "before":
    os.kill(os.getpid(), signal.SIGKILL)
put(store, "a", 2, "two")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_second_store_has_the_newest_once_wherever_its_writer_dies(tmp_path: Path) -> None:
    with RedisServer() as server, Redis(port=server.port) as store:
        pages = recipe("second-store", tmp_path)
        assert pages.put(store, "a", 1, "one")
        for point, expected in (("before", (1, b"one")), ("after", (2, b"two"))):
            code = source("second-store") + DIES.format(port=server.port, point=point)
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
            assert done.returncode == -signal.SIGKILL, done.stderr
            assert pages.get(store, "a") == expected
        assert not pages.put(store, "a", 2, "two"), "delivered again"
        assert not pages.put(store, "a", 1, "one"), "older behind newer"
        assert pages.get(store, "a") == (2, b"two")
        large = 2**60
        assert pages.put(store, "a", large + 1, "large")
        assert not pages.put(store, "a", large, "older"), "beyond what a float tells apart"

        def write(number: int) -> None:
            for version in random.Random(number).sample(range(10, 40), 30):
                pages.put(store, "b", version, str(version))

        with ThreadPoolExecutor(WRITERS) as threads:
            list(threads.map(write, range(WRITERS)))
        assert pages.get(store, "b") == (39, b"39")
