"""Prometheus metrics of a relay, for its command and for apps that run one."""

from prometheus_client import REGISTRY, CollectorRegistry

from oncegate.app.telemetry.attempt_metrics import Families


class RelayMetrics:
    """Counts what a relay does: give it to a `oncegate.sql.Relay` as its ``watch``. One for each registry and relay."""

    def __init__(self, *, registry: CollectorRegistry = REGISTRY) -> None:
        families = Families(registry)
        self._published = families.counter("relay_published", "Messages that the broker has confirmed.")
        self._again = families.counter("relay_published_again", "Of those, after a try whose outcome nobody knows.")
        self._refused = families.counter("relay_refused", "Messages that the broker has refused.")
        self._rows = families.gauge(
            "outbox_rows", "Rows of outboxes that wait, up to 100,000, when they were counted.", mode="mostrecent"
        )
        self._oldest = families.gauge(
            "outbox_oldest_timestamp_seconds", "When the oldest of them was added; 0 without one.", mode="mostrecent"
        )
        self._held = families.gauge(
            "outbox_held", "Rows that were refused, or are given up, and hold up their aggregates.", mode="mostrecent"
        )

    def relayed(self, published: int, published_again: int, refused: int) -> None:
        """See `oncegate.sql.outbox.relay.RelayWatch`."""
        self._published.inc(published)
        self._again.inc(published_again)
        self._refused.inc(refused)

    def backlog_measured(self, rows: int, oldest: float | None, held: int) -> None:
        """See `oncegate.sql.outbox.relay.RelayWatch`."""
        self._rows.set(rows)
        self._oldest.set(oldest or 0)
        self._held.set(held)
