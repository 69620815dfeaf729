"""The traces of a gateway: a span for each request that its server receives, and for each attempt.

Loaded where ``tracing`` is on.
"""

from typing import Final
from urllib.parse import urlsplit

from oncegate.app.server.request import InboundRequest
from oncegate.app.telemetry.tracing import ProcessTracing
from oncegate.cache.store import Cache
from oncegate.middleware.rules.headers.trace_context import TRACEPARENT, TRACESTATE
from oncegate.otel.requests import HttpSpans, Upstream

_FIELDS: Final = (TRACEPARENT, TRACESTATE)


class GatewayTracing:
    """A gateway's `oncegate.middleware.admission.tracing.TracesRequests`. The upstream's URL is one without credentials.

    What is below ``prefix`` is not traced: probes and scrapes would be most of all spans.
    """

    def __init__(self, process: ProcessTracing, upstream: str, prefix: str) -> None:
        self._prefix = prefix
        parts = urlsplit(upstream)
        self._upstream = Upstream(upstream.rstrip("/"), parts.hostname or parts.path, parts.port)
        self._tracing = process.tracing
        self._spans: HttpSpans | None = None

    def requests(self, cache: Cache) -> HttpSpans:
        """See `oncegate.middleware.admission.tracing.TracesRequests`."""
        self._spans = spans = self._tracing.requests(cache)
        spans.upstream = self._upstream
        return spans

    def begun(self, request: InboundRequest) -> None:
        """A request's turn has come. It goes on as a part of its span, wherever it goes."""
        scope = request.scope
        if self._spans is None or scope["path"].startswith(self._prefix):
            return
        spans = self._spans.begin(scope, scope["headers"])
        scope["headers"] = headers = spans.sent_on(scope["headers"])
        request.caller = None  # these are not the names that the client's head has
        request.fields = fields = request.fields.copy()
        for name in _FIELDS:
            fields.pop(name, None)
        fields.update([line for line in headers if line[0] in _FIELDS])
        request.on_end = spans.ended
