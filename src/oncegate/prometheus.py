"""For apps: prometheus-client metrics of their `IdempotencyMiddleware` and of their consumers, beside the app's own.

metrics = MiddlewareMetrics(routes=ROUTES)
app.add_middleware(IdempotencyMiddleware, cache=cache, routes=ROUTES, observe=metrics.observed, watch=metrics)

consumers = ConsumerMetrics("billing")
subscription = Subscription("billing", cache=cache, watch=consumers)

Names and labels are those of the gateway's metrics, and of a worker's, so that the same dashboard and alerts do.
"""

from collections.abc import Sequence

from prometheus_client import REGISTRY, CollectorRegistry

from oncegate import __version__
from oncegate.app.telemetry.attempt_metrics import AttemptMetrics, Families
from oncegate.app.telemetry.consumer_metrics import ConsumerMetrics
from oncegate.app.telemetry.metrics import (
    CACHE_BOUNDS,
    DECISIONS,
    FROM_THE_START,
    OPERATIONS,
    OTHER,
    UPSTREAM_BOUNDS,
)
from oncegate.app.telemetry.projection_metrics import ProjectionMetrics
from oncegate.app.telemetry.relay_metrics import RelayMetrics
from oncegate.middleware.admission.observe import Observation
from oncegate.middleware.rules.arguments import given_routes
from oncegate.middleware.rules.settings import DEFAULT_METHODS, Route

__all__ = ["ConsumerMetrics", "MiddlewareMetrics", "ProjectionMetrics", "RelayMetrics"]


class MiddlewareMetrics(AttemptMetrics):
    """Counts what a middleware with these ``routes`` does: give it `observed` as its ``observe``, and this as its ``watch``.

    Every label has a bounded set of values: routes' patterns and their methods, decisions, states, operations. Series that alerts
    are made of are there from the start, with 0. One for each registry: middlewares of one process share it. It works in
    prometheus-client's mode for several processes, too. Raises ``TypeError`` for what are no routes, and ``ValueError`` for
    a ``registry`` that has one.
    """

    def __init__(self, *, routes: Sequence[Route] = (), registry: CollectorRegistry = REGISTRY) -> None:
        families = Families(registry)
        counter, gauge, histogram = families.counter, families.gauge, families.histogram
        self._requests = counter("requests", "Answers to requests under enforcement.", "route", "method", "decision")
        self._settled = counter("attempts", "Attempts by their outcome.", "route", "outcome")
        self._lost = counter("lost_leases", "Running attempts that somebody else took over.", "route")
        self._refused = counter("outcomes_refused", "Outcomes that came too late to be recorded.", "route")
        self._mismatched = counter("mismatches_warned", "Other payloads answered under a used key.", "route")
        self._cache_errors = counter("cache_errors", "Calls that the cache did not answer or refused.", "operation")
        self._seconds = histogram(
            "upstream", "From an attempt's begin until its response was whole.", "route", UPSTREAM_BOUNDS
        )
        self._cache = histogram("cache", "Until the cache answered.", "operation", CACHE_BOUNDS)
        self._in_flight = gauge("attempts_in_flight", "Attempts that run now.")
        self._buffered = gauge("buffered_bytes", "Bytes of requests' bodies that wait to be admitted.")
        self._unread = gauge(
            "unread_bytes", "Bytes of responses that wait for clients that take less than they are given."
        )
        self._dropped = counter("readers_dropped", "Connections closed because too much waited for slow readers.")
        self._waiting = gauge("outcomes_waiting", "Outcomes that the cache has not taken yet.")
        version = gauge("build_info", "The version that runs.", "version", mode="max")
        version.labels(__version__).set(1)
        self._begin(given_routes(routes))

    def _begin(self, routes: Sequence[Route]) -> None:
        """Have the series there: one that began at 1 would have had no increase."""
        every: list[tuple[str, Sequence[str]]] = [(route.path, route.methods) for route in routes]
        for route, methods in [*every, ("*", DEFAULT_METHODS)]:
            for method in methods:
                for decision in FROM_THE_START:
                    self._requests.labels(route, method, decision)
            self._begin_attempts(route)
            self._mismatched.labels(route)
        for operation in OPERATIONS:
            self._cache.labels(operation)
            self._cache_errors.labels(operation)

    def observed(self, observation: Observation) -> None:
        """Count one answered request: an `Observe`."""
        decision = observation.decision if observation.decision in DECISIONS else OTHER
        self._requests.labels(observation.route, observation.method, decision).inc()
        if observation.mismatch:
            self._mismatched.labels(observation.route).inc()

    def attempt_began(self, route: str) -> None:  # noqa: ARG002  # Watch names the parameters
        self._in_flight.inc()

    def attempt_ended(self, route: str) -> None:  # noqa: ARG002  # Watch names the parameters
        self._in_flight.dec()

    def bodies_waiting(self, change: int) -> None:
        self._buffered.inc(change)

    def responses_waiting(self, change: int) -> None:
        self._unread.inc(change)

    def reader_dropped(self) -> None:
        self._dropped.inc()

    def cache_answered(self, operation: str, seconds: float) -> None:
        self._cache.labels(operation).observe(seconds)

    def cache_failed(self, operation: str, seconds: float) -> None:
        self._cache_errors.labels(operation).inc()
        self._cache.labels(operation).observe(seconds)
