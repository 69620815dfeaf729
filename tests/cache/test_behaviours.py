"""What every cache promises, each of ours by the suite that is for all; what can't be read is of caches that keep our bytes.

Rules of docs/contract.md: R1.1, R5.11, R5.20, R5.21, R5.22, R5.23, R5.30, R11.11, R11.12, R11.13.
"""

import pytest

from oncegate.cache.codec import encode
from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.record import Record, State
from oncegate.cache.transitions import TRANSITIONS
from oncegate.testing import CacheBehaviours
from oncegate.testing.store import PRINT, RESPONSE, RETENTION, RETRY, A, B, claim, reads, resolve
from tests.cache.stores import Store


class TestBehaviours(CacheBehaviours):
    """The suite."""


def test_every_pair_of_state_and_event_is_either_a_row_or_refused() -> None:
    """The tests above, and `test_law` for what is Redis's alone, are written against this list: a new row needs a test."""
    assert {(row.source.name, row.event.name) for row in TRANSITIONS} == {
        ("ABSENT", "CLAIM"), ("FAILED", "CLAIM"), ("UNKNOWN", "CLAIM"),
        ("IN_FLIGHT", "RENEW"), ("UNKNOWN", "RENEW"),
        ("IN_FLIGHT", "COMPLETE"), ("UNKNOWN", "COMPLETE"), ("ABSENT", "COMPLETE"),
        ("IN_FLIGHT", "RELEASE"), ("UNKNOWN", "RELEASE"), ("IN_FLIGHT", "LAPSE"),
        ("UNKNOWN", "RESOLVE"), ("IN_FLIGHT", "RESOLVE"),
        ("IN_FLIGHT", "PURGE"), ("SUCCEEDED", "PURGE"), ("FAILED", "PURGE"), ("UNKNOWN", "PURGE"),
        ("ABSENT", "OUTLAST"), ("SUCCEEDED", "OUTLAST"), ("FAILED", "OUTLAST"), ("UNKNOWN", "OUTLAST"),
        ("IN_FLIGHT", "EXPIRE"), ("SUCCEEDED", "EXPIRE"), ("FAILED", "EXPIRE"), ("UNKNOWN", "EXPIRE"),
    }  # fmt: skip


# -- what can't be read


VALID = encode(Record(State.SUCCEEDED, A, PRINT, 1, RESPONSE))
UNKNOWN = encode(Record(State.UNKNOWN, A, PRINT, 1))
LAPSED = encode(Record(State.IN_FLIGHT, A, PRINT, 1, retention_ms=10 * RETENTION))


UNREADABLE = {
    "empty": b"",
    "one byte": b"\x01",
    "cut header": VALID[:41],
    "cut header, unknown": UNKNOWN[:40],
    "cut head": VALID[:60],
    "cut flight": LAPSED[:54],
    "newer": b"\x02" + VALID[1:],
    "newer, unknown": b"\x02" + UNKNOWN[1:],
    "newer, in flight": b"\x02" + LAPSED[1:],
    "no state": VALID[:1] + b"X" + VALID[2:],
    "found": LAPSED[:46] + b"S" + LAPSED[47:],
    "no JSON": VALID[:42] + b"[" + VALID[43:],
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE)
async def test_a_damaged_or_newer_record_is_an_error_and_is_left_alone(store: Store, data: bytes) -> None:
    store.plant(data, RETENTION)
    with pytest.raises(RecordUnreadable):
        await store.cache.get(store.key)
    for takeover in (frozenset[State](), RETRY):
        with pytest.raises(RecordUnreadable):
            await claim(store, B, takeover)
    assert store.raw() == data


@pytest.mark.parametrize(
    "name", ["cut header", "cut header, unknown", "cut flight", "newer, unknown", "newer, in flight", "no state"]
)
async def test_a_damaged_or_newer_record_is_not_resolved(store: Store, name: str) -> None:
    store.plant(UNREADABLE[name], RETENTION)
    for state in (State.SUCCEEDED, None):
        with pytest.raises(RecordUnreadable):
            await resolve(store, state, force=True)
    assert store.raw() == UNREADABLE[name]


async def test_bytes_after_a_record_in_flight_are_ignored(store: Store) -> None:
    """So that a later version can add to it."""
    store.plant(LAPSED + b"more", RETENTION)
    assert await reads(store) is State.UNKNOWN
    assert (await claim(store, B, RETRY)).won
