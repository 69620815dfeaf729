"""Traces of requests, of deliveries and of their attempts: the interface that the doors call. `oncegate.otel` has them.

A part beside the core: where nothing is traced there is ``None`` in its place. What is called must be quick.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from oncegate.cache.record import State
from oncegate.cache.store import Cache
from oncegate.middleware.rules.policy import Policy

Headers = list[tuple[bytes, bytes]]
Publishing = TypeVar("Publishing", bound=Callable[[Any], Awaitable[object]])


class AttemptTrace(Protocol):
    """A trace of one claim, and of the attempt that may follow from it."""

    @property
    def span(self) -> str:
        """The place in a trace that is kept with the record: see `oncegate.cache.trace.Trace`."""
        ...

    @property
    def traceparent(self) -> str:
        """The place in the trace of what is executed (W3C Trace Context)."""
        ...

    def cache_answered(self, operation: str, answer: object, sent: float) -> None:
        """The cache has answered, perhaps with an error, what was ``sent`` at this time of the monotonic clock.

        ``operation``: ``claim``, ``complete`` or ``release``.
        """

    def found(self, span: str) -> None:
        """The answer, or the decision, is that of the record of the attempt whose ``span`` this is."""

    def settled(self, state: State | None, number: int) -> None:
        """The outcome of the attempt with this number is known; ``None``: it was released."""

    def enter(self) -> Callable[[], None]:
        """The running task executes the attempt, until it calls what is returned: what is traced there is a part of it."""
        ...


class RequestTrace(AttemptTrace, Protocol):
    """A trace of one HTTP request under enforcement."""

    def attempt_headers(self, headers: Headers, record: str, *, stream: str) -> Headers:
        """An attempt begins, or goes on: ``headers`` with its place in the trace. With a ``stream``, it submits to that."""
        ...

    def response_came(self, status: int) -> None:
        """The attempt has a response."""

    def answered(self, decision: str, status: int, attempt: int, record: str) -> None:
        """The request is answered: see `oncegate.middleware.admission.observe.Observation`."""

    def bypassed(self) -> None:
        """The request has no key, and goes on without enforcement."""


class RequestTraces(Protocol):
    """Makes the traces of requests."""

    def of(self, scope: Mapping[str, Any], policy: Policy) -> RequestTrace:
        """The trace of a request with this ASGI ``scope``, by the rules of ``policy``."""
        ...

    def observed(self) -> "RequestTraces":
        """The same for requests that are observed only: what is traced of them is their own, which others have begun."""
        ...


class DeliveryTrace(AttemptTrace, Protocol):
    """A trace of one delivery to a consumer."""

    def decided(self, decision: str, attempt: int, record: str, *, run: bool) -> None:
        """It was decided about; ``run``: it is to be executed."""

    def marked(self, decision: str) -> None:
        """An inbox has decided about it, as in `oncegate.middleware.admission.observe.Watch.message_marked`."""


class DeliveryTraces(Protocol):
    """Makes the traces of a consumer's deliveries."""

    def of(self, traceparent: str, message_id: str) -> DeliveryTrace:
        """The trace of a delivery whose message was sent at ``traceparent``, empty where that isn't known."""
        ...


class TracesRequests(Protocol):
    """Makes what makes the traces of requests."""

    def requests(self, cache: Cache) -> RequestTraces:
        """For a middleware whose records are in ``cache``."""
        ...


class Traces(TracesRequests, Protocol):
    """The same for each door, and for outboxes: `oncegate.otel.Tracing` is one."""

    def deliveries(self, consumer: str, cache: Cache) -> DeliveryTraces:
        """For a consumer of this name."""
        ...

    def publishing(self, publish: Publishing) -> Publishing:
        """``publish``, a coroutine function of an outbox's message, traced."""
        ...

    def current(self) -> str:
        """The place in a trace at which the caller is, as `traceparent`; empty where it is in none."""
        ...
