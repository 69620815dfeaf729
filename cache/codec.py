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

A record in flight is 55 bytes; bytes after that are ignored, and so are unknown members of the JSON head, so that later
versions can add to both. The head: ``s`` status, ``h`` header lines (Latin-1), ``t`` completion in Unix ms, ``o`` body omitted.
"""

import struct
from typing import Any

import orjson

from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.record import FINGERPRINT_BYTES, TOKEN_BYTES, Record, State, StoredResponse

VERSION = 1
STATE_CODES = {
    State.IN_FLIGHT: b"I",
    State.SUCCEEDED: b"S",
    State.FAILED: b"F",
    State.UNKNOWN: b"U",
    State.ABSENT: b"A",
}
_STATES = {code[0]: state for state, code in STATE_CODES.items()}
_FOUND = frozenset({State.ABSENT, State.FAILED, State.UNKNOWN})
_FIXED = struct.Struct(">Bc16s16sI")
_FLIGHT = struct.Struct(">QcQ")
_CLAIM = struct.Struct(">Bc16s16sIQcQ")  # both at once: every first request makes one
_LENGTH = struct.Struct(">I")


def encode_claim(token: bytes, fingerprint: bytes, retention_ms: int) -> bytes:
    """The bytes of a first attempt in flight; a cache patches attempt and found state on a takeover."""
    if len(token) != TOKEN_BYTES or len(fingerprint) != FINGERPRINT_BYTES:
        raise ValueError("a claim needs a 16-byte token and a 16-byte fingerprint")
    return _CLAIM.pack(VERSION, b"I", token, fingerprint, 1, retention_ms, b"A", 0)


def encode(record: Record) -> bytes:
    """The bytes of ``record``. A lapsed record has no bytes of its own (raises ``ValueError``): lapsing is how it reads."""
    if record.lapsed or record.state is State.ABSENT:
        raise ValueError("only a record as stored has bytes")
    fixed = _FIXED.pack(VERSION, STATE_CODES[record.state], record.token, record.fingerprint, record.attempt)
    if record.state is State.IN_FLIGHT:
        return fixed + _FLIGHT.pack(record.retention_ms, STATE_CODES[record.found], record.found_ms)
    response = record.response
    if response is None:
        return fixed + _LENGTH.pack(0)
    head: dict[str, Any] = {
        "s": response.status,
        "h": [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers],
        "t": response.completed_at_ms,
    }
    if response.body is None:
        head["o"] = 1
    packed = orjson.dumps(head)
    return b"".join((fixed, _LENGTH.pack(len(packed)), packed, response.body or b""))


def decode(data: bytes, remaining_ms: int) -> Record:
    """The record as it reads with ``remaining_ms`` left to live. Raises `RecordUnreadable`, with no part of the data in its text.

    A record in flight has lapsed exactly when what it has left is no more than its own retention.
    """
    if data[:1] != bytes((VERSION,)):
        raise RecordUnreadable(
            f"a record of version {data[0] if data else 'none'} can't be read; this oncegate reads version {VERSION}"
        )
    if remaining_ms < 0:
        raise RecordUnreadable("a record without an expiry is damaged")
    try:
        return _decode(data, remaining_ms)
    except (struct.error, ValueError, KeyError, TypeError, IndexError) as error:
        raise RecordUnreadable("a record is damaged") from error


def _decode(data: bytes, remaining_ms: int) -> Record:
    _, code, token, fingerprint, attempt = _FIXED.unpack_from(data)
    state = _STATES[code[0]]
    if state is State.ABSENT:
        raise ValueError("absent is not stored")
    if state is State.IN_FLIGHT:
        retention_ms, found_code, found_ms = _FLIGHT.unpack_from(data, _FIXED.size)
        found = _STATES[found_code[0]]
        if found not in _FOUND:
            raise ValueError("an attempt can't have found this state")
        lapsed = remaining_ms <= retention_ms
        reads = State.UNKNOWN if lapsed else state
        return Record(reads, token, fingerprint, attempt, None, lapsed, found, found_ms, retention_ms)
    (length,) = _LENGTH.unpack_from(data, _FIXED.size)
    start = _FIXED.size + _LENGTH.size
    response = _decode_response(data, start, start + length) if length else None
    return Record(state, token, fingerprint, attempt, response)


def _decode_response(data: bytes, start: int, end: int) -> StoredResponse:
    if end > len(data):
        raise ValueError("cut short")
    head = orjson.loads(memoryview(data)[start:end])
    headers = tuple([(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["h"]])
    return StoredResponse(int(head["s"]), headers, None if "o" in head else data[end:], int(head["t"]))
