"""Refusals by caller: bounded whatever callers come, of the minutes that are asked for, and of all workers.

Rules of docs/contract.md: R11.64.
"""

from typing import Any

import pytest

from oncegate.app.telemetry import refusals
from oncegate.app.telemetry.recent import MOST_MINUTES
from oncegate.app.telemetry.refusals import ROWS, RefusalRow, Refusals

ROUTES = ("/payments", "*")
REUSED = list(refusals.STATUSES).index("key-reused")


class Clock:
    """The monotonic clock of what is counted."""

    def __init__(self) -> None:
        self.now = 6000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(refusals, "monotonic", made)
    return made


def digest(number: int) -> str:
    return f"{number:020}"


def refuse(counted: Refusals, number: int, times: int = 1, route: int = 0) -> None:
    for _ in range(times):
        counted._add(RefusalRow(digest(number), route, REUSED))


def counts(found: dict[str, Any]) -> dict[str, int]:
    return {each["caller"]: each["count"] for each in found["callers"]}


def made(workers: int = 1) -> Refusals:
    counted = Refusals(workers)
    counted.serve(ROUTES)
    return counted


async def test_they_are_of_the_last_minutes_and_of_all_workers(clock: Clock) -> None:
    counted = made(workers=2)
    refuse(counted, 1)
    for minute in range(10):
        clock.now += 60
        counted.enter(minute % 2)
        refuse(counted, 1)
        refuse(counted, 2, route=1)
    clock.now += 1
    found = await counted.listing(5, 10)
    assert counts(found) == {digest(1): 6, digest(2): 6}
    assert (found["seconds"], found["refused"], found["others"]) == (301, 12, 0)
    assert found["callers"][1]["routes"] == [{"route": "*", "count": 6, "decisions": {"key-reused": 6}}]
    assert counts(await counted.listing(1, 10)) == {digest(1): 2, digest(2): 2}
    whole = await counted.listing(MOST_MINUTES, 10)
    assert (whole["seconds"], counts(whole)[digest(1)]) == (601, 11), "no longer than it has run"
    clock.now += (MOST_MINUTES + 1) * 60
    assert (await counted.listing(MOST_MINUTES, 10))["refused"] == 0
    refuse(counted, 3)
    assert counts(await counted.listing(MOST_MINUTES, 10)) == {digest(3): 1}, "a table that is used again is empty"


async def test_a_worker_goes_on_where_its_predecessor_has_ended(clock: Clock) -> None:
    counted = made(workers=2)
    counted.enter(1)
    refuse(counted, 1, 3)
    for number in range(2, ROWS + 1):
        refuse(counted, number, 2)
    counted.enter(1)
    clock.now += 1
    refuse(counted, 1)
    refuse(counted, ROWS + 1)
    found = await counted.listing(1, 500)
    assert found["refused"] == 3 + 2 * (ROWS - 1) + 2
    assert counts(found)[digest(1)] == 4
    assert len(found["callers"]) == ROWS


async def test_whoever_comes_once_drives_out_nobody_who_comes_often(clock: Clock) -> None:
    counted = made()
    size = len(counted._all)
    strangers = 0
    for _ in range(200):
        refuse(counted, 1)
        for _ in range(20):
            strangers += 1
            refuse(counted, 1_000_000 + strangers)
    clock.now += 1
    found = await counted.listing(1, 3)
    assert counts(found)[digest(1)] == 200
    assert found["callers"][0]["caller"] == digest(1)
    assert found["refused"] == 200 + strangers
    assert found["others"] == found["refused"] - sum(counts(found).values())
    assert len(counted._rows) == len(counted._ranks) == ROWS
    assert len(counted._all) == size
    everybody = await counted.listing(1, 500)
    assert len(everybody["callers"]) == ROWS
    assert all(count == 1 for caller, count in counts(everybody).items() if caller != digest(1)), (
        "nobody is shown what was counted for another one"
    )


async def test_a_limit_shows_the_first_and_counts_the_others(clock: Clock) -> None:
    counted = made()
    for number in range(1, 6):
        refuse(counted, number, number)
    found = await counted.listing(1, 2)
    assert (counts(found), found["refused"], found["others"]) == ({digest(5): 5, digest(4): 4}, 15, 6)


async def test_who_comes_late_and_then_often_is_not_driven_out_by_strangers(clock: Clock) -> None:
    """A newcomer goes on from the rank of the row that it takes."""
    counted = made()
    for number in range(ROWS):
        refuse(counted, 1_000 + number, 5)
    for stranger in range(ROWS // 2):
        refuse(counted, 1)
        refuse(counted, 1_000_000 + stranger)
    clock.now += 1
    assert counts(await counted.listing(1, 1)) == {digest(1): ROWS // 2}


async def test_who_reads_while_a_row_changes_hands_takes_no_count_for_another_one_s(clock: Clock) -> None:
    """Other workers read the memory as it is: the last one's count is gone before the newcomer's digest is written."""
    counted = made()
    for number in range(ROWS):
        refuse(counted, 1_000 + number, 1 if number == 7 else 3)
    row = counted._row_for(RefusalRow(digest(1), 0, REUSED))
    found = list(counted._read(counted._table(counted._minute)))
    assert (row, found[row][2], len(found)) == (7, 0, ROWS)
