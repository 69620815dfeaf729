"""OpenTelemetry traces of apps, consumers, outboxes and relays. The gateway has its own: ``tracing = true``.

    tracing = Tracing()
    app.add_middleware(IdempotencyMiddleware, cache=cache, tracing=tracing)
    subscription = Subscription("billing", cache=cache, tracing=tracing.messages("rabbitmq", "payments"))
    orders = Outbox("orders", tracing=tracing)
    relay = Relay(engine, broker, tracing=tracing.messages("rabbitmq"))

Spans go where the app's other spans go: by the tracer provider that it has set.
"""

import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

from opentelemetry import trace
from opentelemetry.context import get_current
from opentelemetry.trace import SpanKind, Tracer, TracerProvider

from oncegate import __version__
from oncegate.cache.store import Cache
from oncegate.middleware.admission.tracing import Publishing
from oncegate.otel.attempts import failed, system_of
from oncegate.otel.contexts import below, context_of, traceparent_of
from oncegate.otel.deliveries import ConsumerSpans
from oncegate.otel.requests import HttpSpans, sending

__all__ = ["Tracing"]


class Tracing:
    """Makes spans for what it is given to as ``tracing``: a middleware, a `oncegate.Subscription`, an outbox, a relay.

    - ``tracer_provider``: makes the tracer; by default the one that is set for the process when a span begins.

    An attempt's span is the current one in the app, or the handler, that executes it. No attribute has a key, a header or a body.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self.messaging = ""
        self.destination = ""
        self._tracers = [_tracer(tracer_provider)]

    @property
    def tracer(self) -> Tracer:
        """Makes the spans."""
        return self._tracers[0]

    def use(self, tracer_provider: TracerProvider) -> None:
        """Make spans by this one from now on, those of its `messages` too."""
        self._tracers[0] = _tracer(tracer_provider)

    def messages(self, system: str, destination: str = "") -> "Tracing":
        """The same, for messages of this ``system`` (``rabbitmq``, ``kafka``, ``nats``, ``redis``), which come from, or go to,
        a ``destination``: a queue, a topic, a stream.
        """
        tracing = Tracing()
        tracing._tracers, tracing.messaging, tracing.destination = self._tracers, system, destination
        return tracing

    def requests(self, cache: Cache) -> HttpSpans:
        """See `oncegate.middleware.admission.tracing.Traces`."""
        return HttpSpans(self, system_of(cache))

    def deliveries(self, consumer: str, cache: Cache) -> ConsumerSpans:
        """See `oncegate.middleware.admission.tracing.Traces`."""
        return ConsumerSpans(self, consumer, system_of(cache))

    def publishing(self, publish: Publishing) -> Publishing:
        """``publish``, a coroutine function of an `oncegate.sql.OutboxMessage`, with a span for each message.

        It goes on with the trace in which the message was added, and the message carries its place.
        """

        @functools.wraps(cast("Callable[[Any], Awaitable[object]]", publish))
        async def published(message: Any) -> object:
            sent = context_of(next((v for k, v in message.headers.items() if k.lower() == "traceparent"), ""))
            span = self.tracer.start_span(
                f"send {message.topic}", below(sent), SpanKind.PRODUCER, sending(self.messaging, message.topic)
            )
            try:
                if traceparent := traceparent_of(span):
                    headers = {k: v for k, v in message.headers.items() if k.lower() != "traceparent"}
                    message = replace(message, headers={**headers, "traceparent": traceparent})
                return await publish(message)
            except BaseException as error:
                failed(span, type(error).__name__)
                raise
            finally:
                span.end()

        return cast("Publishing", published)

    def current(self) -> str:
        """See `oncegate.middleware.admission.tracing.Traces`."""
        return traceparent_of(trace.get_current_span(get_current()))


def _tracer(provider: TracerProvider | None) -> Tracer:
    return trace.get_tracer("oncegate", __version__, provider)
