"""Prometheus metrics of consumers: counted in prometheus-client's own registries, for a worker and for apps.

They have names of their own, so that an app's registry takes them beside those of its `IdempotencyMiddleware`. Every label has a
bounded set of values: consumers, decisions, outcomes, reasons, tables. A key never is one.
"""

from prometheus_client import REGISTRY, CollectorRegistry

from oncegate.middleware.consumers.delivery import CONSUMER, DeliveryDecision
from oncegate.prometheus.attempts import AttemptMetrics, Families
from oncegate.prometheus.families import INBOX_DECISIONS, LETTER_REASONS


class ConsumerMetrics(AttemptMetrics):
    """Metrics of ``consumers``: give them to each `Subscription` as its ``watch``, and to each `Inbox`.

    Their series are there from the start, with 0, so that an alert sees the first event; those of a consumer that isn't named
    here begin with its first event. One for each registry. It works in prometheus-client's mode for several processes, too.
    Raises ``ValueError`` for a ``registry`` that has one, and for what is no consumer's name.
    """

    def __init__(self, *consumers: str, registry: CollectorRegistry = REGISTRY) -> None:
        for name in consumers:
            if not CONSUMER.fullmatch(name):
                raise ValueError(f"a consumer's name has 1 to 64 letters, digits, '.', '_' and '-', not {name!r}")

        families = Families(registry)
        counter, gauge = families.counter, families.gauge
        self._deliveries = counter("deliveries")
        self._mismatched = counter("delivery_mismatches_warned")
        self._settled = counter("executions")
        self._seconds = families.histogram("execution")
        self._letters = counter("dead_letters")
        self._lost = counter("execution_leases_lost")
        self._refused = counter("execution_outcomes_refused")
        self._in_flight = gauge("executions_in_flight")
        self._waiting = gauge("execution_outcomes_waiting")
        self._marked = counter("inbox_deliveries")
        self._rows = gauge("inbox_rows")
        self._oldest = gauge("inbox_oldest_timestamp_seconds")
        self._waits = gauge("inbox_aggregates_waiting")
        self._parked = gauge("inbox_parked_messages")
        self._parked_since = gauge("inbox_parked_oldest_timestamp_seconds")
        self._pruned = counter("inbox_pruned")
        for consumer in consumers:
            self._begin(consumer)

    def _begin(self, consumer: str) -> None:
        """Have the series there: one that began at 1 would have had no increase."""
        for decision in DeliveryDecision:
            self._deliveries.labels(consumer, decision.value)
        self._begin_attempts(consumer)
        for reason in LETTER_REASONS:
            self._letters.labels(consumer, reason)
        for marked in INBOX_DECISIONS:
            self._marked.labels(consumer, marked)
        self._mismatched.labels(consumer)
        self._in_flight.labels(consumer)

    def delivery_decided(self, consumer: str, decision: str) -> None:
        self._deliveries.labels(consumer, decision).inc()

    def delivery_mismatched(self, consumer: str) -> None:
        self._mismatched.labels(consumer).inc()

    def dead_lettered(self, consumer: str, reason: str) -> None:
        self._letters.labels(consumer, reason).inc()

    def attempt_began(self, route: str) -> None:
        self._in_flight.labels(route).inc()

    def attempt_ended(self, route: str) -> None:
        self._in_flight.labels(route).dec()

    def message_marked(self, consumer: str, decision: str) -> None:
        self._marked.labels(consumer, decision).inc()

    def inbox_measured(self, table: str, rows: int, oldest: float | None) -> None:
        self._rows.labels(table).set(rows)
        self._oldest.labels(table).set(oldest or 0)

    def order_measured(self, consumer: str, aggregates: int, parked: int, oldest: float | None) -> None:
        self._waits.labels(consumer).set(aggregates)
        self._parked.labels(consumer).set(parked)
        self._parked_since.labels(consumer).set(oldest or 0)

    def markers_pruned(self, table: str, rows: int) -> None:
        self._pruned.labels(table).inc(rows)
