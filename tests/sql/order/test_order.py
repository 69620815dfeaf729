"""The sequence guard: what is applied of the messages about one aggregate, by their numbers, in a transaction of one's own.

Rules of docs/contract.md: R12.16.
"""

from functools import partial
from typing import Any

import pytest
from sqlalchemy.orm import Session

from oncegate import NotRetryable
from oncegate.sql import Inbox, InboxMisused, KeyReused, SequenceEarly, SequenceForked, SequenceInvalid
from oncegate.sql.order.numbers import digest
from oncegate.sql.outbox.misuse import digest_of
from testing.waiting import wait_until
from tests.sql.held import PATIENT, Held, Pool, is_waiting
from tests.sql.places import Place

ledger = Inbox("ledger", order="contiguous", wait_timeout=PATIENT)
EACH = ["asyncpg", "psycopg connection", "aiosqlite connection", "pysqlite"]
BOTH = pytest.mark.parametrize("place", ["asyncpg", "pysqlite"], indirect=True)
state = Inbox("state", order="latest", wait_timeout=PATIENT)


def deliver(place: Place, inbox: Inbox, sequence: Any, aggregate: Any = "a", **options: Any) -> str:
    """What is decided about the message of this number, whose key it is, too."""
    key = options.pop("key", f"{aggregate}-{sequence}")
    try:
        return place.deliver(inbox, key, aggregate=aggregate, sequence=sequence, **options).decision.value
    except SequenceEarly:
        return "early"


def seed(inbox: Inbox, aggregate: str, number: int, session: Session) -> bool:
    return inbox.seed(session, aggregate, number)


@pytest.mark.parametrize("place", EACH, indirect=True)
def test_contiguous_applies_each_number_once_in_their_order(place: Place) -> None:
    found = [deliver(place, ledger, number) for number in (2, 1, 1, 3, 2, 2, 1, 3, 4)]
    assert found == ["early", "first", "duplicate", "early", "first", "duplicate", "duplicate", "first", "first"]
    assert place.effects() == ["a-1", "a-2", "a-3", "a-4"]


@BOTH
def test_latest_skips_what_a_later_number_has_overwritten(place: Place) -> None:
    found = [deliver(place, state, number) for number in (5, 5, 7, 6, 8)]
    assert found == ["first", "duplicate", "first", "stale", "first"]
    assert place.effects() == ["a-5", "a-7", "a-8"]


@BOTH
def test_latest_loses_a_delta_that_comes_late(place: Place) -> None:
    """10 fails, 11 is applied, the retry of 10 is stale: of a sum, its part is missing for ever. Contiguous waits for it."""

    def fails() -> None:
        raise ZeroDivisionError

    for inbox, applied in ((Inbox("sum", order="latest"), ["sum-11"]), (ledger, ["sum-10", "sum-11"])):
        place.execute("DELETE FROM effects")
        began = Inbox(inbox.consumer, order="latest")
        place.run(partial(seed, began, "sum", 9))
        with pytest.raises(ZeroDivisionError):
            deliver(place, inbox, 10, "sum", effect=fails)
        for number in (11, 10, 11):
            deliver(place, inbox, number, "sum")
        assert place.effects() == applied


@BOTH
def test_what_is_rolled_back_was_never_applied(place: Place) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        deliver(place, ledger, 1, effect=fails)
    assert (deliver(place, ledger, 2), deliver(place, ledger, 1)) == ("early", "first")
    assert place.effects() == ["a-1"]


@BOTH
def test_a_duplicate_of_the_newest_gets_what_was_kept_and_an_older_one_nothing(place: Place) -> None:
    for number in (1, 2):
        place.deliver(ledger, f"k{number}", keep={"is": number}, aggregate="a", sequence=number)
    results = [place.deliver(ledger, f"k{number}", aggregate="a", sequence=number).result for number in (2, 1)]
    assert results == [{"is": 2}, None]


@BOTH
def test_an_aggregate_begins_with_the_first_number_or_where_it_is_set_to(place: Place) -> None:
    tenth = Inbox("tenth", order="contiguous", starts_at=10)
    assert [deliver(place, tenth, number) for number in (11, 9, 10, 11)] == ["early", "duplicate", "first", "first"]
    assert [place.run(partial(seed, ledger, "joined", to)) for to in (40, 39, 41)] == [
        True,
        False,
        True,
    ]
    found = [deliver(place, ledger, number, "joined") for number in (43, 41, 42)]
    assert found == ["early", "duplicate", "first"]


@BOTH
@pytest.mark.parametrize("inbox", [ledger, state], ids=["contiguous", "latest"])
def test_two_messages_with_one_number_are_a_fork(place: Place, inbox: Inbox) -> None:
    deliver(place, inbox, 1, key="one")
    with pytest.raises(SequenceForked, match="same number"):
        deliver(place, inbox, 1, key="another")
    deliver(place, inbox, 2, key="x", payload=b"5")
    with pytest.raises(KeyReused):
        deliver(place, inbox, 2, key="x", payload=b"6")
    assert issubclass(SequenceForked, NotRetryable)
    assert place.effects() == ["one", "x"]


COMPOSED, APART = "caf\u00e9", "cafe\u0301"
IDS = ["case", "CASE", " case", "case ", "case\t", "ca se", COMPOSED, APART, "stra\u00dfe", "strasse", "a\x00b", "a"]
IDS += ["\ufb01", "fi", "\ud800", "x" * 499 + "y", "x" * 500, "x" * 499, "01", "1"]


@BOTH
def test_there_are_as_many_aggregates_as_ids(place: Place) -> None:
    """Case, white space, forms of one letter, a trailing blank, the last of 500 characters, what no database can store."""
    assert len(set(IDS)) == len(IDS)
    for number, aggregate in enumerate(IDS):
        assert deliver(place, ledger, 1, aggregate, key=f"k{number}") == "first", ascii(aggregate)
    assert place.execute("SELECT count(*) FROM oncegate_order")[0][0] == len(IDS)
    assert [deliver(place, ledger, 1, same, key=f"k{IDS.index('1')}") for same in (1, b"1")] == ["duplicate"] * 2


@pytest.mark.parametrize(
    ("aggregate", "sequence", "text"),
    [
        ("a", 0, "from 1"),
        ("a", -1, "from 1"),
        ("a", 2**63, "from 1"),
        ("a", True, "from 1"),
        ("a", "1", "from 1"),
        ("a", 1.0, "from 1"),
        ("a", None, "no number"),
        ("", 1, "no aggregate"),
        (b"\xff", 1, "UTF-8"),
        (1.5, 1, "float"),
    ],
)
@pytest.mark.parametrize("place", ["psycopg"], indirect=True)
def test_what_is_no_place_in_an_order_is_refused_on_one_line(
    place: Place, aggregate: Any, sequence: Any, text: str
) -> None:
    with pytest.raises(SequenceInvalid, match=text) as raised:
        deliver(place, ledger, sequence, aggregate, key="k")
    assert isinstance(raised.value, NotRetryable)
    assert "\n" not in str(raised.value)
    assert place.effects() == []


@BOTH
def test_the_largest_number_is_taken(place: Place) -> None:
    assert deliver(place, state, 2**63 - 1) == "first"
    place.run(partial(seed, ledger, "a", 2**63 - 2))
    assert deliver(place, ledger, 2**63 - 1) == "first"


@BOTH
def test_the_next_number_waits_for_the_one_before_and_is_applied(patient: Place, pool: Pool) -> None:
    deliver(patient, ledger, 1)
    held = Held(patient, ledger, "a-2", pool, aggregate="a", sequence=2)
    after = pool.submit(deliver, patient, ledger, 3)
    wait_until(is_waiting(patient), "it waits")
    held.release()
    assert after.result(PATIENT) == "first"
    assert patient.effects() == ["a-1", "a-2", "a-3"]


@BOTH
def test_of_two_deliveries_at_once_one_is_applied(patient: Place, pool: Pool) -> None:
    held = Held(patient, ledger, "a-1", pool, aggregate="a", sequence=1)
    same = [pool.submit(deliver, patient, ledger, 1) for _ in range(3)]
    wait_until(is_waiting(patient), "it waits")
    held.release(ZeroDivisionError())
    assert sorted(each.result(PATIENT) for each in same) == ["duplicate", "duplicate", "first"]


@BOTH
def test_aliases_go_along(place: Place) -> None:
    """Old and new processes beside each other, one lagging, and a name that begins at the other one's number."""
    both = Inbox("ledger-2", aliases=["ledger"], order="contiguous")
    found = [
        deliver(place, inbox, number) for inbox, number in ((ledger, 1), (ledger, 2), (both, 2), (both, 4), (both, 3))
    ]
    assert found == ["first", "first", "duplicate", "early", "first"]
    found = [
        deliver(place, inbox, number) for inbox, number in ((ledger, 3), (ledger, 4), (ledger, 5), (both, 5), (both, 6))
    ]
    assert found == ["duplicate", "first", "first", "duplicate", "first"]
    numbers = dict(place.execute("SELECT consumer, sequence FROM oncegate_order"))
    assert numbers == {"ledger": 6, "ledger-2": 6}
    fresh = [deliver(place, both, number, "new") for number in (2, 1, 2)]
    assert fresh == ["early", "first", "first"]


def test_a_batch_has_no_order() -> None:
    with pytest.raises(InboxMisused, match="one message at a time: call first for each"):
        ledger.mark(None, [None, None])  # type: ignore[arg-type, list-item]  # nothing is looked at before


@pytest.mark.parametrize(
    "arguments", [{"order": "some"}, {"starts_at": 0}, {"starts_at": 2**63}, {"max_parked": -1}, {"max_attempts": 0}]
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        Inbox("ledger", **arguments)


def test_an_id_has_one_digest_wherever_it_has_a_number() -> None:
    assert [digest(each) for each in IDS] == [digest_of(each) for each in IDS]
    assert len({digest(each)[:16] for each in IDS}) == len(IDS), "of which Redis has a part"
