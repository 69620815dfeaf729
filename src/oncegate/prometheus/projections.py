"""Prometheus metrics of projections, for their command and for apps that run some."""

from prometheus_client import REGISTRY, CollectorRegistry

from oncegate.prometheus.attempts import Families


class ProjectionMetrics:
    """Counts what projections do: give it to `oncegate.sql.Projection.running` as its ``watch``. One for each registry.

    Each metric has the label ``projection``.
    """

    def __init__(self, *, registry: CollectorRegistry = REGISTRY) -> None:
        families = Families(registry)
        self._applied = families.counter("projection_events")
        self._behind = families.gauge("projection_rows_behind")
        self._stuck_since = families.gauge("projection_stuck_timestamp_seconds")
        self._stuck_at = families.gauge("projection_stuck_position")

    def events_applied(self, projection: str, count: int) -> None:
        """See `oncegate.sql.projections.runner.ProjectionWatch`."""
        self._applied.labels(projection).inc(count)

    def projection_measured(
        self, projection: str, behind: int, stuck_at: int | None, stuck_since: float | None
    ) -> None:
        """See `oncegate.sql.projections.runner.ProjectionWatch`."""
        self._behind.labels(projection).set(behind)
        self._stuck_since.labels(projection).set(stuck_since or 0)
        self._stuck_at.labels(projection).set(stuck_at or 0)
