"""Reads `traceparent`, a request's place in a trace (W3C Trace Context). What breaks its rules is taken for none."""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"

_is_traceparent: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL
).fullmatch


class TraceContext(NamedTuple):
    """A place in a trace: the ids of the trace and of the span that is the parent, in hex; ``flags`` is one octet."""

    trace_id: str
    span_id: str
    flags: int

    @property
    def sampled(self) -> bool:
        """Whether who began it may have recorded it."""
        return bool(self.flags & 1)


def parse_traceparent(value: bytes) -> TraceContext | None:
    """The context that ``value`` is; ``None`` for what is none.

    Of a version above 00 only what 00 has is read, as it asks for.
    """
    found = _is_traceparent(value)
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if rest is not None and version == b"00":
        return None
    return TraceContext(trace_id.decode(), span_id.decode(), int(flags, 16))


def trace_context(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """The context of a request with these ``headers``, names in lower case; ``None`` without one, and where there are several."""
    values = [value for name, value in headers if name == TRACEPARENT]
    return parse_traceparent(values[0].strip(b" \t")) if len(values) == 1 else None
