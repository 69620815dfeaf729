"""The spans of an attempt's calls of the cache and of its outcome, which requests and deliveries have in common."""

from collections.abc import Callable
from time import monotonic, time_ns
from typing import Final

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from oncegate.cache.record import State
from oncegate.cache.store import Cache
from oncegate.otel.contexts import below, kept_context, span_of, traceparent_of

OPERATION: Final = "db.operation.name"
SYSTEM: Final = "db.system.name"
ERROR_TYPE: Final = "error.type"
ATTEMPT: Final = "oncegate.attempt"
DECISION: Final = "oncegate.decision"
INBOX: Final = "oncegate.inbox"
MODE: Final = "oncegate.mode"
OUTCOME: Final = "oncegate.outcome"
RECORD: Final = "oncegate.record"
REPLAYED: Final = "oncegate.replayed"
RELEASED: Final = "released"


class AttemptSpans:
    """An `oncegate.middleware.admission.tracing.AttemptTrace`: what it traces is below the span ``own``.

    ``attempt`` is the span of what is executed, while it is; it may be ``own``.
    """

    __slots__ = ("_system", "_tracer", "attempt", "own")

    def __init__(self, tracer: Tracer, own: Span, system: str, attempt: Span | None = None) -> None:
        self._tracer = tracer
        self._system = system
        self.own = own
        self.attempt = attempt

    @property
    def span(self) -> str:
        """See `AttemptTrace`."""
        context = self.own.get_span_context()
        return span_of(context) if context.is_valid else ""

    @property
    def traceparent(self) -> str:
        """See `AttemptTrace`."""
        return traceparent_of(self.attempt or self.own)

    def cache_answered(self, operation: str, answer: object, sent: float) -> None:
        """See `AttemptTrace`. The span is made once it is over: its call has no use for it."""
        if not self.own.get_span_context().trace_flags.sampled:
            return
        now = time_ns()
        span = self._tracer.start_span(
            operation,
            below(self.own.get_span_context()),
            SpanKind.CLIENT if self._system else SpanKind.INTERNAL,
            {OPERATION: operation, SYSTEM: self._system} if self._system else {OPERATION: operation},
            start_time=now - round((monotonic() - sent) * 1e9),
        )
        if isinstance(answer, Exception):
            failed(span, type(answer).__name__)
        span.end(now)

    def found(self, span: str) -> None:
        """See `AttemptTrace`."""
        first = kept_context(span)
        if first is not None:
            self.own.add_link(first)

    def settled(self, state: State | None, number: int) -> None:
        """See `AttemptTrace`."""
        span, self.attempt = self.attempt, None
        if span is None:
            return
        if span.is_recording():
            span.set_attribute(OUTCOME, RELEASED if state is None else state.value)
            if number:
                span.set_attribute(ATTEMPT, number)
            if self.has_failed(state):
                failed(span, str(state))
        span.end()

    def has_failed(self, state: State | None) -> bool:
        """Whether this outcome is an error of the attempt's span."""
        return state in (State.FAILED, State.UNKNOWN)

    def enter(self) -> Callable[[], None]:
        """See `AttemptTrace`."""
        before = contexts.get_current()
        contexts.attach(trace.set_span_in_context(self.attempt or self.own, before))

        def leave() -> None:
            contexts.attach(before)  # where it is left from another task, a token would be another context's

        return leave


def failed(span: Span, kind: str) -> None:
    """Note on ``span`` that it has failed, by an error of this ``kind``. Its text is somebody else's, and may hold a key."""
    span.set_attribute(ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR))


def system_of(cache: Cache) -> str:
    """The database system that ``cache`` calls, as the conventions name it; empty where it calls none, or none that is known."""
    system = getattr(cache, "system", "")
    return system if isinstance(system, str) else ""
