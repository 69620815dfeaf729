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
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable
from typing import Any, Final
from zlib import crc32

import orjson

from oncegate.cache.encryption import Encryption
from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.flight import decode_flight, encode_flight
from oncegate.cache.flight import encode_claim as encode_claim  # a claim is a record, too
from oncegate.cache.layout import (
    CHECK_BYTES,
    HEX,
    STATE_CODES,
    STATES,
    VERSION,
    common_of,
    digits,
    octets,
    of_attempt,
    span_of,
    was_restored,
    with_members,
    with_own,
)
from oncegate.cache.ready_lines import READY, ready_response, ready_texts
from oncegate.cache.record import (
    DEAD_TOKEN,
    FINGERPRINT_BYTES,
    LAST_INSTANT_MS,
    TOKEN_BYTES,
    ReadyResponse,
    Record,
    State,
    StoredResponse,
    stored_response,
)
from oncegate.cache.trace import TRACE_MEMBERS, trace_of

# Members of an enumeration take long to look up.
_ABSENT: Final = State.ABSENT
_IN_FLIGHT: Final = State.IN_FLIGHT
_STORED: Final = {code: state for code, state in STATES.items() if state is not State.ABSENT}
_GIVEN_BACK: Final = (b"F", b"U")
_OUTCOME: Final = struct.Struct(">Bc16s16sII")
_unpack: Final = _OUTCOME.unpack_from  # a module's own name, and one object less to be looked at, compiled
_named: Final = tuple.__new__
"""Makes a named tuple in half the time of its own constructor."""
_crc32: Final[Callable[[bytes, int], int]] = crc32
_OUTCOME_BYTES: Final = 42
_BEGIN: Final = b"%c" % VERSION
_SEAL_BEGINS: Final = {code: b'"%b":"' % code for code in STATE_CODES.values()}
# Numbers: given bytes, ``in`` first tries them as a number, and the error that this raises costs more than the search.
_BACKSLASH: Final = ord("\\")
_BEHIND: Final = frozenset((b"o", *[each.name.encode() for each in TRACE_MEMBERS], *STATE_CODES.values()))
"""Members that follow the completion. A head with another one there may have the mark of an omitted body behind it."""
_LENGTH_AT: Final = len('"S":"') + CHECK_BYTES
_SEAL_ALONE_BYTES: Final = _LENGTH_AT + len('0"}')


def encode(record: Record, encryption: Encryption | None = None, key: bytes = b"") -> bytes:
    """The bytes of ``record``; its response is encrypted for the look-up ``key``, where there is an ``encryption``.

    Raises ``ValueError`` for a lapsed record, which has no bytes of its own: lapsing is how it reads; and for a token or a
    fingerprint of another length than 16 bytes.
    """
    state, response, trace = record.state, record.response, record.trace
    if record.lapsed or state is _ABSENT:
        raise ValueError("only a record as stored has bytes")
    if state is _IN_FLIGHT:
        return encode_flight(record)
    code, token, fingerprint, attempt = STATE_CODES[state], record.token, record.fingerprint, record.attempt
    common = common_of(record.own(), trace.common())
    if len(token) != TOKEN_BYTES or len(fingerprint) != FINGERPRINT_BYTES:  # others would shift what is behind them
        raise ValueError("a record needs a 16-byte token and a 16-byte fingerprint")
    fixed = b"%b%b%b%b%b" % (_BEGIN, code, token, fingerprint, octets(attempt))
    if response is None:
        begin = b"%b%b{%b%b%b" % (fixed, octets(0), common.own, common.trace, of_attempt(trace))
        return b'%b"%b":"%08x0"}' % (begin, code, _crc32(begin, 0))
    status, headers, body, completed_at_ms = response
    if not (0 <= status <= 999 and 0 <= completed_at_ms <= LAST_INSTANT_MS):
        orjson.dumps((status, completed_at_ms))  # raises where JSON has no such numbers
    size = b"0" if body is None else digits(len(body))
    ready = b"" if body is None or encryption is not None else ready_texts(headers, size)
    if ready:
        head = b'"s":%b,"h":[["%b"]]' % (digits(status), ready)
    else:
        lines = orjson.dumps([(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers])
        if encryption is None or not encryption.encrypts:
            head = b'"h":%b,"s":%d' % (lines, status)
        else:
            packed_head = encryption.encrypt(b"[%b,%d]" % (lines, status), b"head", key, token)
            head = b'"e":"%b"' % b2a_base64(packed_head, newline=False)
            body = None if body is None else encryption.encrypt(body, b"body", key, token)
            size = b"0" if body is None else digits(len(body))
    omitted = b""
    if body is None:
        omitted, body = b',"o":1', b""
    # The begin follows from completion and duration.
    took = trace.took_ms
    times = of_attempt(trace) if took is None else b'"d":%b,%b' % (digits(took), span_of(trace))
    completed = b"%d" % completed_at_ms  # by itself: compiled, what is made of bytes alone takes a quarter
    packed = b'{%b%b,"t":%b%b,%b%b' % (common.own, head, completed, omitted, common.trace, times)
    length = len(packed) + _LENGTH_AT + len(size) + len('"}')
    begin = b"%b%b%b" % (fixed, octets(length), packed)
    check = _crc32(body, _crc32(begin, 0))
    one, two, three, four = HEX[check >> 24], HEX[check >> 16 & 255], HEX[check >> 8 & 255], HEX[check & 255]
    return b'%b%b%b%b%b%b%b"}%b' % (begin, _SEAL_BEGINS[code], one, two, three, four, size, body)


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
    What is encrypted is opened by ``encryption`` for the look-up ``key``. ``as_sent``: its response may come as `Record.ready`.
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
    _, code, token, fingerprint, attempt, length = _unpack(data)
    state = _STORED[code]
    if state is _IN_FLIGHT:
        return decode_flight(data, remaining_ms, traced)
    if not length:
        apart = data[_OUTCOME_BYTES:]
        _check_alone(data, apart, code, token)
        return with_members(Record(state, token, fingerprint, attempt), apart, traced)
    end = _OUTCOME_BYTES + length
    if end > len(data):
        raise ValueError("cut short")
    packed, body = data[_OUTCOME_BYTES:end], data[end:]
    seal_end = digits(size - end if size >= 0 else len(body)) + b'"}'
    sealed = length - _LENGTH_AT - len(seal_end)
    if sealed < 0:
        raise ValueError("the seal is gone")
    begins = _SEAL_BEGINS[code]
    if size >= 0:
        whole = packed[sealed : sealed + len(begins)] == begins and packed.endswith(seal_end)
    else:
        check = _crc32(body, _crc32(data[: _OUTCOME_BYTES + sealed], 0))
        one, two, three, four = HEX[check >> 24], HEX[check >> 16 & 255], HEX[check >> 8 & 255], HEX[check & 255]
        whole = packed[sealed:] == b"".join((begins, one, two, three, four, seal_end))
    if not whole:
        raise ValueError("the seal is gone, or another record's")
    record = Record(state, token, fingerprint, attempt)
    if size < 0 and not traced:
        found = ready_response(packed, body, as_sent) if packed.startswith(READY) else _plain_response(packed, body)
        if isinstance(found, ReadyResponse):
            record.ready = found
            return record
        if found is not None:
            record.response = found
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
    return with_own(record, head)


def _check_alone(data: bytes, apart: bytes, code: bytes, token: bytes) -> None:
    """Raises ``ValueError`` for an outcome without a response that neither is sealed nor was restored."""
    if was_restored(apart):
        if token != DEAD_TOKEN or code not in _GIVEN_BACK:
            raise ValueError("the seal is gone")
        return
    begin = data[:-_SEAL_ALONE_BYTES]
    if not data.endswith(b'"%b":"%08x0"}' % (code, _crc32(begin, 0))):
        raise ValueError("the seal is another record's, or gone")


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


def body_begins(data: bytes) -> int:
    """Where the body of a record begins whose first bytes are ``data``, 42 at least; at their end where there is none."""
    return _OUTCOME_BYTES + int.from_bytes(data[38:_OUTCOME_BYTES], "big") if data[1:2] != b"I" else len(data)
