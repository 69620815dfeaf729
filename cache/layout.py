"""The spellings that all records have in common: states and seals, and the members of the JSON object, each of which is declared.

What stands where is described in `oncegate.cache.codec`.
"""
# Compiled: docs/decisions/0012-compiled.md

from typing import Any, Final

import orjson

from oncegate.cache.record import RECORD_MEMBERS, Record, State, Trace
from oncegate.cache.trace import OF_ONE_ATTEMPT, SPAN_BYTES, TRACE_MEMBERS, Member, trace_of

VERSION: Final = 1
STATE_CODES: Final = {
    State.IN_FLIGHT: b"I",
    State.SUCCEEDED: b"S",
    State.FAILED: b"F",
    State.UNKNOWN: b"U",
    State.ABSENT: b"A",
}
STATES: Final = {code: state for state, code in STATE_CODES.items()}
_SMALL: Final = 1024
_DIGITS: Final = [b"%d" % number for number in range(_SMALL)]
HEX: Final = [b"%02x" % octet for octet in range(256)]
"""Each octet of a checksum as a seal has it."""
CHECK_BYTES: Final = 8
"""The size of a checksum as a seal has it, in hex digits."""
MOST_KEPT: Final = 256
"""Rules that differ, of which the bytes are laid ready: more than a process has, as a rule."""
_OWN_NAMES: Final = frozenset([each.name for each in RECORD_MEMBERS])
_OWN_BEGINS: Final = tuple([b'{"%b":' % name.encode() for name in _OWN_NAMES])
"""The ways in which an object begins that has members of the record's own."""
_COMMON_MEMBERS: Final = tuple([each for each in TRACE_MEMBERS if each.part not in OF_ONE_ATTEMPT])
_BYTES: Final = 4
_NUMBERS: Final = [number.to_bytes(_BYTES, "big") for number in range(_SMALL)]


def digits(number: int) -> bytes:
    """A number as JSON has it: most that records have are small ones."""
    return _DIGITS[number] if 0 <= number < _SMALL else b"%d" % number


def octets(number: int) -> bytes:
    """A number as four octets."""
    return _NUMBERS[number] if 0 <= number < _SMALL else number.to_bytes(_BYTES, "big")


class Laid:
    """The bytes that are the same in all claims under one policy (`oncegate.cache.flight`), which has ``retention_ms``."""

    __slots__ = ("apart", "check", "first", "retention_ms")

    def __init__(self, retention_ms: int, first: bytes, apart: bytes, check: int) -> None:
        self.retention_ms = retention_ms
        self.first = first
        self.apart = apart
        self.check = check


class Common:
    """The members that many records have alike: ``own``, of the record's own parts, and ``trace``, of those of its trace.

    ``laid`` is the last claim's among them.
    """

    __slots__ = ("laid", "of_own", "of_trace", "own", "trace")

    def __init__(self, of_own: tuple[bool], of_trace: tuple[str, str, str, str]) -> None:
        self.of_own = of_own
        self.of_trace = of_trace
        self.own = _packed(RECORD_MEMBERS, of_own)
        self.trace = _packed(_COMMON_MEMBERS, of_trace)
        self.laid = Laid(-1, b"", b"", 0)


_commons: Final[dict[Any, Common]] = {}
_of_route: Final[dict[str, Common]] = {}
"""The last one of each route: it takes less to compare with it than to find one by all that it has."""


def common_of(own: tuple[bool], trace: tuple[str, str, str, str]) -> Common:
    """What is laid ready of a `Record.own` and a `Trace.common`."""
    route = trace[2]
    last = _of_route.get(route)
    if last is not None and last.of_own == own and last.of_trace == trace:
        return last
    key = own, trace
    found = _commons.get(key)
    if found is None:
        found = Common(own, trace)
        keep(_commons, key, found)
    keep(_of_route, route, found)
    return found


def keep(kept: dict[Any, Any], key: object, value: object) -> None:
    """Keep ``value`` under ``key``. What differs more often than is kept is made anew."""
    if len(kept) >= MOST_KEPT:
        kept.clear()
    kept[key] = value


def _packed(members: tuple[Member, ...], parts: tuple[Any, ...]) -> bytes:
    """Members as they stand in an object, each with a comma behind it."""
    written = [(each.name, each.write(value)) for each, value in zip(members, parts, strict=True)]
    found = {name: value for name, value in written if value is not None}
    return orjson.dumps(found)[1:-1] + b"," if found else b""


def of_attempt(trace: Trace) -> bytes:
    """The members of the trace that are other ones in each attempt."""
    begun, took = trace.begun_at_ms, trace.took_ms
    began = b'"b":%d,' % begun if begun else b""
    return began + span_of(trace) if took is None else b'%b"d":%b,%b' % (began, digits(took), span_of(trace))


def span_of(trace: Trace) -> bytes:
    """The last one of them, where there is one."""
    return b'"c":%b,' % orjson.dumps(trace.span[:SPAN_BYTES]) if trace.span else b""


def was_restored(apart: bytes) -> bool:
    """Whether this is all that a release leaves of the members, unsealed (``redis/lua/release.lua``): the record's own."""
    return not apart or (apart.startswith(_OWN_BEGINS) and _OWN_NAMES.issuperset(orjson.loads(apart)))


def with_members(record: Record, apart: bytes, traced: bool) -> Record:
    """``record`` with what the object behind it says. The record's own members come first: mostly there is none."""
    if apart and (traced or apart.startswith(_OWN_BEGINS)):
        members = orjson.loads(apart)
        with_own(record, members)
        if traced:
            record.trace = trace_of(members)
    return record


def with_own(record: Record, members: dict[str, Any]) -> Record:
    """``record`` with its own of the ``members``."""
    for member in RECORD_MEMBERS:
        setattr(record, member.part, member.read(members))
    return record
