"""What comes early and stays with its broker is seen by operators, as what is parked is.

Rules of docs/contract.md: R12.73.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import MetaData

from oncegate.prometheus import ConsumerMetrics
from oncegate.sql import Inbox, SequenceEarly
from oncegate.sql.inbox import maintenance
from oncegate.sql.order.early import MOST_NOTED, EarlyMessages, EarlyNumber
from oncegate.sql.order.numbers import Numbered, digest
from oncegate.sql.order.table import order_table
from testing.command_line import invoke
from tests.sql.handlers.parking import applies, consume, deliveries, parked, sweep
from tests.sql.places import Place

OWN_ROW = "SELECT sequence, parked, early, early_since, early_aggregate FROM oncegate_order"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "NOTED_EVERY", 0.02)


def waiting(place: Place) -> list[dict[str, Any]]:
    shown = invoke("inbox", "waiting", "--json", "--database", place.url)
    found: list[dict[str, Any]] = json.loads(shown.stdout)["waiting"]
    return found


def comes(place: Place, ledger: Inbox, number: int, aggregate: str = "account-7") -> None:
    place.deliver(ledger, f"{aggregate}-{number}", aggregate=aggregate, sequence=number)


def comes_early(place: Place, ledger: Inbox, number: int, aggregate: str = "account-7") -> None:
    with pytest.raises(SequenceEarly):
        comes(place, ledger, number, aggregate)


def noted(place: Place, ledger: Inbox, seen: Callable[[], Any], what: str) -> None:
    """As a consumer has it, until ``seen``."""

    async def maintain() -> None:
        async with ledger.maintained(place.engine):
            while not await asyncio.to_thread(seen):  # noqa: ASYNC110 - what is awaited is in the database
                await asyncio.sleep(0.01)

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await maintain()

    try:
        asyncio.run(bounded())
    except TimeoutError:
        pytest.fail(f"not in time: {what}")


def early_numbers(place: Place) -> list[Any]:
    return [row.early for row in place.execute(f"{OWN_ROW} WHERE early IS NOT NULL ORDER BY early_aggregate")]


def test_by_hand_it_is_shown_until_the_number_before_is_applied(place: Place) -> None:
    registry = CollectorRegistry()
    ledger = Inbox("ledger", order="contiguous", watch=ConsumerMetrics("ledger", registry=registry))

    def gauge(name: str) -> float | None:
        return registry.get_sample_value(f"oncegate_inbox_{name}", {"consumer": "ledger"})

    comes(place, ledger, 1)
    comes_early(place, ledger, 4)
    comes_early(place, ledger, 3)
    comes_early(place, ledger, 2, aggregate="of none")
    assert early_numbers(place) == [], "nothing in the delivery's own transaction"
    noted(place, ledger, lambda: gauge("aggregates_waiting") == 2, "both wait")
    assert (gauge("parked_messages"), bool(gauge("parked_oldest_timestamp_seconds"))) == (0, True)

    (one, other) = sorted(waiting(place), key=lambda each: str(each["aggregate"]))
    assert all(each.pop("since") for each in (one, other))
    rest = {"consumer": "ledger", "behind": 0, "record": None, "attempts": 0, "reason": None}
    assert one == rest | {"aggregate": "account-7", "waits_for": 2, "early": 4}
    assert other == rest | {"aggregate": "of none", "waits_for": 1, "early": 2}
    lines = invoke("inbox", "waiting", "--database", place.url).stdout
    assert "account-7  waits for 2 since" in lines
    assert "4 came early, and stays with its broker" in lines
    found = invoke("check", "--database", place.url).stdout
    assert "ledger: 2 aggregates wait, 0 messages are parked" in found

    for number in (2, 3, 4):
        comes(place, ledger, number)
    comes(place, ledger, 1, aggregate="of none")
    noted(place, ledger, lambda: gauge("aggregates_waiting") == 0, "nothing waits")
    assert waiting(place) == []
    noted(place, ledger, lambda: not early_numbers(place), "nor is an aggregate's id kept")
    assert {tuple(row)[3:] for row in place.execute(OWN_ROW)} == {(None, None)}


@pytest.mark.parametrize("place", ["psycopg", "pysqlite"], indirect=True)
def test_what_never_comes_is_skipped(place: Place) -> None:
    ledger = Inbox("ledger", order="contiguous")
    comes_early(place, ledger, 2)
    noted(place, ledger, lambda: waiting(place), "it waits")
    skip = ["inbox", "skip", "ledger", "account-7", "--reason", "withdrawn", "--sequence", "1"]
    assert invoke(*skip, "--database", place.url).returncode == 0
    assert waiting(place) == []
    comes(place, ledger, 2)


@pytest.mark.parametrize("place", ["psycopg", "pysqlite"], indirect=True)
def test_under_a_handler_what_is_parked_is_not_noted_and_what_can_t_be_is(place: Place) -> None:
    ledger = Inbox("ledger", order="contiguous", max_parked=1)
    handler = place.handler(ledger, applies)
    consume(handler, *deliveries(3))
    consume(handler, *deliveries(5, aggregate="b"))
    sweep(ledger, lambda: early_numbers(place))
    assert early_numbers(place) == [5], "what is parked is seen there"
    assert parked(place) == [3]
    assert [(each["aggregate"], each["waits_for"], each["early"]) for each in waiting(place)] == [
        ("a", 1, 0),
        ("b", 1, 5),
    ]


@pytest.mark.parametrize("place", ["psycopg", "pysqlite"], indirect=True)
def test_a_note_that_comes_late_changes_nothing_and_the_first_instant_stays(place: Place) -> None:
    early = EarlyMessages(order_table(MetaData()), "ledger", 1)

    def note(number: int) -> Any:
        place.run(lambda session: early.note(session.connection(), EarlyNumber(digest("a"), "a", number)))
        ((found),) = place.execute(OWN_ROW)
        return found

    first = note(5)
    assert (first.sequence, first.parked, first.early, first.early_aggregate) == (0, 0, 5, "a")
    assert note(4) == first, "a lower one"
    assert (note(6).early, note(6).early_since) == (6, first.early_since)
    place.execute("UPDATE oncegate_order SET sequence = 6")
    assert note(7).early == 6, "its turn has come"
    place.execute(f"UPDATE oncegate_order SET early_since = {_long_ago(place)}")
    renewed = note(9)
    assert (renewed.early, renewed.early_since >= first.early_since) == (9, True), "it waits anew"


def _long_ago(place: Place) -> str:
    return "now() - interval '1 year'" if place.is_postgresql else "'2020-01-01 00:00:00'"


def test_a_process_keeps_a_bounded_number_of_aggregates() -> None:
    early = EarlyMessages(order_table(MetaData()), "ledger", 1)
    for number in range(3 * MOST_NOTED):
        early.add(Numbered(digest(str(number)), 2), str(number))
    early.add(Numbered(digest("0"), 7), "0")
    taken = early.take()
    assert (len(taken), taken[0].sequence, early.take()) == (MOST_NOTED, 7, [])


@pytest.mark.parametrize("place", ["psycopg", "pysqlite"], indirect=True)
def test_a_reset_forgets_it(place: Place) -> None:
    ledger = Inbox("ledger", order="contiguous")
    comes_early(place, ledger, 2)
    noted(place, ledger, lambda: waiting(place), "it waits")
    place.run(ledger.reset)
    assert waiting(place) == []
    assert early_numbers(place) == []
