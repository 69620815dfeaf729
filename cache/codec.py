"""Records as bytes: a fixed header that scripts compare at known offsets, a small JSON head, an opaque body.

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
46     1    in flight: state found, ``A`` absent, ``F`` failed, ``U`` unknown
47     8    in flight: what the state found had left to live, ms
====== ==== ==============================================================================================

A record in flight is at least 55 bytes; of what comes after them scripts read only the mark, and neither do scripts or
readers mind members of the JSON head that they don't know, so that versions can add to both. The head: ``s`` status, ``h``
header lines (Latin-1), ``t`` completion in Unix ms, ``o`` body omitted.

What was added is the trace, for people, and every part of it may be missing: ``g`` gateway, ``b`` begin in Unix ms, ``d``
duration in ms, ``n`` a note. It is part of the head where there is a response (``b`` follows from ``t`` and ``d`` there);
else it is a JSON object of its own, after byte 55 in flight, after a head of length 0 otherwise.

The mark ``a`` (always 1) says that the record is a submission's. It is the first member of whichever object there is.
"""

import struct
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import orjson

from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.record import (
    FINGERPRINT_BYTES,
    MAX_GATEWAY_BYTES,
    MAX_NOTE_BYTES,
    TOKEN_BYTES,
    Record,
    State,
    Trace,
    stored_response,
)

VERSION: Final = 1
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
_FOUND: Final = frozenset({State.ABSENT, State.FAILED, State.UNKNOWN})
_FLIGHT: Final = struct.Struct(">Bc16s16sIQcQ")
_OUTCOME: Final = struct.Struct(">Bc16s16sII")
_ATTEMPT_AT: Final = 34
_NO_TRACE: Final = Trace()
_MARKED: Final = b'{"a":1'
_BACKSLASH: Final = ord("\\")


def encode_claim(
    token: bytes, fingerprint: bytes, retention_ms: int, trace: Trace | None = None, *, submission: bool = False
) -> bytes:
    """The bytes of a first attempt in flight; a cache patches attempt and found state on a takeover."""
    if len(token) != TOKEN_BYTES or len(fingerprint) != FINGERPRINT_BYTES:
        raise ValueError("a claim needs a 16-byte token and a 16-byte fingerprint")
    if submission or trace is None:
        fixed = _FLIGHT.pack(VERSION, b"I", token, fingerprint, 1, retention_ms, b"A", 0)
        return fixed + _pack_apart(trace or _NO_TRACE, submission) if submission else fixed
    rest = _rest_of_claim(retention_ms, trace.gateway)
    return b"\x01I%b%b%b%d}" % (token, fingerprint, rest, trace.begun_at_ms)  # 1 is the version


def encode(record: Record) -> bytes:
    """The bytes of ``record``. A lapsed record has no bytes of its own (raises ``ValueError``): lapsing is how it reads."""
    state, response, trace = record.state, record.response, record.trace
    if record.lapsed or state is _ABSENT:
        raise ValueError("only a record as stored has bytes")
    code, token, fingerprint, attempt = STATE_CODES[state], record.token, record.fingerprint, record.attempt
    if state is _IN_FLIGHT:
        found = STATE_CODES[record.found]
        fixed = _FLIGHT.pack(VERSION, code, token, fingerprint, attempt, record.retention_ms, found, record.found_ms)
        return fixed + _pack_apart(trace, record.submission)
    if response is None:
        fixed = _OUTCOME.pack(VERSION, code, token, fingerprint, attempt, 0)
        return fixed + _pack_apart(trace, record.submission)
    status, headers, body, completed_at_ms = response
    lines = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    head: dict[str, Any] = {"s": status, "h": lines, "t": completed_at_ms}
    if record.submission:
        head = {"a": 1} | head  # it comes first: there it is looked for
    if body is None:
        head["o"] = 1
        body = b""
    _add_trace(head, trace, begun=trace.took_ms is None)
    packed = orjson.dumps(head)
    fixed = _OUTCOME.pack(VERSION, code, token, fingerprint, attempt, len(packed))
    return b"".join((fixed, packed, body))


def decode(data: bytes, remaining_ms: int, *, traced: bool = False) -> Record:
    """The record as it reads with ``remaining_ms`` left to live. Raises `RecordUnreadable`, with no part of the data in its text.

    Its trace is read only where ``traced`` asks for it: no request does, and each would pay for it.
    A record in flight has lapsed exactly when what it has left is no more than its own retention.
    """
    if not data or data[0] != VERSION:
        raise RecordUnreadable(
            f"a record of version {data[0] if data else 'none'} can't be read; this oncegate reads version {VERSION}"
        )
    if remaining_ms < 0:
        raise RecordUnreadable("a record without an expiry is damaged")
    try:
        return _decode(data, remaining_ms, traced)
    except (struct.error, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RecordUnreadable("a record is damaged") from error


def _decode(data: bytes, remaining_ms: int, traced: bool) -> Record:
    # Of a record in flight, what is taken for the length belongs to its retention.
    _, code, token, fingerprint, attempt, length = _OUTCOME.unpack_from(data)
    state = _STATES[code[0]]
    if state is _IN_FLIGHT:
        return _decode_flight(data, remaining_ms, traced)
    if state is _ABSENT:
        raise ValueError("absent is not stored")
    start = _OUTCOME.size
    submission = data.startswith(_MARKED, start)
    if not length:
        trace = _read_trace(data[start:]) if traced else _NO_TRACE
        return Record(state, token, fingerprint, attempt, trace=trace, submission=submission)
    end = start + length
    if end > len(data):
        raise ValueError("cut short")
    packed = data[start:end]
    head = orjson.loads(packed)
    if packed.isascii() and _BACKSLASH not in packed:  # UTF-8 is the same then, and takes half the time
        headers = tuple([(name.encode(), value.encode()) for name, value in head["h"]])
    else:
        headers = tuple([(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["h"]])
    response = stored_response(int(head["s"]), headers, None if "o" in head else data[end:], int(head["t"]))
    trace = _NO_TRACE
    if traced:
        trace = _trace_of(head)
        if trace.took_ms is not None:
            trace = replace(trace, begun_at_ms=response.completed_at_ms - trace.took_ms)
    return Record(state, token, fingerprint, attempt, response, False, _ABSENT, 0, 0, trace, submission)


def _decode_flight(data: bytes, remaining_ms: int, traced: bool) -> Record:
    _, _, token, fingerprint, attempt, retention_ms, code, found_ms = _FLIGHT.unpack_from(data)
    found = _STATES[code[0]]
    if found not in _FOUND:
        raise ValueError("an attempt can't have found this state")
    lapsed = remaining_ms <= retention_ms
    state = State.UNKNOWN if lapsed else _IN_FLIGHT
    apart = data[_FLIGHT.size :]
    trace = _read_trace(apart) if traced else _NO_TRACE
    submission = apart.startswith(_MARKED)
    return Record(state, token, fingerprint, attempt, None, lapsed, found, found_ms, retention_ms, trace, submission)


def _pack_apart(trace: Trace, submission: bool) -> bytes:
    members: dict[str, Any] = {"a": 1} if submission else {}
    _add_trace(members, trace)
    return orjson.dumps(members) if members else b""


def _add_trace(members: dict[str, Any], trace: Trace, *, begun: bool = True) -> None:
    if trace.gateway:
        members["g"] = _cut(trace.gateway, MAX_GATEWAY_BYTES)
    if trace.begun_at_ms and begun:
        members["b"] = trace.begun_at_ms
    if trace.took_ms is not None:
        members["d"] = trace.took_ms
    if trace.note:
        members["n"] = _cut(trace.note, MAX_NOTE_BYTES)


@lru_cache(maxsize=64)
def _rest_of_claim(retention_ms: int, gateway: str) -> bytes:
    """What follows the fingerprint, up to the time of begin: it is the same in every claim of a process under one policy."""
    after = _FLIGHT.pack(VERSION, b"I", b"", b"", 1, retention_ms, b"A", 0)[_ATTEMPT_AT:]
    return after + b'{"g":%b,"b":' % orjson.dumps(_cut(gateway, MAX_GATEWAY_BYTES))


def _cut(text: str, most: int) -> str:
    if len(text) <= most and text.isascii():
        return text
    return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def _read_trace(data: bytes) -> Trace:
    """The trace that stands by itself in ``data``. What can't be read is no trace: a record must not fail for the want of one."""
    if not data:
        return _NO_TRACE
    try:
        members = orjson.loads(data)
    except ValueError:
        return _NO_TRACE
    return _trace_of(members) if isinstance(members, dict) else _NO_TRACE


def _trace_of(members: dict[str, Any]) -> Trace:
    gateway, begun, took, note = (members.get(name) for name in "gbdn")
    return Trace(
        gateway if isinstance(gateway, str) else "",
        begun if type(begun) is int else 0,  # true is no number
        took if type(took) is int else None,
        note if isinstance(note, str) else "",
    )
