"""Traces as bytes; what every cache promises to who looks is in `oncegate.testing`."""

from zlib import crc32

import pytest

from oncegate.cache.codec import decode, encode
from oncegate.cache.record import Record, State, Trace
from oncegate.testing.store import PRINT, RETENTION, A


@pytest.mark.parametrize(
    "odd", [b'"g":1,"b":"x","d":[],"n":null', b'"g":[],"b":true,"d":1.5,"m":7,"r":{}', b'"later":1']
)
def test_a_trace_that_can_not_be_read_costs_no_record(odd: bytes) -> None:
    data = encode(Record(State.UNKNOWN, A, PRINT, 3))[:42] + b"{" + odd + b","
    record = decode(b'%b"U":"%08x0"}' % (data, crc32(data)), RETENTION, traced=True)
    assert (record.state, record.trace) == (State.UNKNOWN, Trace())


def test_a_trace_is_cut_to_what_a_store_can_bear() -> None:
    record = Record(State.UNKNOWN, A, PRINT, 3, trace=Trace("gé" * 500, 1, 2, "n" * 5000))
    data = encode(record)
    assert len(data) < 350
    assert decode(data, 1, traced=True).trace.gateway.startswith("gégé")
