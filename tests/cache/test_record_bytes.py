"""Records as bytes, spelled out: what one version has stored, every later one reads and writes alike."""

from dataclasses import fields, replace
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.cache.codec import decode, encode, encode_claim
from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.fields import HOP_BY_HOP, MOST_RECURRING
from oncegate.cache.ready_lines import KEPT
from oncegate.cache.record import RECORD_MEMBERS, ClaimRequest, Record, State, StoredResponse, Trace
from oncegate.cache.trace import TRACE_MEMBERS

TOKEN, PRINT = b"owner-token-0123", b"fingerprint-0123"
DAY = 86_400_000
LINES = ((b"content-type", b"text/plain"), (b"etag", b'"a\\b"'), (b"x-name", b"caf\xe9\t"), (b"x-none", b""))
DONE = StoredResponse(201, LINES, b"\x00body", 1_700_000_000_250)
WHO = Trace('gw-"1"/\u20ac', 1_700_000_000_000)
OF_A_REQUEST = replace(WHO, method="POST", route="/payments/*")
ENDED = replace(WHO, took_ms=250)
SPAN = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"
BEGIN = TOKEN + PRINT + b"\x00\x00\x00\x01"
FRESH = b"\x01I" + BEGIN + b"\x00\x00\x00\x00\x05\x26\x5c\x00" + b"A" + bytes(8)
STATUS, WHEN = '"s":201', '"t":1700000000250'
LINED = '"h":[["content-type","text/plain"],["etag","\\"a\\\\b\\""],["x-name","caf\u00e9\\t"],["x-none",""]]'
REQUESTED = '"m":"P","r":"/payments/*"'
GATEWAY = '"g":"gw-\\"1\\"/\u20ac"'


def outcome(code: bytes, head: str, body: bytes = b"") -> bytes:
    packed = head.encode()
    return b"\x01" + code + BEGIN + len(packed).to_bytes(4, "big") + packed + body


CLAIMS = [
    pytest.param(None, False, FRESH + b"{}", "ea5d6e6a", id="bare"),
    pytest.param(WHO, False, FRESH + f'{{{GATEWAY},"b":1700000000000}}'.encode(), "f8f6f0e4", id="traced"),
    pytest.param(None, True, FRESH + b'{"a":1}', "f24a137b", id="submission"),
    pytest.param(
        WHO, True, FRESH + f'{{"a":1,{GATEWAY},"b":1700000000000}}'.encode(), "9a891c9f", id="traced submission"
    ),
    pytest.param(
        replace(WHO, span=SPAN),
        *(False, FRESH + f'{{{GATEWAY},"b":1700000000000,"c":"{SPAN}"}}'.encode(), "401a5eef"),
        id="in a trace",
    ),
    pytest.param(
        OF_A_REQUEST, False, FRESH + f'{{{GATEWAY},{REQUESTED},"b":1700000000000}}'.encode(), "0dcb49bc", id="asked"
    ),
]


@pytest.mark.parametrize(("trace", "submission", "data", "check"), CLAIMS)
def test_a_claim_is_stored_as_ever(trace: Trace | None, submission: bool, data: bytes, check: str) -> None:
    sealed = data[:-1] + b"," * (data[-2:] != b"{}") + f'"I":"{check}"}}'.encode()
    request = ClaimRequest(TOKEN, PRINT, 0, DAY, trace=trace or Trace(), submission=submission)
    assert encode_claim(request) == encode(request.first_attempt()) == sealed
    record = decode(sealed, DAY + 1, traced=True)
    assert record == Record(State.IN_FLIGHT, TOKEN, PRINT, 1, retention_ms=DAY, submission=submission)
    assert record.trace == (trace or Trace())
    assert encode(record) == sealed
    if data != FRESH + b'{"a":1}':  # which is what a release may restore
        with pytest.raises(RecordUnreadable):
            decode(data, DAY + 1)


PARTS: dict[str, Any] = {
    each.name: f"its {each.name}" if each.type is str else 250 + number for number, each in enumerate(fields(Trace))
}
"""A value of each part that is another one's in no other."""


def test_every_part_of_a_trace_is_a_member() -> None:
    """Of none the name is another's, or one of the head's own."""
    assert {each.name for each in fields(Trace)} == {each.part for each in TRACE_MEMBERS} == set(PARTS)
    names = [each.name for each in (*RECORD_MEMBERS, *TRACE_MEMBERS)]
    assert len({*names, *"hstoeISFU"}) == len(names) + len("hstoeISFU")


KEPT_ELSEWHERE = {"state", "token", "fingerprint", "attempt", "response", "lapsed", "trace"} | {
    *("found", "found_ms", "retention_ms", "former")
}
"""Of a record, what has a place of its own in its bytes."""
WITHOUT_BYTES = {"ready", "as_sent"}
"""How a claim wants the response, and has it."""


def test_every_part_of_a_record_and_of_a_claim_has_bytes() -> None:
    members = {each.part for each in RECORD_MEMBERS}
    assert {each.name for each in fields(Record)} - WITHOUT_BYTES == members | KEPT_ELSEWHERE
    assert {each.name for each in fields(ClaimRequest)} - members - WITHOUT_BYTES == {
        *("token", "fingerprint", "lease_ms", "retention_ms", "takeover", "trace")
    }


@pytest.mark.parametrize("member", [each.part for each in RECORD_MEMBERS])
def test_no_part_of_a_record_is_lost_between_the_claim_and_the_outcome(member: str) -> None:
    claim = ClaimRequest(TOKEN, PRINT, 0, DAY, trace=WHO)
    setattr(claim, member, True)
    unclaimed = getattr(ClaimRequest(TOKEN, PRINT, 0, DAY), member)
    lapsed = decode(encode_claim(claim), DAY)
    ends = [claim.outcome(State.FAILED, 1, response, 1, "") for response in (DONE, None)]
    written = [*ends, claim.first_attempt(), claim.next_attempt(ends[0], 1), claim.next_attempt(lapsed, 1)]
    for data in (encode_claim(claim), *map(encode, written)):
        for traced in (True, False):
            assert getattr(decode(data, DAY + 1, traced=traced), member) == getattr(claim, member) != unclaimed


@pytest.mark.parametrize("part", [each.part for each in TRACE_MEMBERS])
def test_no_part_of_a_trace_is_lost_between_the_claim_and_the_outcome(part: str) -> None:
    """What claims and outcomes have in common is packed once: each would leave out a part without an error."""
    claim = ClaimRequest(TOKEN, PRINT, 0, DAY, trace=replace(Trace(**PARTS), took_ms=None, note=""))
    ends = [claim.outcome(State.UNKNOWN, 1, response, PARTS["took_ms"], PARTS["note"]) for response in (DONE, None)]
    stored = [encode(end) for end in ends]
    if part not in {"took_ms", "note"}:
        stored += [encode_claim(claim), encode(claim.next_attempt(ends[0], 1))]
    for data in stored:
        trace = decode(data, DAY, traced=True).trace
        follows = part == "begun_at_ms" and b'"h":' in data  # from the completion
        assert getattr(trace, part) == (DONE.completed_at_ms - PARTS["took_ms"] if follows else PARTS[part])
        if follows:
            continue
        changed: dict[str, Any] = {part: 7 if isinstance(PARTS[part], int) else "other"}
        other = replace(trace, **changed)
        record = replace(decode(data, DAY + 1), trace=other)
        assert getattr(decode(encode(record), DAY + 1, traced=True).trace, part) == getattr(other, part)


def test_claims_under_other_policies_and_of_other_gateways_keep_apart() -> None:
    """What claims have in common is packed once."""
    for retention_ms in (1, DAY, 2**63):
        for gateway in ("", "a", "b" * 50):
            record = decode(
                encode_claim(ClaimRequest(TOKEN, PRINT, 0, retention_ms, trace=Trace(gateway, 7))), 2**64, traced=True
            )
            assert record.retention_ms == retention_ms
            assert record.trace == Trace(gateway[:40], 7)


OUTCOMES = [
    pytest.param(State.SUCCEEDED, DONE, ENDED, False, f'{GATEWAY},"d":250', "3a2bd6155", id="traced"),
    pytest.param(State.FAILED, DONE, Trace(), True, "", "f4eaeed95", id="submission"),
    pytest.param(State.SUCCEEDED, DONE._replace(body=None), Trace(), False, '"o":1', "4662a4570", id="omitted"),
    pytest.param(
        State.SUCCEEDED,
        DONE._replace(body=b""),
        OF_A_REQUEST,
        False,
        f'{GATEWAY},{REQUESTED},"b":1700000000000',
        "868e0ed20",
    ),
]


@pytest.mark.parametrize(("state", "response", "trace", "submission", "more", "seal"), OUTCOMES)
def test_a_response_is_stored_with_its_seal(
    state: State, response: StoredResponse, trace: Trace, submission: bool, more: str, seal: str
) -> None:
    record = Record(state, TOKEN, PRINT, 1, response, trace=trace, submission=submission)
    mark, more = '"a":1,' * submission, "," * bool(more) + more
    code, name = state.value[0].upper().encode(), state.value[0].upper()
    unsealed = outcome(code, f"{{{mark}{LINED},{STATUS},{WHEN}{more}}}", response.body or b"")
    sealed = outcome(code, f'{{{mark}{LINED},{STATUS},{WHEN}{more},"{name}":"{seal}"}}', response.body or b"")
    assert encode(record) == sealed
    assert decode(sealed, 1) == record
    assert decode(sealed, 1).trace == Trace(), "no request pays for what it does not read"
    assert decode(sealed, 1, traced=True).trace == trace
    head = sealed[: len(sealed) - len(response.body or b"")]
    kept = None if response.body is None else b""
    assert decode(head, 1, size=len(sealed)).response == response._replace(body=kept)
    with pytest.raises(RecordUnreadable):
        decode(unsealed, 1)


NOTED = f'"a":1,{GATEWAY},"n":"why","b":1700000000000,"d":250'
ALONE = [
    pytest.param(Trace(), False, "", "dc5f68da0", id="bare"),
    pytest.param(replace(ENDED, note="why"), True, NOTED, "6982096a0", id="noted"),
]


@pytest.mark.parametrize(("trace", "submission", "members", "seal"), ALONE)
def test_an_outcome_without_a_response_is_stored_with_its_seal(
    trace: Trace, submission: bool, members: str, seal: str
) -> None:
    record = Record(State.UNKNOWN, TOKEN, PRINT, 1, trace=trace, submission=submission)
    begin = b"\x01U" + BEGIN + bytes(4)
    sealed = begin + f'{{{members}{"," * bool(members)}"U":"{seal}"}}'.encode()
    assert encode(record) == sealed
    assert decode(sealed, 1) == record
    assert decode(sealed, 1, traced=True).trace == trace
    for unsealed in (begin, begin + f"{{{members}}}".encode()):
        with pytest.raises(RecordUnreadable):
            decode(unsealed, 1)


def test_a_takeover_in_flight_is_stored_as_ever() -> None:
    record = Record(State.IN_FLIGHT, TOKEN, PRINT, 3, found=State.FAILED, found_ms=5, retention_ms=7)
    data = b"\x01I" + TOKEN + PRINT + b"\x00\x00\x00\x03" + bytes(7) + b"\x07F" + bytes(7) + b'\x05{"I":"c2ff0ccc"}'
    assert encode(record) == data
    assert decode(data, 8) == record


@pytest.mark.parametrize("spelled", ["caf\u00e9", "caf\\u00e9", "caf\\u00E9"])
def test_a_header_reads_the_same_however_its_characters_were_escaped(spelled: str) -> None:
    """Who wrote the record may have escaped what need not be."""
    record = decode(sealed(f'{{"s":201,"h":[["x-name","{spelled}"],["x-plain","cafe"]],"t":1'), 1)
    assert record.response == StoredResponse(201, ((b"x-name", b"caf\xe9"), (b"x-plain", b"cafe")), b"", 1)


@pytest.mark.parametrize(
    "head",
    [
        "{}",
        "[]",
        "7",
        '{"s":200,"h":[],"t":1}',
        '{"a":1,"s":200,"h":[],"t":1}',
        '{"h":[],"s":200,"t":1}',
        '{"h":[],"s":200,"t":1,"S":7}',
        '{"h":[],"s":200,"t":1,"S":"00000000"}',
        '{"h":[],"s":200,"t":1,"S":"000000000"}',
        '{"h":[["content-length","4"]],"s":200,"t":1}',
    ],
)
def test_a_head_without_its_seal_makes_the_record_unreadable(head: str) -> None:
    with pytest.raises(RecordUnreadable, match=r"^a record is damaged$"):
        decode(outcome(b"S", head), 1)


@pytest.mark.parametrize(
    "head",
    [
        *(f'{{"h":[],"s":{status},"t":1' for status in (0, 42, 101, 199, 1000, -200, "true", "2e2", '"200"', 2**70)),
        *(f'{{"h":[],"s":200,"t":{at}' for at in (-1, 2**63, "1e308", '"1"', "null", "true")),
    ],
)
def test_numbers_of_a_record_that_is_not_read_whole_are_looked_at(head: str) -> None:
    """Its seal can't be checked then. (Whole, it is what we have written.)"""
    data = sealed(head)
    with pytest.raises(RecordUnreadable, match=r"^a record is damaged$"):
        decode(data, 1, size=len(data))


def test_what_looks_like_a_seal_within_a_header_is_none() -> None:
    lines = ((b"x-a", b'"S":"00000000'), (b"x-b", b'S":"'), (b'"S":"', b"S"), (b"x-c", b"\\"))
    record = Record(State.SUCCEEDED, TOKEN, PRINT, 1, DONE._replace(headers=lines), trace=ENDED)
    assert decode(encode(record), 1) == record


def sealed(head: str, body: bytes = b"") -> bytes:
    """A record with a seal that is right, whatever it seals."""
    data = outcome(b"S", f'{head},"S":"00000000{len(body)}"}}', body)
    at = len(data) - len(body) - len(f'00000000{len(body)}"}}')
    return data[:at] + b"%08x" % crc32(body, crc32(data[: at - len('"S":"')])) + data[at + 8 :]


_TEXTS = st.binary(max_size=6).filter(lambda text: not HOP_BY_HOP & {text}) | st.sampled_from(
    [b"server", b"vary", b"]", b"],[", b"]],", b",", b":[[", b"s", b"t", b"o", b'"', b"\\", b"\xe9", b"a/b; c=d"]
)


@given(
    st.lists(st.tuples(_TEXTS, _TEXTS), max_size=4),
    st.sampled_from([State.SUCCEEDED, State.FAILED]),
    st.none() | st.binary(max_size=9),
    st.booleans(),
    st.sampled_from([Trace(), WHO, ENDED, replace(ENDED, note='"why"')]),
)
def test_any_response_reads_as_it_was_written(
    lines: list[tuple[bytes, bytes]], state: State, body: bytes | None, submission: bool, trace: Trace
) -> None:
    if body is not None and len(body) % 2:
        lines = [*lines, (b"content-length", b"%d" % len(body))]
    response = StoredResponse(201, tuple(lines), body, 1_700_000_000_250)
    record = Record(state, TOKEN, PRINT, 7, response, trace=trace, submission=submission)
    assert decode(encode(record), 1) == record == decode(encode(record), 1, traced=True)
    sent = decode(encode(record), 1, as_sent=True)
    if sent.ready is None:
        assert sent == record
        return
    assert sent.ready.lines == b"".join(b"\r\n%b: %b" % line for line in lines)
    assert (sent.response, sent.ready.body) == (None, body)
    assert replace(sent, response=response, ready=None) == record
    assert sent.whole_response() == response or any(b": " in name for name, _ in lines)


@pytest.mark.parametrize("number", [1, 255, 256, 1023, 1024, 1025, 65536, 2**32 - 1])
def test_numbers_of_attempts_and_lengths_of_heads_have_four_octets(number: int) -> None:
    data = encode(record := Record(State.FAILED, TOKEN, PRINT, number, DONE))
    assert data[34:38] == number.to_bytes(4, "big")
    assert decode(data, 1) == record
    for size in range(900, 1100):
        data = encode(
            Record(State.FAILED, TOKEN, PRINT, number, DONE._replace(headers=((b"x", b"y" * size),), body=b""))
        )
        assert int.from_bytes(data[38:42], "big") == len(data) - 42 > size


READY = ((b"server", b"a"), (b"link", b"</1>"), (b"link", b""), (b"x", b", a"), (b"content-length", b"5"))


@pytest.mark.parametrize("response", [None, StoredResponse(200, (), b"", 1)], ids=["none", "response"])
@pytest.mark.parametrize(("token", "fingerprint"), [(15, 16), (17, 16), (16, 15), (16, 17), (0, 16), (15, 17)])
def test_an_outcome_of_another_length_is_not_written(
    token: int, fingerprint: int, response: StoredResponse | None
) -> None:
    state = State.UNKNOWN if response is None else State.SUCCEEDED
    with pytest.raises(ValueError, match="16-byte"):
        encode(Record(state, b"t" * token, b"f" * fingerprint, 1, response))


def test_lines_that_are_ready_to_be_sent_stand_behind_the_status() -> None:
    """No version minds the order of members, which says that nothing is to be judged any more."""
    done = Record(State.SUCCEEDED, TOKEN, PRINT, 1, DONE._replace(headers=READY))
    lined = '"h":[["server","a"],["link","</1>"],["link",""],["x",", a"],["content-length","5"]]'
    data = outcome(b"S", f'{{{STATUS},{lined},{WHEN},"S":"4ba198fa5"}}', b"\x00body")
    assert encode(done) == data
    assert decode(data, 1) == done
    sent = decode(data, 1, as_sent=True)
    assert sent.ready is not None
    assert sent.ready.lines == b"\r\nserver: a\r\nlink: </1>\r\nlink: \r\nx: , a\r\ncontent-length: 5"
    assert (sent.response, sent.ready.status, sent.ready.body) == (None, DONE.status, DONE.body)
    assert sent.whole_response() == done.response


@pytest.mark.parametrize(
    "changed",
    [
        {"body": None},
        {"body": b"\x00bod"},
        {"headers": ()},
        {"headers": READY[:-1]},
        {"headers": (*READY, READY[-1])},
        {"headers": (*READY[:-1], (b"content-length", b"05"))},
        *({"headers": (*READY, (name, b"1"))} for name in sorted(HOP_BY_HOP)),
        *({"headers": (*READY, (b"x", text))} for text in (b'"', b"\\", b"\t", b"\n", b"\r", b"\0", b"\x7f", b"\xe9")),
    ],
)
def test_all_other_lines_are_judged_one_by_one(changed: dict[str, Any]) -> None:
    done = Record(State.SUCCEEDED, TOKEN, PRINT, 1, DONE._replace(headers=READY)._replace(**changed))
    assert b'{"h":' in encode(done)
    assert decode(encode(done), 1, as_sent=True) == decode(encode(done), 1) == done


def test_texts_are_kept_in_bounds_and_none_that_is_a_secret() -> None:
    for number in range(2 * MOST_RECURRING):
        lines = ((b"date", b"%d" % number), (b"vary", b"v" * 400), (b"set-cookie", b"secret=%d" % number), *READY)
        done = Record(State.SUCCEEDED, TOKEN, PRINT, 1, DONE._replace(headers=lines))
        assert decode(encode(done), 1) == done
    assert 0 < len(KEPT) <= MOST_RECURRING
    assert not any(b"secret" in text or len(text) > 300 for text in KEPT.values())


def test_a_line_that_needs_an_escape_is_judged_each_time() -> None:
    for line in ((b"server", b'a"'), (b"vary", b"\xe9"), (b"connection", b"close"), (b"date", b"\x7f")):
        done = Record(State.SUCCEEDED, TOKEN, PRINT, 1, DONE._replace(headers=(*READY, line)))
        assert encode(done) == encode(done)
        assert b'{"h":' in encode(done)


@pytest.mark.parametrize("number", [{"status": 2**64}, {"completed_at_ms": 2**64}])
def test_a_number_that_cannot_be_read_again_is_not_written(number: dict[str, Any]) -> None:
    for headers in (READY, LINES):
        done = Record(State.SUCCEEDED, TOKEN, PRINT, 1, DONE._replace(headers=headers)._replace(**number))
        with pytest.raises((TypeError, ValueError)):
            encode(done)


@pytest.mark.parametrize("octet", ["\n", "\r", "\0"])
def test_what_would_end_a_line_is_in_none(octet: str) -> None:
    """Whoever has written it."""
    data = sealed(f'{{"s":201,"h":[["x","1{octet}y: 2"]],"t":1')
    assert decode(data, 1, as_sent=True).ready is None
    assert decode(data, 1, as_sent=True) == decode(data, 1)


@pytest.mark.parametrize("text", [b"],[", b"a],[", b","])
def test_a_text_like_what_stands_between_two_is_taken_for_none(text: bytes) -> None:
    headers = ((b"x", text), (b"y", text), *READY)
    done = Record(State.SUCCEEDED, TOKEN, PRINT, 1, DONE._replace(headers=headers))
    assert b'{"s":' in encode(done)
    sent = decode(encode(done), 1, as_sent=True)
    lines = None if sent.ready is None else sent.ready.lines
    assert lines == (None if text == b"],[" else b"".join(b"\r\n%b: %b" % line for line in headers))
    assert sent.whole_response() == done.response == decode(encode(done), 1).response


@pytest.mark.parametrize(
    "head",
    [
        '{"h":[["a","b"]],"s":201,"t":7,"later":[["c","d"]]',
        '{"h":[["a","b"]],"later":["s",1],"s":201,"t":7',
        '{"h":[["a","b"]],"s":201,"later":"t","t":7',
        '{"later":[["s","t"]],"h":[["a","b"]],"s":201,"t":7',
        '{"h":[ ["a","b"]],"s":201,"t":7',
    ],
)
def test_what_later_versions_add_to_a_sealed_head_is_not_minded(head: str) -> None:
    assert decode(sealed(head), 1).response == StoredResponse(201, ((b"a", b"b"),), b"", 7)


def test_a_body_is_known_to_be_omitted_wherever_its_mark_is() -> None:
    response = decode(sealed('{"h":[["a","b"]],"s":201,"t":7,"later":1,"o":1'), 1).response
    assert response == StoredResponse(201, ((b"a", b"b"),), None, 7)


@pytest.mark.parametrize(
    "head", ['{"h":[["a","b","c"]],"s":201,"t":7', '{"h":[["a","b"]],"s":201', '{"h":[["a","b"],[]],"s":201,"t":7']
)
def test_what_is_sealed_and_no_response_is_damaged(head: str) -> None:
    with pytest.raises(RecordUnreadable, match=r"^a record is damaged$"):
        decode(sealed(head), 1)


@pytest.mark.parametrize("body", [b"", b'x","S":"00000000"}', b"y" * 3000])
@pytest.mark.parametrize("lines", [LINES, LINES[:1]])
def test_no_byte_of_a_sealed_response_can_change(body: bytes, lines: tuple[tuple[bytes, bytes], ...]) -> None:
    response = DONE._replace(body=body, headers=lines)
    data = encode(Record(State.SUCCEEDED, TOKEN, PRINT, 1, response, trace=replace(ENDED, gateway="gw")))
    assert decode(data, 1).response == response
    for at in range(len(data)):
        for bit in (0x01, 0x20, 0x80):
            with pytest.raises(RecordUnreadable):
                decode(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :], 1)
