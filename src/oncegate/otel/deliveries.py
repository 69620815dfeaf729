"""The spans of deliveries to a consumer: of each one, linked to where its message was sent."""

from typing import TYPE_CHECKING

from opentelemetry.trace import Link, SpanKind, Tracer

from oncegate.otel.attempts import ATTEMPT, DECISION, INBOX, RECORD, AttemptSpans
from oncegate.otel.contexts import below, context_of

if TYPE_CHECKING:
    from oncegate.otel import Tracing


class ConsumerSpans:
    """Makes the spans of a consumer's deliveries: its `oncegate.middleware.admission.tracing.DeliveryTraces`."""

    def __init__(self, tracing: "Tracing", consumer: str, system: str) -> None:
        self._tracing = tracing
        self._system = system
        self._name = f"process {tracing.destination or consumer}"
        self._attributes = {
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": consumer,
        }
        if tracing.messaging:
            self._attributes["messaging.system"] = tracing.messaging
        if tracing.destination:
            self._attributes["messaging.destination.name"] = tracing.destination

    def of(self, traceparent: str, message_id: str) -> "DeliverySpans":
        """See `DeliveryTraces`. The span goes on with the trace of its message, and has a link to where that was sent."""
        sent = context_of(traceparent)
        attributes = {**self._attributes, "messaging.message.id": message_id} if message_id else self._attributes
        links = [] if sent is None else [Link(sent)]
        return DeliverySpans(self._tracing.tracer, self._name, attributes, links, self._system)


class DeliverySpans(AttemptSpans):
    """The span of one delivery: an `oncegate.middleware.admission.tracing.DeliveryTrace`."""

    __slots__ = ()

    def __init__(self, tracer: Tracer, name: str, attributes: dict[str, str], links: list[Link], system: str) -> None:
        parent = below(links[0].context if links else None)
        own = tracer.start_span(name, parent, SpanKind.CONSUMER, attributes, links)
        super().__init__(tracer, own, system, own)

    def decided(self, decision: str, attempt: int, record: str, *, run: bool) -> None:
        """See `DeliveryTrace`."""
        own = self.own
        if own.is_recording():
            own.set_attribute(DECISION, decision)
            if record:
                own.set_attribute(RECORD, record)
            if attempt:
                own.set_attribute(ATTEMPT, attempt)
        if not run and self.attempt is not None:
            self.attempt = None
            own.end()

    def marked(self, decision: str) -> None:
        """See `DeliveryTrace`."""
        self.own.set_attribute(INBOX, decision)
