"""The trace of an attempt, for people, and how each part of it is written: as a member of a record's JSON object.

See oncegate.cache.codec for where that object stands. Every part may be missing, and one that can't be read is not known: a
record must not fail for the want of its trace.
"""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

MAX_GATEWAY_BYTES: Final = 40
MAX_NOTE_BYTES: Final = 200
MAX_ROUTE_BYTES: Final = 80
SPAN_BYTES: Final = 49
DEFAULT_ROUTE: Final = "*"


# Every request makes one: see `oncegate.cache.record.Record`.
@dataclass(slots=True, init=False, unsafe_hash=True)  # hashable, as dataclasses ask of a default
class Trace:
    """An attempt's trace for people: which gateway made it, when it began, how long it took, what was noted at its end.

    ``method`` and ``route`` are the request's method and the pattern of its route; empty where they aren't known.
    Times are Unix milliseconds on the gateway's clock, 0 where they aren't known; ``took_ms`` is ``None`` while it runs.
    ``span`` is its place in a trace, the trace's id and its span's in hex with a ``-`` between; empty where none is kept.
    Nothing here decides anything, and every part is cut to a size that the memory of a store can bear.
    A part that is added is a member, too: `TRACE_MEMBERS`.
    """

    gateway: str
    begun_at_ms: int
    took_ms: int | None
    note: str
    method: str
    route: str
    span: str

    def __init__(
        self,
        gateway: str = "",
        begun_at_ms: int = 0,
        took_ms: int | None = None,
        note: str = "",
        method: str = "",
        route: str = "",
        span: str = "",
    ) -> None:
        self.gateway = gateway
        self.begun_at_ms = begun_at_ms
        self.took_ms = took_ms
        self.note = note
        self.method = method
        self.route = route
        self.span = span

    def common(self) -> tuple[str, str, str, str]:
        """The parts that many attempts have the same (all but `OF_ONE_ATTEMPT`), in the order in which they are written."""
        return self.gateway, self.method, self.route, self.note

    def ended(self, took_ms: int, note: str) -> "Trace":
        """The same, of the attempt that has ended."""
        return Trace(self.gateway, self.begun_at_ms, took_ms, note, self.method, self.route, self.span)


NO_TRACE: Final = Trace()


def trace_id_of(span: str) -> str:
    """The id of the trace that ``span`` is a place in."""
    return span.partition("-")[0]


class Member(NamedTuple):
    """A part of a record or of its trace as a member of a JSON object: the ``part``'s name, and the member's.

    ``write`` makes the member's value of the part's; ``None``: there is no such member, as with every part's default. ``read``
    makes it of all members, and doesn't raise.
    """

    part: str
    name: str
    write: Callable[[Any], Any]
    read: Callable[[dict[str, Any]], Any]


def text(part: str, name: str, most_bytes: int) -> Member:
    """A part that is text, kept to this size and empty where it isn't known."""

    def write(value: str) -> str | None:
        return _cut(value, most_bytes) or None

    def read(members: dict[str, Any]) -> str:
        value = members.get(name)
        return value if isinstance(value, str) else ""

    return Member(part, name, write, read)


_METHODS: Final = {"POST": "P", "PATCH": "A", "PUT": "U", "DELETE": "D"}
"""The methods that are spelled in one character: memory counts."""
_SPELLED: Final = {letter: method for method, letter in _METHODS.items()}


def _write_method(method: str) -> str | None:
    return _METHODS.get(method) or _cut(method, MAX_ROUTE_BYTES) or None


def _read_method(members: dict[str, Any]) -> str:
    method = members.get("m")
    return _SPELLED.get(method, method) if isinstance(method, str) else ""


def _write_route(route: str) -> str | None:
    return None if route == DEFAULT_ROUTE else _cut(route, MAX_ROUTE_BYTES) or None


def _read_route(members: dict[str, Any]) -> str:
    route = members.get("r")
    if isinstance(route, str):
        return route
    return DEFAULT_ROUTE if isinstance(members.get("m"), str) else ""


def _read_begin(members: dict[str, Any]) -> int:
    begun = members.get("b")
    return begun if type(begun) is int else 0  # true is no number


def _read_duration(members: dict[str, Any]) -> int | None:
    took = members.get("d")
    return took if type(took) is int else None


TRACE_MEMBERS: Final = (
    text("gateway", "g", MAX_GATEWAY_BYTES),
    Member("method", "m", _write_method, _read_method),
    Member("route", "r", _write_route, _read_route),
    text("note", "n", MAX_NOTE_BYTES),
    Member("begun_at_ms", "b", lambda begun: begun or None, _read_begin),
    Member("took_ms", "d", lambda took: took, _read_duration),
    text("span", "c", SPAN_BYTES),
)
"""All parts of a `Trace`, in the order in which they are written."""
OF_ONE_ATTEMPT: Final = frozenset(("begun_at_ms", "took_ms", "span"))
"""The parts that are other ones in each attempt: of the others, many have the same."""
TRACE_TEXTS: Final = tuple([member.part for member in TRACE_MEMBERS if member.part not in OF_ONE_ATTEMPT])
"""The others: texts, empty where they aren't known."""


def _cut(text: str, most: int) -> str:
    if len(text) <= most and text.isascii():
        return text
    return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def trace_of(members: dict[str, Any]) -> Trace:
    """The trace that ``members`` are. What is of another type is not known."""
    return Trace(**{member.part: member.read(members) for member in TRACE_MEMBERS})
