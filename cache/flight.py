"""A record in flight as bytes, which `oncegate.cache.codec` describes, and a claim as the bytes of its first attempt."""
# Compiled: docs/decisions/0012-compiled.md

import struct
from collections.abc import Callable
from typing import Final
from zlib import crc32

from oncegate.cache.layout import (
    CHECK_BYTES,
    HEX,
    STATE_CODES,
    STATES,
    VERSION,
    Common,
    Laid,
    common_of,
    of_attempt,
    was_restored,
    with_members,
)
from oncegate.cache.record import FINGERPRINT_BYTES, FOUND, NO_TRACE, TOKEN_BYTES, ClaimRequest, Former, Record, State

_FLIGHT: Final = struct.Struct(">Bc16s16sIQcQ")
_FORMER: Final = struct.Struct(">16sQcQ")
_BEGIN: Final = b"%cI" % VERSION
_LAPSED: Final = b"L"
_SEAL_BYTES: Final = len('"I":""}') + CHECK_BYTES
_TOKEN_AT: Final = 2
_ATTEMPT_AT: Final = 34
_RETENTION_AT: Final = 38
_FOUND_AT: Final = 46
# Members of an enumeration take long to look up.
_IN_FLIGHT: Final = State.IN_FLIGHT
_UNKNOWN: Final = State.UNKNOWN
_crc32: Final[Callable[[bytes, int], int]] = crc32  # a module's own name takes no look into a dict, compiled


def encode_claim(request: ClaimRequest) -> bytes:
    """The bytes of `ClaimRequest.first_attempt`, without making it; a script patches attempt and found state on a takeover."""
    token, fingerprint, trace = request.token, request.fingerprint, request.trace
    if len(token) != TOKEN_BYTES or len(fingerprint) != FINGERPRINT_BYTES:
        raise ValueError("a claim needs a 16-byte token and a 16-byte fingerprint")
    common = common_of(request.own(), trace.common())
    laid = common.laid
    if laid.retention_ms != request.retention_ms:
        laid = _laid(common, request.retention_ms)
    begun = trace.begun_at_ms
    times = b'"b":%d,' % begun if begun and trace.took_ms is None and not trace.span else of_attempt(trace)
    check = _crc32(times + token + fingerprint, laid.check)
    one, two, three, four = HEX[check >> 24], HEX[check >> 16 & 255], HEX[check >> 8 & 255], HEX[check & 255]
    begin = b"%b%b%b%b%b%b" % (_BEGIN, token, fingerprint, laid.first, laid.apart, times)
    return b'%b"I":"%b%b%b%b"}' % (begin, one, two, three, four)


def encode_flight(record: Record) -> bytes:
    """The bytes of a ``record`` in flight."""
    former, token, fingerprint = record.former, record.token, record.fingerprint
    common = common_of(record.own(), record.trace.common())
    laid = common.laid
    if laid.retention_ms != record.retention_ms:
        laid = _laid(common, record.retention_ms)
    times = of_attempt(record.trace)
    found = STATE_CODES[record.found] if former is None else _LAPSED
    left = (record.retention_ms, found, record.found_ms)
    fixed = _FLIGHT.pack(VERSION, b"I", token, fingerprint, record.attempt, *left)
    if former is not None:
        fixed += _FORMER.pack(former.token, former.retention_ms, STATE_CODES[former.found], former.found_ms)
    check = _crc32(token + fingerprint, _crc32(times, laid.check))
    return b'%b%b%b"I":"%08x"}' % (fixed, laid.apart, times, check)


def _laid(common: Common, retention_ms: int) -> Laid:
    """Lay ready the bytes that are the same in every claim of a process under one policy.

    A first attempt's from the attempt number to the object, the object's up to the times, and the checksum so far.
    """
    fixed = _FLIGHT.pack(VERSION, b"I", b"", b"", 1, retention_ms, b"A", 0)
    apart = b"{%b%b" % (common.own, common.trace)
    check = _crc32(apart, _crc32(fixed[_RETENTION_AT:_FOUND_AT], 0))
    common.laid = laid = Laid(retention_ms, fixed[_ATTEMPT_AT:], apart, check)
    return laid


def decode_flight(data: bytes, remaining_ms: int, traced: bool) -> Record:
    """The record in flight that ``data`` is, or the lapsed one, with ``remaining_ms`` left to live.

    Raises ``ValueError``, ``LookupError`` or ``struct.error`` where it is damaged.
    """
    _, _, token, fingerprint, attempt, retention_ms, code, found_ms = _FLIGHT.unpack_from(data)
    start, former = _FLIGHT.size, None
    if code == _LAPSED:
        found, former = _UNKNOWN, _read_former(data)
        start += _FORMER.size
    else:
        found = _found(code)
    apart = data[start:]
    sealed = len(apart) - _SEAL_BYTES
    if was_restored(apart):
        if former is not None:
            raise ValueError("the seal is gone")
    elif sealed <= 0 or apart[sealed:] != b'"I":"%08x"}' % _check_of(data, apart[:sealed]):
        raise ValueError("the seal is another record's, or gone")
    lapsed = remaining_ms <= retention_ms
    state = _UNKNOWN if lapsed else _IN_FLIGHT
    left = (found, found_ms, retention_ms)
    record = Record(state, token, fingerprint, attempt, None, lapsed, *left, NO_TRACE, False, former)
    return with_members(record, apart, traced)


def _check_of(fixed: bytes, apart: bytes) -> int:
    return _crc32(fixed[_TOKEN_AT:_ATTEMPT_AT], _crc32(apart, _crc32(fixed[_RETENTION_AT:_FOUND_AT], 0)))


def _read_former(data: bytes) -> Former:
    token, retention_ms, code, found_ms = _FORMER.unpack_from(data, _FLIGHT.size)
    return Former(token, retention_ms, _found(code), found_ms)


def _found(code: bytes) -> State:
    found = STATES[code]
    if found not in FOUND:
        raise ValueError("an attempt can't have found this state")
    return found
