"""Prometheus metrics of a relay, for its command and for apps that run one."""

from prometheus_client import REGISTRY, CollectorRegistry

from oncegate.prometheus.attempts import Families


class RelayMetrics:
    """Metrics of a relay: give them to a `oncegate.sql.Relay` as its ``watch``. One for each registry and relay."""

    def __init__(self, *, registry: CollectorRegistry = REGISTRY) -> None:
        families = Families(registry)
        self._published = families.counter("relay_published")
        self._again = families.counter("relay_published_again")
        self._refused = families.counter("relay_refused")
        self._rows = families.gauge("outbox_rows")
        self._oldest = families.gauge("outbox_oldest_timestamp_seconds")
        self._held = families.gauge("outbox_held")

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
