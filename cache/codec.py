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
(base64, see oncegate.cache.encryption), and the body is ciphertext; versions before can't read that, and say so.

What was added is the trace, for people, and every part of it may be missing: ``g`` gateway, ``m`` method, ``r`` the route's
pattern (none: the default one), ``b`` begin in Unix ms, ``d`` duration in ms, ``n`` a note. It is part of the head where there
is a response (``b`` follows from ``t`` and ``d`` there); else it is a JSON object of its own, after byte 55 in flight, after a
head of length 0 otherwise. "After byte 55" is after byte 88 where those bytes are there.

The mark ``a`` (always 1) says that the record is a submission's. It is the first member of whichever object there is.

The last member is the seal: the CRC-32 of all other bytes of the record, as 8 hex digits, then the length of the body in
decimal ones. It is called as the state is (``S``, ``F``, ``U``), so that a script can detect a damaged state without computing
it. In flight it is called ``I`` and has no length; it leaves out what a takeover writes (attempt number, state found and its
time), and begins with what all claims of a process under one policy have in common: retention, the object, token, fingerprint.

Records of versions before are not sealed, and their head begins with ``s``: each of its values is looked at by itself. Nor is
sealed what a release restored, of which nothing is replayed.
"""
# Compiled: docs/decisions/0012-compiled.md

import re
import struct
from binascii import a2b_base64, b2a_base64, b2a_hex
from functools import lru_cache
from typing import Any, Final
from zlib import crc32

import orjson

from oncegate.cache.encryption import Encryption
from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.fields import BODILESS, HOP_BY_HOP, is_field_name, is_field_value
from oncegate.cache.record import (
    FINGERPRINT_BYTES,
    FOUND,
    LAST_INSTANT_MS,
    NO_TRACE,
    TOKEN_BYTES,
    ClaimRequest,
    Former,
    Record,
    State,
    StoredResponse,
    Trace,
    stored_response,
)
from oncegate.cache.trace import add_trace, read_trace, trace_of, trace_of_outcome

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
_OUTCOME: Final = struct.Struct(">Bc16s16sII")
_OUTCOME_BYTES: Final = 42
_CHECK: Final = struct.Struct(">I")
_TOKEN_AT: Final = 2
_ATTEMPT_AT: Final = 34
_MARKED: Final = b'{"a":1'
_UNSEALED: Final = (b'{"s":', b'{"a":1,"s":')
_SEALS: Final = {code[0]: code.decode() for code in STATE_CODES.values()}  # the names of seals, by the states' codes
_SEAL_BEGINS: Final = {code: b'"%b":"' % code for code in STATE_CODES.values()}
"""Found in the head only as what they are: within a string each quote has a backslash before it."""
_NAMES: Final = frozenset(_SEALS.values())
_BACKSLASH: Final = ord("\\")
_BEHIND: Final = frozenset((b"o", *b"g m r b d n".split(), *STATE_CODES.values()))
"""Members that follow the completion. A head with another one there may have the mark of an omitted body behind it."""
_SEAL_BYTES: Final = len('"S":""}')
_CHECK_BYTES: Final = 8
_FLIGHT_SEAL_BYTES: Final = _SEAL_BYTES + _CHECK_BYTES
_CHECK_AT: Final = len('"S":"')
_LENGTH_AT: Final = _CHECK_AT + _CHECK_BYTES
_RETENTION_AT: Final = 38
_FOUND_AT: Final = 46
_is_length: Final = re.compile(rb"[0-9]{1,18}").fullmatch


def encode_claim(request: ClaimRequest) -> bytes:
    """The bytes of a first attempt in flight; a cache patches attempt and found state on a takeover."""
    token, fingerprint, trace = request.token, request.fingerprint, request.trace
    if len(token) != TOKEN_BYTES or len(fingerprint) != FINGERPRINT_BYTES:
        raise ValueError("a claim needs a 16-byte token and a 16-byte fingerprint")
    if request.submission or not trace.begun_at_ms:
        fixed = _FLIGHT.pack(VERSION, b"I", token, fingerprint, 1, request.retention_ms, b"A", 0)
        return _seal_flight(fixed, trace, request.submission)
    rest, check = _rest_of_claim(request.retention_ms, trace.gateway, trace.method, trace.route)
    owner, begun = token + fingerprint, b"%d," % trace.begun_at_ms
    check = crc32(begun + owner, check)
    return b'\x01I%b%b%b"I":"%b"}' % (owner, rest, begun, b2a_hex(_CHECK.pack(check)))  # 1 is the version


def encode_restored(record: Record) -> bytes:
    """The bytes of what a release gives back. They are not sealed: a script can't, and nothing of them is replayed."""
    code, token, fingerprint, attempt = STATE_CODES[record.state], record.token, record.fingerprint, record.attempt
    if record.state is _IN_FLIGHT:
        left = (record.retention_ms, STATE_CODES[record.found], record.found_ms)
        fixed = _FLIGHT.pack(VERSION, code, token, fingerprint, attempt, *left)
    else:
        fixed = _OUTCOME.pack(VERSION, code, token, fingerprint, attempt, 0)
    return fixed + (b'{"a":1}' if record.submission else b"")


def encode(record: Record, encryption: Encryption | None = None, key: bytes = b"") -> bytes:
    """The bytes of ``record``; its response is encrypted for the look-up ``key``, where there is an ``encryption``.

    A lapsed record has no bytes of its own (raises ``ValueError``): lapsing is how it reads."""
    state, response, trace = record.state, record.response, record.trace
    if record.lapsed or state is _ABSENT:
        raise ValueError("only a record as stored has bytes")
    code, token, fingerprint, attempt = STATE_CODES[state], record.token, record.fingerprint, record.attempt
    if state is _IN_FLIGHT:
        former = record.former
        found = STATE_CODES[record.found] if former is None else _LAPSED
        fixed = _FLIGHT.pack(VERSION, code, token, fingerprint, attempt, record.retention_ms, found, record.found_ms)
        if former is not None:
            fixed += _FORMER.pack(former.token, former.retention_ms, STATE_CODES[former.found], former.found_ms)
        return _seal_flight(fixed, trace, record.submission)
    if response is None:
        fixed = _OUTCOME.pack(VERSION, code, token, fingerprint, attempt, 0)
        begin = fixed + _open_apart(trace, record.submission)
        return b'%b"%b":"%08x0"}' % (begin, code, crc32(begin))
    status, headers, body, completed_at_ms = response
    lines = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    # The mark comes first: there it is looked for.
    head: dict[str, Any] = {"a": 1} if record.submission else {}
    if encryption is None or not encryption.encrypts:
        head["h"], head["s"] = lines, status
    else:
        packed_head = encryption.encrypt(orjson.dumps([lines, status]), b"head", key, token)
        head["e"] = b2a_base64(packed_head, newline=False).decode("ascii")
        body = None if body is None else encryption.encrypt(body, b"body", key, token)
    head["t"] = completed_at_ms
    if body is None:
        head["o"] = 1
        body = b""
    if trace.note or trace.took_ms is None:
        add_trace(head, trace, begun=trace.took_ms is None)
        packed = _open(head)
    else:  # as a rule
        common = _common_members(trace.gateway, trace.method, trace.route)
        packed = b'%b,%b"d":%d,' % (orjson.dumps(head)[:-1], common, trace.took_ms)
    seal_end = b'%d"}' % len(body)
    length = len(packed) + _LENGTH_AT + len(seal_end)
    begin = _OUTCOME.pack(VERSION, code, token, fingerprint, attempt, length) + packed
    check = b2a_hex(_CHECK.pack(crc32(body, crc32(begin))))
    return b"".join((begin, _SEAL_BEGINS[code], check, seal_end, body))


def _seal_flight(fixed: bytes, trace: Trace, submission: bool) -> bytes:
    apart = _open_apart(trace, submission)
    if apart == b"{":  # there is nothing to seal it in
        return fixed
    return b'%b%b"I":"%08x"}' % (fixed, apart, _check_of_flight(fixed, apart))


def _check_of_flight(fixed: bytes, apart: bytes) -> int:
    return crc32(fixed[_TOKEN_AT:_ATTEMPT_AT], crc32(apart, crc32(fixed[_RETENTION_AT:_FOUND_AT])))


def decode(
    data: bytes,
    remaining_ms: int,
    *,
    traced: bool = False,
    size: int = -1,
    encryption: Encryption | None = None,
    key: bytes = b"",
) -> Record:
    """The record as it reads with ``remaining_ms`` left to live. Raises `RecordUnreadable`, with no part of the data in its text.

    Its trace is read only if ``traced``: no request needs it, and each would pay for it.
    With ``size``, the bytes of the whole record, ``data`` ends where the body begins, which reads as empty then.
    What is encrypted is opened by ``encryption`` for the look-up ``key``.
    A record in flight has lapsed exactly when what it has left is no more than its own retention.
    """
    if not data or data[0] != VERSION:
        raise RecordUnreadable(
            f"a record of version {data[0] if data else 'none'} can't be read; this oncegate reads version {VERSION}"
        )
    if remaining_ms < 0:
        raise RecordUnreadable("a record without an expiry is damaged")
    try:
        return _decode(data, remaining_ms, traced, size, encryption, key)
    except (struct.error, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise RecordUnreadable("a record is damaged") from error


def _decode(
    data: bytes, remaining_ms: int, traced: bool, size: int, encryption: Encryption | None, key: bytes
) -> Record:
    # Of a record in flight, what is taken for the length belongs to its retention.
    _, code, token, fingerprint, attempt, length = _OUTCOME.unpack_from(data)
    state = _STORED[code]
    if state is _IN_FLIGHT:
        return _decode_flight(data, remaining_ms, traced)
    start = _OUTCOME_BYTES
    submission = data[start : start + len(_MARKED)] == _MARKED
    if not length:
        trace = _read_alone(data, start, code, traced)
        return Record(state, token, fingerprint, attempt, trace=trace, submission=submission)
    end = start + length
    if end > len(data):
        raise ValueError("cut short")
    packed, body = data[start:end], data[end:]
    if (sealed := packed.rfind(_SEAL_BEGINS[code])) >= 0:
        if size >= 0:
            whole = packed[sealed + _LENGTH_AT :] == b'%d"}' % (size - end)
        else:
            check = crc32(body, crc32(data[: start + sealed]))
            whole = packed[sealed + _CHECK_AT :] == b'%08x%d"}' % (check, len(body))
        if not whole:
            raise ValueError("the seal is another record's")
        if size < 0 and not traced and (plain := _plain_response(packed, body)) is not None:
            return Record(state, token, fingerprint, attempt, plain)
    head, body = _opened(orjson.loads(packed), body, size, encryption, key, token)
    headers = tuple([(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["h"]])
    if sealed < 0 or size >= 0:  # a seal proves nothing of what is not whole
        _check_response(packed, sealed, head, headers, body)
    response = stored_response(head["s"], headers, None if "o" in head else body, head["t"])
    trace = trace_of_outcome(head) if traced else NO_TRACE
    return Record(state, token, fingerprint, attempt, response, False, _ABSENT, 0, 0, trace, submission)


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
    if parts[2] != b":[[":
        return None  # there are no lines, or the mark comes first
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


def _check_response(
    packed: bytes, sealed: int, head: dict[str, Any], headers: tuple[tuple[bytes, bytes], ...], body: bytes
) -> None:
    """Raises ``ValueError`` for what can't be replayed. Thorough where no seal was checked: one proves that we wrote it all."""
    _check_numbers(head["s"], head["t"])
    if sealed >= 0:
        return
    if not packed.startswith(_UNSEALED):
        raise ValueError("the seal is gone")
    lines, lengths = head["h"], []
    if not isinstance(lines, list) or not all(isinstance(line, list) for line in lines):
        raise ValueError("header lines are pairs in a list")
    for name, value in headers:
        if not is_field_name(name) or not is_field_value(value) or name.lower() in HOP_BY_HOP:
            raise ValueError("this is no header line that is kept")
        if name.lower() == b"content-length":
            lengths.append(value)
    if len(lengths) > 1 or not all(map(_is_length, lengths)):
        raise ValueError("there is more than one length, or it is none")
    # What answers HEAD has the length of what GET gets (RFC 9110 section 8.6), and what was not kept that of what it was.
    if lengths and body and head["s"] not in BODILESS and int(lengths[0]) != len(body):
        raise ValueError("the body has another length")


def _read_alone(data: bytes, start: int, code: bytes, traced: bool) -> Trace:
    """The trace of an outcome without a response. Raises ``ValueError`` for what is none, or was damaged."""
    apart = data[start:]
    if not apart:
        return NO_TRACE
    members = orjson.loads(apart)
    if not isinstance(members, dict) or "h" in members:
        raise ValueError("there is no response")
    if not _NAMES.isdisjoint(members):
        seal = members[_SEALS[code[0]]]
        if seal != f"{crc32(data[: -_SEAL_BYTES - len(seal)]):08x}0":
            raise ValueError("the seal is another record's")
    return trace_of(members) if traced else NO_TRACE


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
    if (
        sealed > 0
        and apart.startswith(b'"I":"', sealed)
        and not apart.endswith(b'%08x"}' % _check_of_flight(data, apart[:sealed]))
    ):
        raise ValueError("the seal is another record's")
    lapsed = remaining_ms <= retention_ms
    state = State.UNKNOWN if lapsed else _IN_FLIGHT
    trace = read_trace(apart) if traced else NO_TRACE
    submission = apart.startswith(_MARKED)
    left = (found, found_ms, retention_ms)
    return Record(state, token, fingerprint, attempt, None, lapsed, *left, trace, submission, former)


def _read_former(data: bytes) -> Former:
    token, retention_ms, code, found_ms = _FORMER.unpack_from(data, _FLIGHT.size)
    found = _STATES[code[0]]
    if found not in FOUND:
        raise ValueError("an attempt can't have found this state")
    return Former(token, retention_ms, found, found_ms)


def _open_apart(trace: Trace, submission: bool) -> bytes:
    members: dict[str, Any] = {"a": 1} if submission else {}
    add_trace(members, trace)
    return _open(members)


def _open(members: dict[str, Any]) -> bytes:
    """A JSON object that takes another member."""
    return orjson.dumps(members)[:-1] + b"," if members else b"{"


@lru_cache(maxsize=256)
def _common_members(gateway: str, method: str, route: str) -> bytes:
    """The trace members common to all attempts of a process under one policy, each with a comma behind it."""
    members: dict[str, Any] = {}
    add_trace(members, Trace(gateway, method=method, route=route))
    return _open(members)[1:]


@lru_cache(maxsize=256)
def _rest_of_claim(retention_ms: int, gateway: str, method: str, route: str) -> tuple[bytes, int]:
    """The bytes from the fingerprint to the time of begin: the same in every claim of a process under one policy.

    Returned with its checksum so far.
    """
    fixed = _FLIGHT.pack(VERSION, b"I", b"", b"", 1, retention_ms, b"A", 0)
    members: dict[str, Any] = {}
    add_trace(members, Trace(gateway, method=method, route=route))
    apart = _open(members) + b'"b":'
    return fixed[_ATTEMPT_AT:] + apart, crc32(apart, crc32(fixed[_RETENTION_AT:_FOUND_AT]))


def body_begins(data: bytes) -> int:
    """Where the body of a record begins whose first bytes are ``data``, 42 at least; at their end where there is none."""
    return _OUTCOME_BYTES + int.from_bytes(data[38:_OUTCOME_BYTES], "big") if data[1:2] != b"I" else len(data)
