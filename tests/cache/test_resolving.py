"""What can't be read is not resolved either; all else of it is in `oncegate.testing`.

Rules of docs/contract.md: R11.11, R11.12, R11.13.
"""

import pytest

from oncegate.cache.codec import encode
from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.record import Record, State
from oncegate.testing.resolving import resolve
from oncegate.testing.store import PRINT, RETENTION, A
from tests.cache.stores import Store

FLIGHT = encode(Record(State.IN_FLIGHT, A, PRINT, 1, retention_ms=10 * RETENTION))
UNKNOWN = encode(Record(State.UNKNOWN, A, PRINT, 1))


@pytest.mark.parametrize(
    "data",
    [b"\x02" + FLIGHT[1:], FLIGHT[:54], b"\x02" + UNKNOWN[1:], UNKNOWN[:40], UNKNOWN[:1] + b"X" + UNKNOWN[2:]],
    ids=["newer in flight", "cut flight", "newer", "cut header", "no state"],
)
async def test_a_damaged_or_newer_record_is_not_resolved(store: Store, data: bytes) -> None:
    store.plant(data, RETENTION)
    for state in (State.SUCCEEDED, None):
        with pytest.raises(RecordUnreadable):
            await resolve(store, state, force=True)
    assert store.raw() == data
