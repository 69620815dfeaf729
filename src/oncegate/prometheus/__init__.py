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
from oncegate.middleware.admission.observe import ENFORCED, Observation
from oncegate.middleware.rules.checks.arguments import given_routes
from oncegate.middleware.rules.settings import DEFAULT_METHODS, Route
from oncegate.prometheus.attempts import AttemptMetrics, Families
from oncegate.prometheus.consumers import ConsumerMetrics
from oncegate.prometheus.families import DECISIONS, FROM_THE_START, OPERATIONS, OTHER
from oncegate.prometheus.projections import ProjectionMetrics
from oncegate.prometheus.relay import RelayMetrics

__all__ = ["ConsumerMetrics", "MiddlewareMetrics", "ProjectionMetrics", "RelayMetrics"]


class MiddlewareMetrics(AttemptMetrics):
    """Metrics of a middleware with these ``routes``: give it `observed` as its ``observe``, and this as its ``watch``.

    Every label has a bounded set of values: routes' patterns and their methods, decisions, states, operations. Series that alerts
    are made of are there from the start, with 0. One for each registry: middlewares of one process share it. It works in
    prometheus-client's mode for several processes, too. Raises ``TypeError`` for what are no routes, and ``ValueError`` for
    a ``registry`` that has one.
    """

    def __init__(self, *, routes: Sequence[Route] = (), registry: CollectorRegistry = REGISTRY) -> None:
        families = Families(registry)
        counter, gauge, histogram = families.counter, families.gauge, families.histogram
        self._requests = counter("requests")
        self._settled = counter("attempts")
        self._lost = counter("lost_leases")
        self._refused = counter("outcomes_refused")
        self._mismatched = counter("mismatches_warned")
        self._cache_errors = counter("cache_errors")
        self._seconds = histogram("upstream")
        self._cache = histogram("cache")
        self._in_flight = gauge("attempts_in_flight")
        self._buffered = gauge("buffered_bytes")
        self._unread = gauge("unread_bytes")
        self._dropped = counter("readers_dropped")
        self._waiting = gauge("outcomes_waiting")
        gauge("build_info").labels(__version__).set(1)
        self._begin(given_routes(routes))

    def _begin(self, routes: Sequence[Route]) -> None:
        """Have the series there: one that began at 1 would have had no increase."""
        every: list[tuple[str, Sequence[str]]] = [(route.path, route.methods) for route in routes]
        for route, methods in [*every, ("*", DEFAULT_METHODS)]:
            for method in methods:
                for decision in FROM_THE_START:
                    self._requests.labels(route, method, decision, ENFORCED)
            self._begin_attempts(route)
            self._mismatched.labels(route)
        for operation in OPERATIONS:
            self._cache.labels(operation)
            self._cache_errors.labels(operation)

    def observed(self, observation: Observation) -> None:
        """Count one answered request: an `Observe`."""
        decision = observation.decision if observation.decision in DECISIONS else OTHER
        self._requests.labels(observation.route, observation.method, decision, observation.mode).inc()
        if observation.mismatch and observation.mode == ENFORCED:
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
