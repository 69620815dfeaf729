"""A consumer's old and new name beside each other: each message once, whichever process gets it first."""

import pytest

from oncegate.sql import Inbox, KeyReused
from tests.sql.held import PATIENT, Pool, deliver_at_once
from tests.sql.places import Place

old = Inbox("billing", wait_timeout=PATIENT)
new = Inbox("billing-v2", aliases=["billing"], wait_timeout=PATIENT)


@pytest.mark.parametrize(("one", "other"), [(old, new), (new, old)])
def test_each_message_is_executed_under_one_of_the_names(place: Place, one: Inbox, other: Inbox) -> None:
    assert place.deliver(one, "a", keep=7, payload=b"p").first
    assert [place.deliver(inbox, "a").first for inbox in (other, one)] == [False, False]
    assert place.deliver(other, "a").result == 7
    with pytest.raises(KeyReused):
        place.deliver(other, "a", payload=b"q")
    assert place.effects() == ["a"]


@pytest.mark.parametrize(("one", "other"), [(old, new), (new, old)])
def test_at_the_same_time_too(patient: Place, one: Inbox, other: Inbox, pool: Pool) -> None:
    deliver_at_once(patient, one, other, pool)


def test_a_message_is_marked_under_each_name(place: Place) -> None:
    place.deliver(new, "a")
    assert [consumer for consumer, _ in place.markers()] == ["billing", "billing-v2"]


def test_once_the_alias_is_dropped_the_marker_of_the_new_name_counts(place: Place) -> None:
    place.deliver(old, "a", keep=7)
    place.deliver(new, "a")
    alone = place.deliver(Inbox("billing-v2"), "a")
    assert (alone.first, place.effects()) == (False, ["a"])
