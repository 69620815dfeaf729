"""What every cache promises, each of ours by the suite that is for all; what can't be read is of caches that keep our bytes.

Rules of docs/contract.md: R1.1, R5.11, R5.20, R5.21, R5.22, R5.23, R5.30.
"""

import pytest

from oncegate.cache.codec import encode
from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.record import Record, State
from oncegate.cache.transitions import TRANSITIONS
from oncegate.testing import CacheBehaviours
from oncegate.testing.store import PRINT, RESPONSE, RETENTION, RETRY, A, B, claim, reads
from tests.cache.stores import Store


class TestBehaviours(CacheBehaviours):
    """The suite."""


def test_every_pair_of_state_and_event_is_either_a_row_or_refused() -> None:
    """The tests above are written against this list: a new row must come with a test of its own."""
    assert {(row.source.name, row.event.name) for row in TRANSITIONS} == {
        ("ABSENT", "CLAIM"), ("FAILED", "CLAIM"), ("UNKNOWN", "CLAIM"),
        ("IN_FLIGHT", "RENEW"), ("UNKNOWN", "RENEW"),
        ("IN_FLIGHT", "COMPLETE"), ("UNKNOWN", "COMPLETE"), ("ABSENT", "COMPLETE"),
        ("IN_FLIGHT", "RELEASE"), ("UNKNOWN", "RELEASE"), ("IN_FLIGHT", "LAPSE"),
        ("UNKNOWN", "RESOLVE"), ("IN_FLIGHT", "RESOLVE"),
        ("IN_FLIGHT", "EXPIRE"), ("SUCCEEDED", "EXPIRE"), ("FAILED", "EXPIRE"), ("UNKNOWN", "EXPIRE"),
    }  # fmt: skip


# -- what can't be read


VALID = encode(Record(State.SUCCEEDED, A, PRINT, 1, RESPONSE))
LAPSED = encode(Record(State.IN_FLIGHT, A, PRINT, 1, retention_ms=10 * RETENTION))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        VALID[:41],
        VALID[:60],
        LAPSED[:54],
        b"\x02" + LAPSED[1:],
        VALID[:1] + b"X" + VALID[2:],
        LAPSED[:46] + b"S" + LAPSED[47:],
        VALID[:42] + b"[" + VALID[43:],
    ],
    ids=["empty", "one byte", "cut header", "cut head", "cut flight", "newer", "no state", "found", "no JSON"],
)
async def test_a_damaged_or_newer_record_is_an_error_and_is_left_alone(store: Store, data: bytes) -> None:
    store.plant(data, RETENTION)
    with pytest.raises(RecordUnreadable):
        await store.cache.get(store.key)
    with pytest.raises(RecordUnreadable):
        await claim(store, B)
    assert store.raw() == data


@pytest.mark.parametrize(
    "data", [b"\x02" + LAPSED[1:], LAPSED[:54], b"\x02" + VALID[1:]], ids=["newer and lapsed", "cut flight", "newer"]
)
async def test_a_damaged_or_newer_record_is_not_taken_over(store: Store, data: bytes) -> None:
    store.plant(data, RETENTION)
    with pytest.raises(RecordUnreadable):
        await claim(store, B, RETRY)
    assert store.raw() == data


async def test_bytes_after_a_record_in_flight_are_ignored(store: Store) -> None:
    """So that a later version can add to it."""
    store.plant(LAPSED + b"more", RETENTION)
    assert await reads(store) is State.UNKNOWN
    assert (await claim(store, B, RETRY)).won
