"""Traces as bytes; what every cache promises to who looks is in `oncegate.testing`."""

import pytest

from oncegate.cache.codec import decode, encode, encode_claim
from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.record import ClaimRequest, Record, State, Trace
from oncegate.testing.store import PRINT, RETENTION, A


@pytest.mark.parametrize("junk", [b"{", b"[]", b'{"g":1,"b":"x","d":[],"n":null}', b"\xff\x00"])
def test_a_trace_that_can_not_be_read_costs_no_record(junk: bytes) -> None:
    assert decode(encode_claim(ClaimRequest(A, PRINT, 0, RETENTION)) + junk, RETENTION, traced=True).trace == Trace()


def test_behind_an_outcome_without_a_response_there_is_an_object_or_nothing() -> None:
    """Anything else was a response before it was damaged."""
    before = encode(Record(State.UNKNOWN, A, PRINT, 3))[:42]
    assert decode(before + b'{"g":1,"b":"x","d":[],"n":null}', RETENTION, traced=True).trace == Trace()
    for junk in (b"{", b"[]", b"\xff\x00", b'{"h":[]}', b'{"S":"000000000"}'):
        with pytest.raises(RecordUnreadable):
            decode(before + junk, RETENTION)


def test_a_trace_is_cut_to_what_a_store_can_bear() -> None:
    record = Record(State.UNKNOWN, A, PRINT, 3, trace=Trace("gé" * 500, 1, 2, "n" * 5000))
    data = encode(record)
    assert len(data) < 350
    assert decode(data, 1, traced=True).trace.gateway.startswith("gégé")
