"""Prometheus metrics of attempts, for whoever makes them: a middleware by its routes, or consumers by their names."""

from prometheus_client import Counter, Gauge, Histogram

from oncegate.app.telemetry.metrics import OUTCOMES, RELEASED
from oncegate.cache.record import State
from oncegate.middleware.admission.observe import Watch


class AttemptMetrics(Watch):
    """Counts what becomes of attempts. Each metric has the label of ``route``, besides that of an outcome or none."""

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
        """See `Watch`."""
        self._settled.labels(route, state.value if state else RELEASED).inc()
        self._seconds.labels(route).observe(seconds)

    def lease_lost(self, route: str) -> None:
        """See `Watch`."""
        self._lost.labels(route).inc()

    def outcome_refused(self, route: str) -> None:
        """See `Watch`."""
        self._refused.labels(route).inc()

    def outcomes_waiting(self, change: int) -> None:
        """See `Watch`."""
        self._waiting.inc(change)
