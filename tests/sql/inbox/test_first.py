"""The first delivery of a message does its effect, a second one doesn't: by every driver, in sessions and connections.

Rules of docs/contract.md: R12.14.
"""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from oncegate import Delivery, KeyInvalid, MemoryCache, Subscription
from oncegate.middleware.outcome.errors import NotRetryable
from oncegate.sql import Inbox, KeyReused
from tests.sql.conftest import WAYS
from tests.sql.places import Place

billing = Inbox("billing")


@pytest.mark.parametrize("place", WAYS, indirect=True)
def test_a_second_delivery_is_not_the_first(place: Place) -> None:
    assert [place.deliver(billing, key).first for key in ("a", "a", "b", "a")] == [True, False, True, False]
    assert place.effects() == ["a", "b"]


@pytest.mark.parametrize("place", WAYS, indirect=True)
def test_what_is_rolled_back_was_never_delivered(place: Place) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        place.deliver(billing, "a", effect=fails)
    assert (place.effects(), place.markers()) == ([], [])
    assert place.deliver(billing, "a").first
    assert place.effects() == ["a"]


@pytest.mark.parametrize("place", WAYS, indirect=True)
def test_the_second_gets_what_the_first_has_kept(place: Place) -> None:
    result = {"payment": 7, "text": "é\x00", "none": None}
    assert place.deliver(billing, "a", keep=result).result is None
    assert place.deliver(billing, "a", keep="another").result == result


def test_what_cannot_be_kept_is_left_out(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    small = Inbox("billing", max_result=10)
    place.deliver(small, "large", keep="x" * 9)
    place.deliver(small, "exact", keep="x" * 8)
    place.deliver(small, "no JSON", keep=object())
    assert [place.deliver(small, key).result for key in ("large", "exact", "no JSON")] == [None, "x" * 8, None]
    assert "too large" in caplog.text
    assert "can't be stored" in caplog.text


def test_consumers_do_not_share_their_messages(place: Place) -> None:
    assert place.deliver(billing, "a").first
    assert place.deliver(Inbox("shipping"), "a").first


def test_another_payload_under_the_key_is_refused(place: Place) -> None:
    place.deliver(billing, "a", payload={"amount": 5, "to": "x"})
    assert not place.deliver(billing, "a", payload={"to": "x", "amount": 5}).first
    assert not place.deliver(billing, "a").first
    with pytest.raises(KeyReused) as refused:
        place.deliver(billing, "a", payload={"amount": 500, "to": "x"})
    assert isinstance(refused.value, NotRetryable)
    assert place.effects() == ["a"]


def test_another_payload_may_be_a_duplicate_with_a_line_in_the_log(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.deliver(billing, "a", payload=b"5", keep=1)
    again = place.deliver(Inbox("billing", on_mismatch="warn"), "a", payload=b"500")
    assert (again.first, again.result) == (False, 1)
    assert "another payload" in caplog.text


def test_a_marker_has_the_record_that_the_hook_names(place: Place) -> None:
    """One id in logs, gateway, stream and inbox; neither key nor payload can be read from it."""

    async def record_of_hook() -> str:
        subscription = Subscription("billing", cache=MemoryCache())
        begun = await subscription.begin(Delivery("order-7", b"secret", caller="eve"))
        await begun.execution.succeed()
        return begun.record

    record = asyncio.run(record_of_hook())
    place.deliver(billing, "order-7", caller="eve", payload=b"secret")
    assert place.markers() == [("billing", record)]
    assert not place.deliver(billing, "another key", record=record).first


def test_a_key_is_a_text_a_number_or_a_uuid(place: Place) -> None:
    one = UUID(int=1)
    firsts = [place.deliver(billing, key).first for key in (7, "7", b"7", one, str(one))]
    assert firsts == [True, False, False, True, False]


@pytest.mark.parametrize("key", ["", "x" * 256, b"\xff", None, Decimal(1)])
def test_what_is_no_key_is_refused(place: Place, key: object) -> None:
    with pytest.raises(KeyInvalid):
        place.deliver(billing, key)
    with pytest.raises(KeyInvalid):
        place.deliver(billing, "a", record="no record's id")
    assert place.markers() == []


def test_keys_that_look_alike_are_two(place: Place) -> None:
    keys = ["a", "A", "a ", "ä", "a\u0308", "a\x00"]
    assert all(place.deliver(billing, key).first for key in keys)


def test_a_time_without_its_zone_is_refused(place: Place) -> None:
    with pytest.raises(ValueError, match="time zone"):
        place.deliver(billing, "a", sent_at=datetime(2026, 1, 1))  # wrong on purpose
    assert place.deliver(billing, "a", sent_at=datetime.now(UTC)).first


@pytest.mark.parametrize(
    "wrong",
    [
        {"consumer": ""},
        {"consumer": "a b"},
        {"aliases": "old"},
        {"aliases": ["billing"]},
        {"aliases": ["x", "x"]},
        {"on_mismatch": "ignore"},
        {"wait_timeout": 0},
        {"max_result": -1},
    ],
)
def test_a_wrong_inbox_is_refused_at_once(wrong: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Inbox(**({"consumer": "billing"} | wrong))  # type: ignore[arg-type]  # wrong on purpose
