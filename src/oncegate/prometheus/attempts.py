"""Prometheus metrics of attempts, for whoever makes them: a middleware by its routes, or consumers by their names."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from oncegate.cache.record import State
from oncegate.middleware.admission.observe import Watch
from oncegate.prometheus.families import COUNTERS, GAUGES, HISTOGRAMS, OUTCOMES, RELEASED


class Families:
    """The metrics of one ``registry``, made by the names of `oncegate.prometheus.families`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str) -> Counter:
        """A counter of `COUNTERS`."""
        meaning, labels = COUNTERS[name]
        return Counter(f"oncegate_{name}", meaning, labels, registry=self._registry)

    def gauge(self, name: str) -> Gauge:
        """A gauge of `GAUGES`."""
        meaning, labels, mode = GAUGES[name]
        return Gauge(f"oncegate_{name}", meaning, labels, registry=self._registry, multiprocess_mode=mode)

    def histogram(self, name: str) -> Histogram:
        """A histogram of `HISTOGRAMS`."""
        meaning, label, bounds = HISTOGRAMS[name]
        return Histogram(f"oncegate_{name}_seconds", meaning, [label], registry=self._registry, buckets=bounds)


class AttemptMetrics(Watch):
    """Metrics of attempts. Each has the label of ``route``, besides that of an outcome or none."""

    _settled: Counter
    _seconds: Histogram
    _lost: Counter
    _refused: Counter
    _waiting: Gauge

    def _begin_attempts(self, route: str) -> None:
        """Have the series there: one that began at 1 would have had no increase."""
        for state in (*OUTCOMES, None):
            self._settled.labels(route, state.value if state else RELEASED)
        for each in (self._seconds, self._lost, self._refused):
            each.labels(route)

    def attempt_settled(self, route: str, state: State | None, seconds: float) -> None:
        self._settled.labels(route, state.value if state else RELEASED).inc()
        self._seconds.labels(route).observe(seconds)

    def lease_lost(self, route: str) -> None:
        self._lost.labels(route).inc()

    def outcome_refused(self, route: str) -> None:
        self._refused.labels(route).inc()

    def outcomes_waiting(self, change: int) -> None:
        self._waiting.inc(change)
