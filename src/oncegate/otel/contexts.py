"""Places in a trace: as spans have them, as W3C Trace Context spells them, and as records keep them."""

import re
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags, TraceState

from oncegate.middleware.rules.headers.trace_context import TRACEPARENT, TRACESTATE, parse_traceparent, trace_context

Headers = list[tuple[bytes, bytes]]

_NOWHERE: Final = Context()
"""The context of what has no parent, whatever is current."""
_MOST_MEMBERS: Final = 32
_is_member: Final = re.compile(
    rb"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    rb"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
).fullmatch
_OURS: Final = frozenset((TRACEPARENT, TRACESTATE))


def below(context: SpanContext | None) -> Context:
    """The context of a span whose parent is at this place; of the first of a trace, without one."""
    return _NOWHERE if context is None else trace.set_span_in_context(NonRecordingSpan(context), _NOWHERE)


def sent_context(headers: Headers) -> SpanContext | None:
    """The place from which a request with these ``headers``, names in lower case, was sent."""
    found = trace_context(headers)
    if found is None:
        return None
    lines = [value for name, value in headers if name == TRACESTATE]
    return _remote(found.trace_id, found.span_id, found.flags, _state(lines) if lines else None)


def context_of(traceparent: str) -> SpanContext | None:
    """The place that ``traceparent`` spells; ``None`` for what spells none."""
    found = parse_traceparent(traceparent.encode("latin-1", "replace"))
    return None if found is None else _remote(found.trace_id, found.span_id, found.flags)


def kept_context(span: str) -> SpanContext | None:
    """The place that a record keeps (`oncegate.cache.trace.Trace`); ``None`` for what is none."""
    return context_of(f"00-{span}-00")


def span_of(context: SpanContext) -> str:
    """A place as a record keeps it."""
    return f"{context.trace_id:032x}-{context.span_id:016x}"


def traceparent_of(span: Span) -> str:
    """The place of ``span`` as `traceparent` spells it; empty where it has none."""
    context = span.get_span_context()
    return f"00-{span_of(context)}-{context.trace_flags & 0xFF:02x}" if context.is_valid else ""


def with_context(headers: Headers, span: Span) -> Headers:
    """``headers`` of a request that is sent within ``span``."""
    kept = [line for line in headers if line[0] not in _OURS]
    traceparent = traceparent_of(span)
    if traceparent:
        kept.append((TRACEPARENT, traceparent.encode()))
        if state := span.get_span_context().trace_state.to_header():
            kept.append((TRACESTATE, state.encode("latin-1")))
    return kept


def _state(lines: list[bytes]) -> TraceState | None:
    """The vendors' part of a place; ``None`` where it breaks the rules. (Their own reader would write it into the log.)"""
    members = [member.strip(b" \t") for line in lines for member in line.split(b",")]
    given = [member for member in members if member]
    if len(given) > _MOST_MEMBERS or not all(map(_is_member, given)):
        return None
    return TraceState.from_header([b",".join(given).decode("ascii")])


def _remote(trace_id: str, span_id: str, flags: int, state: TraceState | None = None) -> SpanContext:
    return SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(flags), trace_state=state
    )
