"""An inbox forgets all of a consumer with what that consumer has made, in one transaction; what is sent again is applied again.

Rules of docs/contract.md: R12.53, R12.54.
"""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from oncegate.middleware.rules.errors import KeyInvalid
from oncegate.sql import Decision, Forgotten, Inbox, InboxBusy, InboxMisused, SequenceEarly
from testing.waiting import wait_until
from tests.sql.aging import age, ago, clean, pruned
from tests.sql.conftest import ON_POSTGRESQL
from tests.sql.held import PATIENT, Held, Pool, is_waiting
from tests.sql.places import Place, done

billing, other = Inbox("billing", wait_timeout=PATIENT), Inbox("other")
ledger = Inbox("ledger", order="contiguous", wait_timeout=PATIENT)
KEYS = ("a", "b", "c")


def empty(place: Place, inbox: Inbox, *, before: str = "", ends: bool = True) -> None:
    """What a user does: reset, and then empty the read model."""

    async def within(session: Any) -> None:
        if before:
            await done(session.execute(text(before)))
        await done(inbox.reset(session))
        await done(session.execute(text("DELETE FROM effects")))
        if not ends:
            raise LookupError("rolled back")

    place.transact(within)


def test_what_was_processed_is_processed_again_after_it_alone(place: Place) -> None:
    for key in KEYS:
        place.deliver(billing, key)
    place.deliver(other, "a")
    with pytest.raises(LookupError):
        empty(place, billing, ends=False)
    assert not place.deliver(billing, "a").first, "all of the old"
    assert place.effects() == ["a", "a", "b", "c"]
    empty(place, billing)
    assert place.effects() == []
    assert [place.deliver(billing, key).first for key in (*KEYS, "a")] == [True, True, True, False]
    assert not place.deliver(other, "a").first, "another consumer's markers stay"


def test_numbers_and_what_is_parked_go_too(place: Place) -> None:
    for number in (1, 2):
        assert place.deliver(ledger, f"{number}", aggregate="x", sequence=number).first
    place.execute(
        "INSERT INTO oncegate_parked (parked_at, due_at, sequence, attempts, dead, applied, consumer, aggregate, aggregate_id,"
        " arguments, submitted) SELECT applied_at, applied_at, 4, 0, false, false, consumer, aggregate, 'x', '{}', false"
        " FROM oncegate_order"
    )
    empty(place, ledger)
    assert place.execute("SELECT 1 FROM oncegate_parked") == []
    assert {row.sequence for row in place.execute("SELECT sequence FROM oncegate_order")} == {0}
    again = [place.deliver(ledger, f"{number}", aggregate="x", sequence=number).decision for number in (1, 2, 2)]
    assert again == [Decision.FIRST, Decision.FIRST, Decision.DUPLICATE]


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
@pytest.mark.parametrize("inbox", [billing, ledger], ids=["markers", "numbers"])
def test_it_waits_for_who_is_applying(place: Place, pool: Pool, inbox: Inbox) -> None:
    """Else the marker commits while its row is looked for: it stays, and its effect is emptied."""
    place_of: dict[str, Any] = {"aggregate": "x", "sequence": 1} if inbox.ordered else {}
    held = Held(place, inbox, "a", pool, **place_of)
    reset = pool.submit(empty, place, inbox)
    wait_until(is_waiting(place), "it waits")
    assert not reset.done()
    held.release()
    reset.result()
    assert place.effects() == []
    assert place.deliver(inbox, "a", **place_of).first
    assert place.effects() == ["a"]


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
def test_it_waits_no_longer_than_wait_timeout(place: Place, pool: Pool) -> None:
    held = Held(place, billing, "a", pool)
    with pytest.raises(InboxBusy):
        empty(place, Inbox("billing", wait_timeout=0.1))
    held.release()
    held.outcome.result()
    assert not place.deliver(billing, "a").first


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
def test_consumers_are_busy_meanwhile(place: Place) -> None:
    async def within(session: Any) -> None:
        await done(billing.reset(session))
        with pytest.raises(InboxBusy):
            place.in_a_thread(lambda: place.deliver(Inbox("billing", wait_timeout=0.1), "a"))

    place.transact(within)
    assert place.deliver(billing, "a").first


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
def test_one_that_has_waited_for_it_is_compared_with_what_it_has_left(place: Place, pool: Pool) -> None:
    """It has read the number before the reset: taken for the next one, all before it would be duplicates in the replay."""
    for number in (1, 2):
        place.deliver(ledger, f"{number}", aggregate="x", sequence=number)
    late: list[Any] = []

    async def within(session: Any) -> None:
        await done(ledger.reset(session))
        late.append(pool.submit(place.deliver, ledger, "3", aggregate="x", sequence=3))
        place.in_a_thread(lambda: wait_until(is_waiting(place), "it waits"))

    place.transact(within)
    with pytest.raises(SequenceEarly):
        late[0].result()
    assert place.deliver(ledger, "1", aggregate="x", sequence=1).first


@pytest.mark.parametrize("place", ON_POSTGRESQL, indirect=True)
def test_behind_a_write_it_is_refused(place: Place) -> None:
    """What is emptied before would be what was committed by then."""
    with pytest.raises(InboxMisused, match="reset comes first"):
        empty(place, billing, before="INSERT INTO effects VALUES ('x')")


def test_what_a_cleanup_of_all_consumers_has_forgotten_is_sent_again_and_processed(place: Place) -> None:
    pruned(place, billing, "a")
    place.deliver(other, "b")
    clean(place)  # of all consumers
    for inbox in (billing, other):
        with pytest.raises(Forgotten):
            place.deliver(inbox, "a", sent_at=ago(days=8))
    empty(place, billing)
    assert place.deliver(billing, "a", sent_at=ago(days=8)).first
    with pytest.raises(Forgotten):
        place.deliver(other, "a", sent_at=ago(days=8))


def test_what_is_forgotten_after_it_counts_again(place: Place) -> None:
    empty(place, billing)
    place.execute("UPDATE oncegate_inbox SET received_at = :at", at=_stored(place, ago(days=30)))
    place.deliver(billing, "a")
    age(place)
    clean(place)
    with pytest.raises(Forgotten):
        place.deliver(billing, "a", sent_at=ago(days=8))


def _stored(place: Place, at: Any) -> Any:
    return at if place.is_postgresql else (at - timedelta()).strftime("%Y-%m-%d %H:%M:%S.%f")


def test_with_an_order_a_message_is_known_by_its_aggregate_and_number(place: Place) -> None:
    async def within(session: Any) -> list[Decision]:
        return [
            (await done(ledger.first(session, aggregate="x", sequence=number))).decision for number in (1, 1, 2, 4, 1)
        ]

    found = place.transact(within)
    assert [each.name for each in found] == ["FIRST", "DUPLICATE", "FIRST", "EARLY", "DUPLICATE"]
    assert not place.deliver(ledger, "2", aggregate="x", sequence=2).first, "the same, delivered with a key"
    with pytest.raises(KeyInvalid):
        place.deliver(billing, "")
