"""Encodes records as bytes: a fixed header that scripts compare at known offsets, a small JSON head, an opaque body.

Version 1, integers big-endian:

====== ==== ==============================================================================================
offset size field
====== ==== ==============================================================================================
0      1    version: 0x01
1      1    state as stored: ``I`` in flight, ``S`` succeeded, ``F`` failed, ``U`` unknown
2      16   owner token
18     16   fingerprint
34     4    attempt number
38     8    in flight: retention, ms. Otherwise: 4 bytes, length of the JSON head (0: no response), then head, body
46     1    in flight: state found, ``A`` absent, ``F`` failed, ``U`` unknown, ``L`` unknown since its lease was over
47     8    in flight: what the state found had left to live, ms
55     33   in flight, found ``L`` only: owner token, retention, state found (``A``, ``F``, ``U``) and its time of that attempt
====== ==== ==============================================================================================

A record in flight is at least 55 bytes, 88 with ``L``; of what comes after them scripts read only the mark, and neither do
scripts or readers mind members of the JSON head that they don't know, so that versions can add to both. The head: ``h``
header lines (Latin-1), ``s`` status, ``t`` completion in Unix ms, ``o`` body omitted. Encrypted, ``h`` and ``s`` are in ``e``
(base64, see oncegate.cache.encryption), and the body is ciphertext. A head that begins with ``s`` says that its lines are ready
to be sent as they lie (`oncegate.cache.ready_lines`); to versions that don't know this, the order of members means nothing.

Where there is no response, a JSON object stands by itself: after byte 55 in flight (88 with ``L``), after a head of length 0
otherwise. In that object, or in the head, are the record's own members (`RECORD_MEMBERS`), which come first: ``a`` (always 1),
the mark of a submission, is where scripts look for it. Then come those of the trace (`TRACE_MEMBERS`), for people, any of which
may be missing: ``g`` gateway, ``m`` method, ``r`` the route's pattern (none: the default one), ``n`` a note, ``b`` begin in Unix
ms (it follows from ``t`` and ``d`` where both are there), ``d`` duration in ms, ``c`` its span. Nothing here but these three
knows which members there are: what is declared is written and read.

The last member is the seal: the CRC-32 of all other bytes of the record, as 8 hex digits, then the length of the body in
decimal ones. It is called as the state is (``S``, ``F``, ``U``), so that a script can detect a damaged state without computing
it. In flight it is called ``I`` and has no length; it leaves out what a takeover writes (attempt number, state found and its
time), and begins with what all claims of a process under one policy have in common: retention, the object, token, fingerprint.

What has no seal, or another record's, is not believed. The exception is what the script of a release restores, since a script
can't compute one: an outcome that is nobody's any more or an attempt in flight, without a response or a trace. Nothing of it is
replayed.
"""
# Compiled: docs/decisions/0012-compiled.md

import struct
from binascii import a2b_base64, b2a_base64, b2a_hex
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final
from zlib import crc32

import orjson

from oncegate.cache.encryption import Encryption
from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.ready_lines import READY, ready_response, ready_texts
from oncegate.cache.record import (
    DEAD_TOKEN,
    FINGERPRINT_BYTES,
    FOUND,
    LAST_INSTANT_MS,
    NO_TRACE,
    RECORD_MEMBERS,
    TOKEN_BYTES,
    ClaimRequest,
    Former,
    Record,
    State,
    StoredResponse,
    Trace,
    stored_response,
)
from oncegate.cache.trace import OF_ONE_ATTEMPT, SPAN_BYTES, TRACE_MEMBERS, Member, trace_of

VERSION: Final = 1
_named: Final = tuple.__new__
"""Makes a named tuple in half the time of its own constructor."""
STATE_CODES: Final = {
    State.IN_FLIGHT: b"I",
    State.SUCCEEDED: b"S",
    State.FAILED: b"F",
    State.UNKNOWN: b"U",
    State.ABSENT: b"A",
}
# Members of an enumeration take long to look up.
_ABSENT: Final = State.ABSENT
_IN_FLIGHT: Final = State.IN_FLIGHT
_STATES: Final = {code[0]: state for state, code in STATE_CODES.items()}
_STORED: Final = {code: state for state, code in STATE_CODES.items() if state is not State.ABSENT}
_FLIGHT: Final = struct.Struct(">Bc16s16sIQcQ")
_FORMER: Final = struct.Struct(">16sQcQ")
_LAPSED: Final = b"L"
_GIVEN_BACK: Final = (b"F", b"U")
_OUTCOME: Final = struct.Struct(">Bc16s16sII")
_OUTCOME_BYTES: Final = 42
_CHECK: Final = struct.Struct(">I")
_TOKEN_AT: Final = 2
_ATTEMPT_AT: Final = 34
_SEAL_BEGINS: Final = {code: b'"%b":"' % code for code in STATE_CODES.values()}
"""Found in the head only as what they are: within a string each quote has a backslash before it."""
# Numbers: given bytes, ``in`` first tries them as a number, and the error that this raises costs more than the search.
_BACKSLASH: Final = ord("\\")
_BEHIND: Final = frozenset((b"o", *[each.name.encode() for each in TRACE_MEMBERS], *STATE_CODES.values()))
"""Members that follow the completion. A head with another one there may have the mark of an omitted body behind it."""
_CHECK_BYTES: Final = 8
_FLIGHT_SEAL_BYTES: Final = len('"I":""}') + _CHECK_BYTES
_CHECK_AT: Final = len('"S":"')
_LENGTH_AT: Final = _CHECK_AT + _CHECK_BYTES
_RETENTION_AT: Final = 38
_FOUND_AT: Final = 46
_OWN_NAMES: Final = frozenset([each.name for each in RECORD_MEMBERS])
_OWN_BEGINS: Final = tuple([b'{"%b":' % name.encode() for name in _OWN_NAMES])
"""The ways in which an object begins that has members of the record's own."""
_COMMON: Final = tuple([each for each in TRACE_MEMBERS if each.part not in OF_ONE_ATTEMPT])
_own_parts: Final[Callable[[object], Any]] = attrgetter(*[each.part for each in RECORD_MEMBERS])
"""All that is declared: what is packed once is found by all of it, and by `Trace.common`."""


def encode_claim(request: ClaimRequest) -> bytes:
    """The bytes of `ClaimRequest.first_attempt`, without making it; a script patches attempt and found state on a takeover."""
    token, fingerprint, trace = request.token, request.fingerprint, request.trace
    if len(token) != TOKEN_BYTES or len(fingerprint) != FINGERPRINT_BYTES:
        raise ValueError("a claim needs a 16-byte token and a 16-byte fingerprint")
    first, common, check = _common_of_flight(request.retention_ms, _own_parts(request), trace.common())
    begun, owner = trace.begun_at_ms, token + fingerprint
    times = b'"b":%d,' % begun if begun and trace.took_ms is None and not trace.span else _of_attempt(trace)
    check = crc32(owner, crc32(times, check))
    return b'\x01I%b%b%b%b"I":"%b"}' % (owner, first, common, times, b2a_hex(_CHECK.pack(check)))  # 1 is the version


def encode(record: Record, encryption: Encryption | None = None, key: bytes = b"") -> bytes:
    """The bytes of ``record``; its response is encrypted for the look-up ``key``, where there is an ``encryption``.

    A lapsed record has no bytes of its own (raises ``ValueError``): lapsing is how it reads."""
    state, response, trace = record.state, record.response, record.trace
    if record.lapsed or state is _ABSENT:
        raise ValueError("only a record as stored has bytes")
    if state is _IN_FLIGHT:
        return _encode_flight(record)
    code, token, fingerprint, attempt = STATE_CODES[state], record.token, record.fingerprint, record.attempt
    own, common = _common_members(_own_parts(record), trace.common())
    if response is None:
        begin = b"%b{%b%b%b" % (
            _OUTCOME.pack(VERSION, code, token, fingerprint, attempt, 0),
            own,
            common,
            _of_attempt(trace),
        )
        return b'%b"%b":"%08x0"}' % (begin, code, crc32(begin))
    status, headers, body, completed_at_ms = response
    if not (0 <= status <= 999 and 0 <= completed_at_ms <= LAST_INSTANT_MS):
        orjson.dumps((status, completed_at_ms))  # raises where JSON has no such numbers
    ready = b"" if body is None or encryption is not None else ready_texts(headers, body)
    if ready:
        head = b'"s":%d,"h":[["%b"]]' % (status, ready)
    else:
        lines = orjson.dumps([(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers])
        if encryption is None or not encryption.encrypts:
            head = b'"h":%b,"s":%d' % (lines, status)
        else:
            packed_head = encryption.encrypt(b"[%b,%d]" % (lines, status), b"head", key, token)
            head = b'"e":"%b"' % b2a_base64(packed_head, newline=False)
            body = None if body is None else encryption.encrypt(body, b"body", key, token)
    omitted = b""
    if body is None:
        omitted, body = b',"o":1', b""
    # The begin follows from completion and duration.
    times = _of_attempt(trace) if trace.took_ms is None else b'"d":%d,%b' % (trace.took_ms, _span(trace))
    packed = b'{%b%b,"t":%d%b,%b%b' % (own, head, completed_at_ms, omitted, common, times)
    seal_end = b'%d"}' % len(body)
    length = len(packed) + _LENGTH_AT + len(seal_end)
    begin = _OUTCOME.pack(VERSION, code, token, fingerprint, attempt, length) + packed
    check = b2a_hex(_CHECK.pack(crc32(body, crc32(begin))))
    return b"".join((begin, _SEAL_BEGINS[code], check, seal_end, body))


def _encode_flight(record: Record) -> bytes:
    trace, former, token, fingerprint = record.trace, record.former, record.token, record.fingerprint
    _, common, check = _common_of_flight(record.retention_ms, _own_parts(record), trace.common())
    times = _of_attempt(trace)
    found = STATE_CODES[record.found] if former is None else _LAPSED
    left = (record.retention_ms, found, record.found_ms)
    fixed = _FLIGHT.pack(VERSION, b"I", token, fingerprint, record.attempt, *left)
    if former is not None:
        fixed += _FORMER.pack(former.token, former.retention_ms, STATE_CODES[former.found], former.found_ms)
    return b'%b%b%b"I":"%08x"}' % (fixed, common, times, crc32(token + fingerprint, crc32(times, check)))


def _of_attempt(trace: Trace) -> bytes:
    begun, took, span = trace.begun_at_ms, trace.took_ms, _span(trace)
    began = b'"b":%d,' % begun if begun else b""
    return began + span if took is None else b'%b"d":%d,%b' % (began, took, span)


def _span(trace: Trace) -> bytes:
    return b'"c":%b,' % orjson.dumps(trace.span[:SPAN_BYTES]) if trace.span else b""


def decode(
    data: bytes,
    remaining_ms: int,
    *,
    traced: bool = False,
    size: int = -1,
    encryption: Encryption | None = None,
    key: bytes = b"",
    as_sent: bool = False,
) -> Record:
    """The record as it reads with ``remaining_ms`` left to live. Raises `RecordUnreadable`, with no part of the data in its text.

    Its trace is read only if ``traced``: no request needs it, and each would pay for it.
    With ``size``, the bytes of the whole record, ``data`` ends where the body begins, which reads as empty then.
    What is encrypted is opened by ``encryption`` for the look-up ``key``. ``as_sent``: its response may come as `Record.lines`.
    A record in flight has lapsed exactly when what it has left is no more than its own retention.
    """
    if not data or data[0] != VERSION:
        raise RecordUnreadable(
            f"a record of version {data[0] if data else 'none'} can't be read; this oncegate reads version {VERSION}"
        )
    if remaining_ms < 0:
        raise RecordUnreadable("a record without an expiry is damaged")
    try:
        return _decode(data, remaining_ms, traced, size, encryption, key, as_sent)
    except (struct.error, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise RecordUnreadable("a record is damaged") from error


def _decode(
    data: bytes,
    remaining_ms: int,
    traced: bool,
    size: int,
    encryption: Encryption | None,
    key: bytes,
    as_sent: bool,
) -> Record:
    # Of a record in flight, what is taken for the length belongs to its retention.
    length: int
    _, code, token, fingerprint, attempt, length = _OUTCOME.unpack_from(data)
    state = _STORED[code]
    if state is _IN_FLIGHT:
        return _decode_flight(data, remaining_ms, traced)
    if not length:
        apart = data[_OUTCOME_BYTES:]
        _check_alone(data, apart, code, token)
        return _with_members(Record(state, token, fingerprint, attempt), apart, traced)
    end = _OUTCOME_BYTES + length
    if end > len(data):
        raise ValueError("cut short")
    packed, body = data[_OUTCOME_BYTES:end], data[end:]
    if (sealed := packed.rfind(_SEAL_BEGINS[code])) < 0:
        raise ValueError("the seal is gone")
    if size >= 0:
        whole = packed[sealed + _LENGTH_AT :] == b'%d"}' % (size - end)
    else:
        check = crc32(body, crc32(data[: _OUTCOME_BYTES + sealed]))
        whole = packed[sealed + _CHECK_AT :] == b'%b%d"}' % (b2a_hex(_CHECK.pack(check)), len(body))
    if not whole:
        raise ValueError("the seal is another record's")
    record = Record(state, token, fingerprint, attempt)
    if size < 0 and not traced:
        is_ready = packed.startswith(READY)
        record.response = ready_response(record, packed, body, as_sent) if is_ready else _plain_response(packed, body)
        if record.response is not None:
            return record
    head, body = _opened(orjson.loads(packed), body, size, encryption, key, token)
    return _with_head(record, head, body, traced, size >= 0)


def _with_head(record: Record, head: dict[str, Any], body: bytes, traced: bool, is_cut: bool) -> Record:
    """``record`` with its response, and what else the head says."""
    headers = tuple([(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["h"]])
    if is_cut:  # the seal of what isn't whole proves nothing
        _check_numbers(head["s"], head["t"])
    record.response = stored_response(head["s"], headers, None if "o" in head else body, head["t"])
    if traced:
        record.trace = trace_of(head)
        if record.trace.took_ms is not None:
            record.trace.begun_at_ms = head["t"] - record.trace.took_ms
    return _with_own(record, head)


def _check_alone(data: bytes, apart: bytes, code: bytes, token: bytes) -> None:
    """Raises ``ValueError`` for an outcome without a response that neither is sealed nor was restored."""
    if _was_restored(apart):
        if token != DEAD_TOKEN or code not in _GIVEN_BACK:
            raise ValueError("the seal is gone")
        return
    seal = b'"%b":"%08x0"}'
    begin = data[: -len(seal % (code, 0))]
    if not data.endswith(seal % (code, crc32(begin))):
        raise ValueError("the seal is another record's, or gone")


def _was_restored(apart: bytes) -> bool:
    """Whether this is all that a release leaves of the members, unsealed (``redis/lua/release.lua``): the record's own."""
    return not apart or (apart.startswith(_OWN_BEGINS) and _OWN_NAMES.issuperset(orjson.loads(apart)))


def _with_members(record: Record, apart: bytes, traced: bool) -> Record:
    """``record`` with what the object behind it says. The record's own members come first: mostly there is none."""
    if apart and (traced or apart.startswith(_OWN_BEGINS)):
        members = orjson.loads(apart)
        _with_own(record, members)
        if traced:
            record.trace = trace_of(members)
    return record


def _with_own(record: Record, members: dict[str, Any]) -> Record:
    for member in RECORD_MEMBERS:
        setattr(record, member.part, member.read(members))
    return record


def _opened(
    head: dict[str, Any], body: bytes, size: int, encryption: Encryption | None, key: bytes, token: bytes
) -> tuple[dict[str, Any], bytes]:
    """The head and the body of a response; the encrypted ones of one that is encrypted. Raises `RecordUnreadable`."""
    if "e" not in head:
        return head, body
    if encryption is None:
        raise RecordUnreadable("the record is encrypted, and encryption_keys are not set")
    head["h"], head["s"] = orjson.loads(encryption.decrypt(a2b_base64(head["e"]), b"head", key, token))
    is_here = size < 0 and "o" not in head
    return head, encryption.decrypt(body, b"body", key, token) if is_here else body


def _plain_response(packed: bytes, body: bytes) -> StoredResponse | None:
    """The response of a sealed head without escapes, as `encode` writes it; ``None``: it takes a parser of JSON.

    Each quote begins or ends a text then. Split there, every second part is a text, whatever it holds, and the parts between
    say what it is: no strings are made that would only be encoded again.
    """
    if _BACKSLASH in packed or not packed.isascii():
        return None
    parts = packed.split(b'"')
    if parts[1] != b"h" or parts[2] != b":[[":
        return None  # there are no lines, or the record has members of its own
    headers = [(parts[3], parts[5])]
    at = 6
    while parts[at] == b"],[":
        headers.append((parts[at + 1], parts[at + 3]))
        at += 4
    if parts[at] != b"]]," or parts[at + 1] != b"s" or parts[at + 3] != b"t" or parts[at + 5] not in _BEHIND:
        return None
    status, completed_at_ms = int(parts[at + 2][1:-1]), int(parts[at + 4][1:-1])
    kept = None if parts[at + 5] == b"o" else body
    return _named(StoredResponse, (status, tuple(headers), kept, completed_at_ms))


def _check_numbers(status: object, completed_at_ms: object) -> None:
    if type(status) is not int or type(completed_at_ms) is not int:  # true is no number
        raise ValueError("a status and an instant are numbers")
    if not (200 <= status <= 999 and 0 <= completed_at_ms <= LAST_INSTANT_MS):
        raise ValueError("nothing ends with this status, or at this instant")


def _decode_flight(data: bytes, remaining_ms: int, traced: bool) -> Record:
    _, _, token, fingerprint, attempt, retention_ms, code, found_ms = _FLIGHT.unpack_from(data)
    start, former = _FLIGHT.size, None
    if code == _LAPSED:
        found, former = State.UNKNOWN, _read_former(data)
        start += _FORMER.size
    else:
        found = _STATES[code[0]]
    if found not in FOUND:
        raise ValueError("an attempt can't have found this state")
    apart = data[start:]
    sealed = len(apart) - _FLIGHT_SEAL_BYTES
    if _was_restored(apart):
        if former is not None:
            raise ValueError("the seal is gone")
    elif sealed <= 0 or apart[sealed:] != b'"I":"%08x"}' % _check_of_flight(data, apart[:sealed]):
        raise ValueError("the seal is another record's, or gone")
    lapsed = remaining_ms <= retention_ms
    state = State.UNKNOWN if lapsed else _IN_FLIGHT
    left = (found, found_ms, retention_ms)
    record = Record(state, token, fingerprint, attempt, None, lapsed, *left, NO_TRACE, False, former)
    return _with_members(record, apart, traced)


def _check_of_flight(fixed: bytes, apart: bytes) -> int:
    return crc32(fixed[_TOKEN_AT:_ATTEMPT_AT], crc32(apart, crc32(fixed[_RETENTION_AT:_FOUND_AT])))


def _read_former(data: bytes) -> Former:
    token, retention_ms, code, found_ms = _FORMER.unpack_from(data, _FLIGHT.size)
    found = _STATES[code[0]]
    if found not in FOUND:
        raise ValueError("an attempt can't have found this state")
    return Former(token, retention_ms, found, found_ms)


def _packed(members: tuple[Member, ...], parts: Any) -> bytes:
    """Members as they stand in an object, each with a comma behind it."""
    values = parts if len(members) > 1 else (parts,)  # as attrgetter gives them
    written = [(each.name, each.write(value)) for each, value in zip(members, values, strict=True)]
    found = {name: value for name, value in written if value is not None}
    return orjson.dumps(found)[1:-1] + b"," if found else b""


@lru_cache(maxsize=256)
def _common_members(own: Any, common: Any) -> tuple[bytes, bytes]:
    """The record's own members, and those of the trace that are common to all attempts of a process under one policy."""
    return _packed(RECORD_MEMBERS, own), _packed(_COMMON, common)


@lru_cache(maxsize=256)
def _common_of_flight(retention_ms: int, own: Any, common: Any) -> tuple[bytes, bytes, int]:
    """The bytes that are the same in every claim of a process under one policy.

    A first attempt's bytes from the attempt number to the object, the object's up to the times, and the checksum so far.
    """
    fixed = _FLIGHT.pack(VERSION, b"I", b"", b"", 1, retention_ms, b"A", 0)
    apart = b"{" + b"".join(_common_members(own, common))
    return fixed[_ATTEMPT_AT:], apart, crc32(apart, crc32(fixed[_RETENTION_AT:_FOUND_AT]))


def body_begins(data: bytes) -> int:
    """Where the body of a record begins whose first bytes are ``data``, 42 at least; at their end where there is none."""
    return _OUTCOME_BYTES + int.from_bytes(data[38:_OUTCOME_BYTES], "big") if data[1:2] != b"I" else len(data)
