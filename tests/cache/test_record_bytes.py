"""Records as bytes, spelled out: what one version has stored, every later one reads and writes alike."""

from dataclasses import replace

import pytest

from oncegate.cache.codec import decode, encode, encode_claim
from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.record import Record, State, StoredResponse, Trace

TOKEN, PRINT = b"owner-token-0123", b"fingerprint-0123"
DAY = 86_400_000
LINES = ((b"content-type", b"text/plain"), (b"etag", b'"a\\b"'), (b"x-name", b"caf\xe9\t\x7f"), (b"x-none", b""))
DONE = StoredResponse(201, LINES, b"\x00body", 1_700_000_000_250)
WHO = Trace('gw-"1"/\u20ac', 1_700_000_000_000)
ENDED = replace(WHO, took_ms=250)
BEGIN = TOKEN + PRINT + b"\x00\x00\x00\x01"
FRESH = b"\x01I" + BEGIN + b"\x00\x00\x00\x00\x05\x26\x5c\x00" + b"A" + bytes(8)
HEAD = (
    '"s":201,"h":[["content-type","text/plain"],["etag","\\"a\\\\b\\""],["x-name","caf\u00e9\\t\x7f"],["x-none",""]],'
    '"t":1700000000250'
)
GATEWAY = '"g":"gw-\\"1\\"/\u20ac"'


def outcome(code: bytes, head: str, body: bytes = b"") -> bytes:
    packed = head.encode()
    return b"\x01" + code + BEGIN + len(packed).to_bytes(4, "big") + packed + body


CLAIMS = [
    pytest.param(None, False, FRESH, id="bare"),
    pytest.param(WHO, False, FRESH + f'{{{GATEWAY},"b":1700000000000}}'.encode(), id="traced"),
    pytest.param(None, True, FRESH + b'{"a":1}', id="submission"),
    pytest.param(WHO, True, FRESH + f'{{"a":1,{GATEWAY},"b":1700000000000}}'.encode(), id="traced submission"),
]


@pytest.mark.parametrize(("trace", "submission", "data"), CLAIMS)
def test_a_claim_is_stored_as_ever(trace: Trace | None, submission: bool, data: bytes) -> None:
    assert encode_claim(TOKEN, PRINT, DAY, trace, submission=submission) == data
    record = decode(data, DAY + 1, traced=True)
    assert record == Record(State.IN_FLIGHT, TOKEN, PRINT, 1, retention_ms=DAY, submission=submission)
    assert record.trace == (trace or Trace())
    assert encode(record) == data


def test_claims_under_other_policies_and_of_other_gateways_keep_apart() -> None:
    """What claims have in common is packed once."""
    for retention_ms in (1, DAY, 2**63):
        for gateway in ("", "a", "b" * 50):
            record = decode(encode_claim(TOKEN, PRINT, retention_ms, Trace(gateway, 7)), 2**64, traced=True)
            assert record.retention_ms == retention_ms
            assert record.trace == Trace(gateway[:40], 7)


OUTCOMES = [
    pytest.param(State.SUCCEEDED, DONE, ENDED, False, outcome(b"S", f'{{{HEAD},{GATEWAY},"d":250}}', b"\x00body")),
    pytest.param(State.FAILED, DONE, Trace(), True, outcome(b"F", f'{{"a":1,{HEAD}}}', b"\x00body")),
    pytest.param(State.SUCCEEDED, DONE._replace(body=None), Trace(), False, outcome(b"S", f'{{{HEAD},"o":1}}')),
    pytest.param(
        State.SUCCEEDED, DONE._replace(body=b""), WHO, False, outcome(b"S", f'{{{HEAD},{GATEWAY},"b":1700000000000}}')
    ),
    pytest.param(State.UNKNOWN, None, Trace(), False, b"\x01U" + BEGIN + bytes(4)),
    pytest.param(
        State.UNKNOWN,
        None,
        replace(ENDED, note="why"),
        True,
        b"\x01U" + BEGIN + bytes(4) + f'{{"a":1,{GATEWAY},"b":1700000000000,"d":250,"n":"why"}}'.encode(),
    ),
]


@pytest.mark.parametrize(("state", "response", "trace", "submission", "data"), OUTCOMES)
def test_an_outcome_is_stored_as_ever(
    state: State, response: StoredResponse | None, trace: Trace, submission: bool, data: bytes
) -> None:
    record = Record(state, TOKEN, PRINT, 1, response, trace=trace, submission=submission)
    assert encode(record) == data
    assert decode(data, 1) == record
    assert decode(data, 1).trace == Trace(), "no request pays for what it does not read"
    assert decode(data, 1, traced=True).trace == trace


def test_a_takeover_in_flight_is_stored_as_ever() -> None:
    record = Record(State.IN_FLIGHT, TOKEN, PRINT, 3, found=State.FAILED, found_ms=5, retention_ms=7)
    data = b"\x01I" + TOKEN + PRINT + b"\x00\x00\x00\x03" + bytes(7) + b"\x07F" + bytes(7) + b"\x05"
    assert encode(record) == data
    assert decode(data, 8) == record


@pytest.mark.parametrize("spelled", ["caf\u00e9", "caf\\u00e9", "caf\\u00E9"])
def test_a_header_reads_the_same_however_its_characters_were_escaped(spelled: str) -> None:
    """Who wrote the record may have escaped what need not be."""
    record = decode(outcome(b"S", f'{{"s":201,"h":[["x-name","{spelled}"],["x-plain","cafe"]],"t":1}}'), 1)
    assert record.response == StoredResponse(201, ((b"x-name", b"caf\xe9"), (b"x-plain", b"cafe")), b"", 1)


@pytest.mark.parametrize(
    "head",
    [
        "{}",
        "[]",
        "7",
        '{"s":200,"h":[[1,"b"]],"t":1}',
        '{"s":200,"h":[["a",null]],"t":1}',
        '{"s":200,"h":[["a"]],"t":1}',
        '{"s":200,"h":7,"t":1}',
        '{"s":"x","h":[],"t":1}',
        '{"s":200,"h":[],"t":[]}',
        '{"s":200,"h":[["a","\u0394"]],"t":1}',
    ],
)
def test_a_head_that_is_none_makes_the_record_unreadable(head: str) -> None:
    with pytest.raises(RecordUnreadable, match=r"^a record is damaged$"):
        decode(outcome(b"S", head), 1)
