"""The spans of a request: its own, and one for its attempt. One that is observed only has none of that."""

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.context import get_current
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind

from oncegate.cache.record import DEFAULT_ROUTE, State
from oncegate.middleware.admission.gate import GateDecision
from oncegate.middleware.admission.observe import SHADOW
from oncegate.middleware.admission.tracing import RequestTraces
from oncegate.middleware.rules.policy import Policy
from oncegate.otel.attempts import ATTEMPT, DECISION, MODE, RECORD, REPLAYED, AttemptSpans, failed
from oncegate.otel.contexts import Headers, below, sent_context, with_context

if TYPE_CHECKING:
    from oncegate.otel import Tracing

REQUEST_SPANS: Final = "oncegate.spans"
"""``scope`` holds a request's `RequestSpans` under this name, where its server has begun them."""
_METHOD: Final = "http.request.method"
_STATUS: Final = "http.response.status_code"
_ROUTE: Final = "http.route"
_METHODS: Final = frozenset(("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"))
_REPLAYED: Final = GateDecision.REPLAY.value
_BYPASS: Final = GateDecision.BYPASS.value


class Upstream:
    """The upstream of a gateway, as spans name it: its ``url``, without credentials, its ``address`` and ``port``."""

    def __init__(self, url: str, address: str, port: int | None) -> None:
        self.url = url
        self.attributes: dict[str, str | int] = {"server.address": address}
        if port is not None:
            self.attributes["server.port"] = port


class HttpSpans:
    """Makes the spans of requests for a middleware; its `oncegate.middleware.admission.tracing.RequestTraces`.

    ``upstream`` is there in a gateway, whose attempts are requests of its own.
    """

    def __init__(self, tracing: "Tracing", system: str, upstream: Upstream | None = None) -> None:
        self.tracing = tracing
        self.system = system
        self.upstream = upstream

    def of(self, scope: Mapping[str, Any], policy: Policy) -> "RequestSpans":
        """See `RequestTraces`. In an app the request's span is below the current one, and ends with the head of its answer."""
        begun: RequestSpans | None = scope.get(REQUEST_SPANS)
        if begun is None:
            begun = self._begin_in_app(scope)
        begun.by(policy.route)
        return begun

    def observed(self) -> RequestTraces:
        """See `RequestTraces`."""
        return ObservedHttpSpans(self)

    def begin(self, scope: MutableMapping[str, Any], headers: Headers) -> "RequestSpans":
        """Begin the spans of a request that a server has received, and of which ``scope`` has them from now on.

        Call `RequestSpans.ended` at its end.
        """
        attributes = _attributes(scope)
        client = scope.get("client")
        if client:
            attributes["client.address"] = client[0]
        server = scope.get("server")
        if server:
            attributes |= {"server.address": server[0], "server.port": server[1]}
        parent = below(sent_context(headers))
        own = self.tracing.tracer.start_span(_named(scope), parent, SpanKind.SERVER, attributes)
        begun = scope[REQUEST_SPANS] = RequestSpans(self, scope, own, ends_with_answer=False)
        return begun

    def _begin_in_app(self, scope: Mapping[str, Any]) -> "RequestSpans":
        if (
            trace.get_current_span().get_span_context().is_valid
        ):  # of the app's own instrumentation, which is the server's
            parent, kind = get_current(), SpanKind.INTERNAL
        else:
            headers = [(bytes(name).lower(), bytes(value)) for name, value in scope["headers"]]
            parent, kind = below(sent_context(headers)), SpanKind.SERVER
        own = self.tracing.tracer.start_span(_named(scope), parent, kind, _attributes(scope))
        return RequestSpans(self, scope, own, ends_with_answer=True)


class RequestSpans(AttemptSpans):
    """The spans of one request: an `oncegate.middleware.admission.tracing.RequestTrace`."""

    __slots__ = ("_ends_with_answer", "_has_response", "_scope", "_sends_on", "_spans")

    def __init__(self, spans: HttpSpans, scope: Mapping[str, Any], own: Span, *, ends_with_answer: bool) -> None:
        super().__init__(spans.tracing.tracer, own, spans.system)
        self._spans = spans
        self._scope = scope
        self._ends_with_answer = ends_with_answer
        self._has_response = False
        self._sends_on = False
        """The headers of its scope have its own place already."""

    def by(self, route: str) -> None:
        """The rules of ``route`` hold for it."""
        if route != DEFAULT_ROUTE and self.own.is_recording():
            self.own.update_name(f"{_named(self._scope)} {route}")
            self.own.set_attribute(_ROUTE, route)

    def sent_on(self, headers: Headers) -> Headers:
        """``headers`` of the request as it goes on within its span."""
        self._sends_on = True
        return with_context(headers, self.own)

    def attempt_headers(self, headers: Headers, record: str, *, stream: str) -> Headers:
        """See `RequestTrace`. Of what is not sampled, no part is: its attempt has no span to itself."""
        span = self.attempt
        if span is None and not self.own.get_span_context().trace_flags.sampled:
            return headers if self._sends_on else with_context(headers, self.own)
        if span is None:
            span = self.attempt = self._submitting(stream) if stream else self._executing()
            if record:
                span.set_attribute(RECORD, record)
        return with_context(headers, span)

    def _executing(self) -> Span:
        upstream, parent, name = self._spans.upstream, below(self.own.get_span_context()), _named(self._scope)
        if upstream is None:
            return self._tracer.start_span(f"attempt {name}", parent)
        attributes = {
            _METHOD: _method(self._scope),
            "url.full": upstream.url + _path(self._scope),
            **upstream.attributes,
        }
        return self._tracer.start_span(name, parent, SpanKind.CLIENT, attributes)

    def _submitting(self, stream: str) -> Span:
        attributes = sending(self._system, stream)
        return self._tracer.start_span(
            f"send {stream}", below(self.own.get_span_context()), SpanKind.PRODUCER, attributes
        )

    def response_came(self, status: int) -> None:
        """See `RequestTrace`."""
        self._has_response = True
        span = self.attempt
        if span is not None and span.is_recording():
            span.set_attribute(_STATUS, status)
            if status >= (400 if self._spans.upstream is not None else 500):
                failed(span, str(status))

    def has_failed(self, state: State | None) -> bool:
        """See `AttemptSpans`. Whether a response is an error, its status says."""
        return state is State.UNKNOWN or (state is State.FAILED and not self._has_response)

    def answered(self, decision: str, status: int, attempt: int, record: str) -> None:
        """See `RequestTrace`."""
        own = self.own
        if own.is_recording():
            own.set_attributes({DECISION: decision, REPLAYED: decision == _REPLAYED})
            if record:
                own.set_attribute(RECORD, record)
            if attempt:
                own.set_attribute(ATTEMPT, attempt)
        if self._ends_with_answer:
            self.ended(status)

    def bypassed(self) -> None:
        """See `RequestTrace`. In an app, what is not under enforcement has no span of ours: the one that was begun is dropped."""
        self.own.set_attribute(DECISION, _BYPASS)

    def ended(self, status: int) -> None:
        """The response has ended; 0: there was none, since its client has left."""
        own = self.own
        if own.is_recording() and status:
            own.set_attribute(_STATUS, status)
            if status >= 500:
                failed(own, str(status))
        own.end()


class ObservedHttpSpans:
    """Goes on with the spans of requests that are observed; an `oncegate.middleware.admission.tracing.RequestTraces`.

    A request whose server has begun none, as in an app, has none of ours.
    """

    def __init__(self, spans: "HttpSpans") -> None:
        self._spans = spans

    def of(self, scope: Mapping[str, Any], policy: Policy) -> "ObservedSpans":
        """See `RequestTraces`."""
        begun: RequestSpans | None = scope.get(REQUEST_SPANS)
        own = INVALID_SPAN if begun is None else begun.own
        observed = ObservedSpans(self._spans, scope, own, ends_with_answer=False)
        observed.by(policy.route)
        return observed

    def observed(self) -> "ObservedHttpSpans":
        """See `RequestTraces`."""
        return self


class ObservedSpans(RequestSpans):
    """An `oncegate.middleware.admission.tracing.RequestTrace` of a request that is forwarded whatever is decided about it.

    So there is no attempt of ours; and where the cache takes too long its span may have ended before anything is decided.
    """

    __slots__ = ()

    def attempt_headers(self, headers: Headers, record: str, *, stream: str) -> Headers:  # noqa: ARG002 - as RequestTrace has it
        """See `RequestTrace`. It has gone on already, as a part of its own span."""
        return headers

    def response_came(self, status: int) -> None:
        """See `RequestTrace`. Its server notes it."""

    def found(self, span: str) -> None:
        """See `AttemptTrace`."""
        if self.own.is_recording():
            super().found(span)

    def answered(self, decision: str, status: int, attempt: int, record: str) -> None:  # noqa: ARG002 - as RequestTrace has it
        """See `RequestTrace`. It would have been answered so."""
        if not self.own.is_recording():
            return
        self.own.set_attributes({MODE: SHADOW, DECISION: decision, REPLAYED: False})
        if record:
            self.own.set_attribute(RECORD, record)
        if attempt:
            self.own.set_attribute(ATTEMPT, attempt)

    def bypassed(self) -> None:
        """See `RequestTrace`."""
        if self.own.is_recording():
            self.own.set_attributes({MODE: SHADOW, DECISION: _BYPASS})


def sending(system: str, destination: str) -> dict[str, str]:
    """The attributes of a span that sends a message."""
    return {
        "messaging.system": system,
        "messaging.destination.name": destination,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
    }


def _method(scope: Mapping[str, Any]) -> str:
    method: str = scope["method"]
    return method if method in _METHODS else "_OTHER"


def _path(scope: Mapping[str, Any]) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    return raw.decode("latin-1")


def _named(scope: Mapping[str, Any]) -> str:
    method = _method(scope)
    return "HTTP" if method == "_OTHER" else method


def _attributes(scope: Mapping[str, Any]) -> dict[str, str | int]:
    """The attributes by which a sampler may decide. A query may hold what is nobody's business, and is none of them."""
    return {
        _METHOD: _method(scope),
        "url.path": _path(scope),
        "url.scheme": scope.get("scheme", "http"),
        "network.protocol.version": scope.get("http_version", "1.1"),
    }
