"""What every cache promises, each of ours by the suite that is for all; what can't be read is of caches that keep our bytes.

Rules of docs/contract.md: R1.1, R5.11, R5.20, R5.21, R5.22, R5.23, R5.30, R9.41, R11.11, R11.12, R11.13.
"""

import pytest

from oncegate.cache.codec import encode
from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.record import DEAD_TOKEN, Former, Record, State
from oncegate.cache.transitions import TRANSITIONS
from oncegate.testing import CacheBehaviours
from oncegate.testing.store import OTHER_PRINT, PRINT, RESPONSE, RETENTION, RETRY, A, B, claim, held_in, resolve
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
TAKEN = encode(Record(State.IN_FLIGHT, B, PRINT, 2, retention_ms=10 * RETENTION, former=Former(A, 1, State.ABSENT, 0)))

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
    "no seal": VALID[:38] + b"\0\0\0\x1c" + b'{"h":[],"s":201,"t":1700000}',
    "no seal, status first": VALID[:38] + b"\0\0\0\x1c" + b'{"s":201,"h":[],"t":1700000}',
    "no seal, without a response": UNKNOWN[:42],
    "no seal, marked": UNKNOWN[:42] + b'{"a":1}',
    "no seal, traced": UNKNOWN[:42] + b'{"g":"gw"}',
    "no seal, nobody's success": b"\x01S" + DEAD_TOKEN + UNKNOWN[18:42],
    "no seal, nobody's trace": b"\x01U" + DEAD_TOKEN + UNKNOWN[18:42] + b'{"g":"gw"}',
    "no seal, in flight": LAPSED[:55] + b'{"g":"gw"}',
    "no seal, taken over": TAKEN[:88],
    "another's seal": UNKNOWN[:18] + OTHER_PRINT + UNKNOWN[34:],
    "another state's seal": b"\x01F" + UNKNOWN[2:],
    "more behind the seal": UNKNOWN + b"more",
    "more behind the seal, in flight": LAPSED + b"more",
}
RESTORED = {
    "unknown": b"\x01U" + DEAD_TOKEN + UNKNOWN[18:42],
    "failed": b"\x01F" + DEAD_TOKEN + UNKNOWN[18:42],
    "marked": b"\x01U" + DEAD_TOKEN + UNKNOWN[18:42] + b'{"a":1}',
    "lapsed": LAPSED[:55],
    "lapsed, marked": LAPSED[:55] + b'{"a":1}',
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


@pytest.mark.parametrize("name", RESTORED)
async def test_what_a_script_restores_is_believed_without_a_seal(store: Store, name: str) -> None:
    store.plant(RESTORED[name], RETENTION)
    held = await held_in(store)
    assert held.record.state is (State.FAILED if name == "failed" else State.UNKNOWN)
    assert held.record.submission == ("marked" in name)
    assert (await claim(store, B, RETRY)).won


@pytest.mark.parametrize(
    "name", ["cut header", "cut header, unknown", "cut flight", "newer, unknown", "newer, in flight", "no state"]
)
async def test_a_damaged_or_newer_record_is_not_resolved(store: Store, name: str) -> None:
    store.plant(UNREADABLE[name], RETENTION)
    for state in (State.SUCCEEDED, None):
        with pytest.raises(RecordUnreadable):
            await resolve(store, state, force=True)
    assert store.raw() == UNREADABLE[name]
