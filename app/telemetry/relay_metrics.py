"""Prometheus metrics of a relay, for its command and for apps that run one."""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge


class RelayMetrics:
    """Counts what a relay does: give it to a `oncegate.sql.Relay` as its ``watch``. One for each registry and relay."""

    def __init__(self, *, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, meaning: str) -> Counter:
            return Counter(f"oncegate_relay_{name}", meaning, registry=registry)

        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(f"oncegate_outbox_{name}", meaning, registry=registry, multiprocess_mode="mostrecent")

        self._published = counter("published", "Messages that the broker has confirmed.")
        self._again = counter("published_again", "Of those, after a try whose outcome nobody knows.")
        self._refused = counter("refused", "Messages that the broker has refused.")
        self._rows = gauge("rows", "Rows of outboxes that wait, up to 100,000, when they were counted.")
        self._oldest = gauge("oldest_timestamp_seconds", "When the oldest of them was added; 0 without one.")
        self._held = gauge("held", "Rows that were refused, or are given up, and hold up their aggregates.")

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
