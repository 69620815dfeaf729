"""Prometheus metrics: counted in shared memory, summed over the workers when they are scraped.

Every label has a bounded set of values, fixed at the start: a route's pattern, its methods, a decision, a state, an
operation. A key, a caller or a path never is one. The numbers are in `oncegate.app.telemetry.shared_numbers`;
prometheus-client only formats them (its own mode for several processes keeps a file per process and costs six times as
much per number).
"""
# Compiled: docs/decisions/0012-compiled.md

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import time
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from oncegate import __version__
from oncegate.app.telemetry.pending_records import PendingRecords
from oncegate.app.telemetry.shared_numbers import SharedNumbers
from oncegate.cache.record import State
from oncegate.middleware.admission.observe import Observation, Watch
from oncegate.prometheus.families import (
    COUNTERS,
    DECISIONS,
    FROM_THE_START,
    GAUGES,
    HISTOGRAMS,
    OPERATIONS,
    OTHER,
    OUTCOMES,
    RELEASED,
    SUBMISSIONS,
)

OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"
Gauges = Mapping[str, Callable[[], float]]
"""Functions by the name of the gauge that each reads at a scrape."""


class Columns:
    """The columns of a table, given out before there is one."""

    def __init__(self) -> None:
        self.count = 0

    def take(self, count: int = 1) -> int:
        """The first of ``count`` columns in a row."""
        first = self.count
        self.count += count
        return first


class Histogram:
    """A histogram's place in a table: a column for each bucket, one for what is above all bounds, one for the sum."""

    def __init__(self, columns: Columns, bounds: Sequence[float]) -> None:
        self.bounds = list(bounds)
        self.first = columns.take(len(self.bounds) + 2)
        self.sum = self.first + len(self.bounds) + 1

    def add(self, row: "memoryview[float]", value: float) -> None:
        """Count ``value``: in the first bucket whose bound it does not exceed."""
        row[self.first + bisect_left(self.bounds, value)] += 1
        row[self.sum] += value

    def read(self, numbers: SharedNumbers) -> tuple[list[tuple[str, float]], float]:
        """The cumulative counts by bound, as Prometheus wants them (the last is ``+Inf``), and the sum of all values."""
        counted = 0.0
        buckets = []
        for offset, bound in enumerate([*map(repr, map(float, self.bounds)), "+Inf"]):
            counted += numbers.total(self.first + offset)
            buckets.append((bound, counted))
        return buckets, numbers.total(self.sum)


class Metrics(Watch):
    """All counters. ``routes`` are the patterns under enforcement with their methods; ``workers`` share one object.
    ``submissions`` are those of the patterns whose commands are accepted to be processed later.

    To be made before workers are forked; each then calls `enter`. ``gauges`` are read in the process that is scraped.
    """

    def __init__(
        self,
        routes: Iterable[tuple[str, Sequence[str]]],
        *,
        submissions: Iterable[str] = (),
        workers: int = 1,
        gauges: Gauges | None = None,
    ) -> None:
        columns = Columns()
        methods: dict[str, dict[str, None]] = {}
        for route, names in routes:
            methods.setdefault(route, {}).update(dict.fromkeys(names))
        self._routes = list(methods)
        self._requests = {
            (route, method, decision): columns.take()
            for route in methods
            for method in methods[route]
            for decision in (*DECISIONS, OTHER)
        }
        self._settled = {(route, state): columns.take() for route in methods for state in (*OUTCOMES, None)}
        self._upstream = {route: Histogram(columns, HISTOGRAMS["upstream"].bounds) for route in methods}
        self._lost = {route: columns.take() for route in methods}
        self._refused = {route: columns.take() for route in methods}
        self._mismatched = {route: columns.take() for route in methods}
        self._refused_logins = columns.take()
        self._submissions = {(route, outcome): columns.take() for route in submissions for outcome in SUBMISSIONS}
        self._cache = {operation: Histogram(columns, HISTOGRAMS["cache"].bounds) for operation in OPERATIONS}
        self._cache_errors = {operation: columns.take() for operation in OPERATIONS}
        self._in_flight, self._waiting, self._buffered = columns.take(), columns.take(), columns.take()
        self._unread, self._readers_dropped = columns.take(), columns.take()
        self._tunnels = columns.take()
        self._deaths, self._died_with = columns.take(), columns.take()
        self._unknown, self._sampled_at = columns.take(), columns.take()
        self._numbers = SharedNumbers(columns.count, workers)
        self._row = self._numbers.row
        self._pending = PendingRecords(workers)
        self._gauges = dict(gauges or {})
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def enter(self, index: int) -> None:
        """This process is worker ``index`` from now on: what its predecessor had under way is gone, what it counted stays."""
        self._numbers.take(index)
        self._row = self._numbers.row
        for gauge in (self._in_flight, self._waiting, self._buffered, self._unread, self._tunnels):
            self._row[gauge] = 0
        self._pending.enter(index)

    def worker_died(self, index: int) -> tuple[int, list[str]]:
        """The outcomes that a worker took with it that ended unasked: how many, and the ids that are known of their records.

        For the parent, before another worker enters as ``index``: until then the row has no other writer.
        """
        self._numbers.take(index)
        row, records = self._numbers.row, self._pending.of(index)
        lost = int(row[self._in_flight] + row[self._waiting])
        row[self._deaths] += 1
        row[self._died_with] += lost
        for gauge in (self._in_flight, self._waiting, self._buffered, self._unread, self._tunnels):
            row[gauge] = 0
        self._pending.clear(index)
        return lost, records

    # -- counting -----------------------------------------------------------------------------------------------------

    def observed(self, observation: Observation) -> None:
        """Count one answered request."""
        route, method = observation.route, observation.method
        column = self._requests.get((route, method, observation.decision))
        self._row[column if column is not None else self._requests[route, method, OTHER]] += 1
        if observation.mismatch:
            self._row[self._mismatched[route]] += 1

    def attempt_began(self, route: str) -> None:  # noqa: ARG002  # Watch names the parameters
        self._row[self._in_flight] += 1

    def attempt_ended(self, route: str) -> None:  # noqa: ARG002  # Watch names the parameters
        self._row[self._in_flight] -= 1

    def attempt_settled(self, route: str, state: State | None, seconds: float) -> None:
        self._row[self._settled[route, state]] += 1
        columns = self._upstream[route]  # spelled out, as below
        self._row[columns.first + bisect_left(columns.bounds, seconds)] += 1
        self._row[columns.sum] += seconds

    def outcome_pending(self, record: str) -> None:
        self._pending.note(record)

    def outcome_known(self, record: str) -> None:
        self._pending.drop(record)

    def lease_lost(self, route: str) -> None:
        self._row[self._lost[route]] += 1

    def outcome_refused(self, route: str) -> None:
        self._row[self._refused[route]] += 1

    def outcomes_waiting(self, change: int) -> None:
        self._row[self._waiting] += change

    def bodies_waiting(self, change: int) -> None:
        self._row[self._buffered] += change

    def responses_waiting(self, change: int) -> None:
        self._row[self._unread] += change

    def reader_dropped(self) -> None:
        self._row[self._readers_dropped] += 1

    def tunnels_changed(self, change: int) -> None:
        """Count tunnels that have begun, or ended."""
        self._row[self._tunnels] += change

    def sampled(self, unknown: int) -> None:
        """Note how many records of the cache were found to read unknown. One process samples."""
        self._row[self._unknown], self._row[self._sampled_at] = unknown, time()

    def submitted(self, route: str, outcome: str) -> None:
        """Count one submission: ``accepted``, or why not."""
        self._row[self._submissions[route, outcome]] += 1

    def login_refused(self) -> None:
        """Count a request that brought a wrong token for operators."""
        self._row[self._refused_logins] += 1

    def cache_answered(self, operation: str, seconds: float) -> None:
        """Count a cache's answer, and how long it took."""
        columns = self._cache[operation]  # `Histogram.add`, spelled out: each request comes here
        self._row[columns.first + bisect_left(columns.bounds, seconds)] += 1
        self._row[columns.sum] += seconds

    def cache_failed(self, operation: str, seconds: float) -> None:
        """Count a call that the cache did not answer, or refused."""
        self._row[self._cache_errors[operation]] += 1
        self._cache[operation].add(self._row, seconds)

    # -- exposing -----------------------------------------------------------------------------------------------------

    def page(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that ``accept`` asks for, and its content type."""
        return page_of(self._registry, accept)

    def describe(self) -> list[Metric]:
        """Called by the registry: no family is described beforehand."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Called by the registry: every family, those without a sample yet too."""
        total = self._numbers.total
        info = _gauge("build_info")
        info.add_metric([__version__], 1)
        yield info
        happened = {
            labels: column
            for labels, column in self._requests.items()
            if labels[2] in FROM_THE_START or total(column)  # most combinations never happen
        }
        yield self._counter("requests", happened)
        settled = {(route, state.value if state else RELEASED): each for (route, state), each in self._settled.items()}
        yield self._counter("attempts", settled)
        yield self._counter("lost_leases", self._lost)
        yield self._counter("outcomes_refused", self._refused)
        yield self._counter("mismatches_warned", self._mismatched)
        yield self._counter("logins_refused", {(): self._refused_logins})
        yield self._counter("submissions", self._submissions)
        yield self._counter("cache_errors", self._cache_errors)
        yield self._histogram("upstream", self._upstream)
        yield self._histogram("cache", self._cache)
        yield _gauge("attempts_in_flight", total(self._in_flight))
        yield _gauge("buffered_bytes", total(self._buffered))
        yield _gauge("unread_bytes", total(self._unread))
        yield _gauge("tunnels", total(self._tunnels))
        yield self._counter("readers_dropped", {(): self._readers_dropped})
        yield _gauge("outcomes_waiting", total(self._waiting))
        yield self._counter("worker_deaths", {(): self._deaths})
        yield self._counter("attempts_lost", {(): self._died_with})
        yield from self._samples()
        for name, read in self._gauges.items():
            yield _gauge(name, read())

    def _samples(self) -> Iterable[Metric]:
        at = self._numbers.total(self._sampled_at)
        unknown, when = _gauge("records"), _gauge("records_sampled_timestamp_seconds")
        if at:  # nothing was counted otherwise, and none would be a statement
            unknown.add_metric([State.UNKNOWN.value], self._numbers.total(self._unknown))
            when.add_metric([], at)
        yield unknown
        yield when

    def _counter(self, name: str, columns: Mapping[Any, int]) -> Metric:
        """A family with a column for each value of its one label, or for each tuple of values."""
        meaning, labels = COUNTERS[name]
        family = CounterMetricFamily(f"oncegate_{name}", meaning, labels=labels)
        for values, column in columns.items():
            family.add_metric([values] if isinstance(values, str) else list(values), self._numbers.total(column))
        return family

    def _histogram(self, name: str, histograms: Mapping[str, Histogram]) -> Metric:
        meaning, label, _ = HISTOGRAMS[name]
        family = HistogramMetricFamily(f"oncegate_{name}_seconds", meaning, labels=[label])
        for value, histogram in histograms.items():
            buckets, total = histogram.read(self._numbers)
            family.add_metric([value], buckets, total)
        return family


def _gauge(name: str, value: float | None = None) -> GaugeMetricFamily:
    """A family with ``value``, or with what is to be added by its labels."""
    meaning, labels, _ = GAUGES[name]
    return GaugeMetricFamily(f"oncegate_{name}", meaning, value=value, labels=labels or None)


def page_of(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The metrics of ``registry`` in the format that ``accept`` asks for, and its content type."""
    # Only the format is the client's choice: prometheus-client fails on a version that is no number, and echoes others.
    encode, content_type = choose_encoder(OPENMETRICS if OPENMETRICS.partition(";")[0] in accept.lower() else "")
    return encode(registry), content_type
