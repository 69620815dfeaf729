"""Prometheus metrics: counted in shared memory, summed over the workers when they are scraped.

Every label has a bounded set of values, fixed at the start: a route's pattern, its methods, a decision, a state, an
operation. A key, a caller or a path never is one. The numbers are in `oncegate.app.telemetry.shared_numbers`;
prometheus-client only formats them (its own mode for several processes keeps a file per process and costs six times as
much per number).
"""
# Compiled: docs/decisions/0012-compiled.md

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from time import time
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from oncegate import __version__
from oncegate.app.telemetry.columns import Columns, Histogram
from oncegate.app.telemetry.pending_records import PendingRecords
from oncegate.app.telemetry.shared_numbers import SharedNumbers
from oncegate.cache.record import State
from oncegate.middleware.admission.observe import ENFORCED, SHADOW, Observation, Watch
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
    RELOADS,
    SUBMISSIONS,
)

SPARE_COLUMNS: Final = 65_536
"""Room for routes that come by a reload, some 600. Memory that nobody has written to takes none."""
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"
DIGEST_DIGITS: Final = 12
"""Hexadecimal digits of a configuration's digest: a double holds 53 bits."""
Gauges = Mapping[str, Callable[[], float]]
"""Functions by the name of the gauge that each reads at a scrape."""


_COLUMNS_OF_METHOD: Final = (len(DECISIONS) + 1) * 2
_COLUMNS_OF_ROUTE: Final = len(OUTCOMES) + 1 + len(HISTOGRAMS["upstream"].bounds) + 2 + 3
"""What `Metrics._take` takes for each method of a route, and for the route."""


class Metrics(Watch):
    """All counters. ``routes`` are the patterns under enforcement with their methods; ``workers`` share one object.
    ``submissions`` are those of the patterns whose commands are accepted to be processed later.

    To be made before workers are forked; each then calls `enter`. ``gauges`` are read in the process that is scraped.
    Routes that come later are given their columns by `serve`, to be called with the same in each process, in the same order.
    """

    def __init__(
        self,
        routes: Iterable[tuple[str, Sequence[str]]],
        *,
        submissions: Iterable[str] = (),
        workers: int = 1,
        gauges: Gauges | None = None,
    ) -> None:
        self._columns = columns = Columns()
        self._requests: dict[tuple[str, str, str, str], int] = {}
        self._shares: Mapping[str, tuple[float, bool]] = {}
        self._settled: dict[tuple[str, State | None], int] = {}
        self._upstream: dict[str, Histogram] = {}
        self._lost: dict[str, int] = {}
        self._refused: dict[str, int] = {}
        self._mismatched: dict[str, int] = {}
        self._submissions: dict[tuple[str, str], int] = {}
        self._matched: dict[tuple[str, str, int], int] = {}
        self._listed: list[tuple[str, str, int]] = []
        self._take(routes, submissions)
        self._refused_logins, self._configuration = columns.take(), columns.take()
        self._lines_dropped = columns.take()
        self._reloads = {outcome: columns.take() for outcome in RELOADS}
        self._cache = {operation: Histogram(columns, HISTOGRAMS["cache"].bounds) for operation in OPERATIONS}
        self._cache_errors = {operation: columns.take() for operation in OPERATIONS}
        self._in_flight, self._waiting, self._buffered = columns.take(), columns.take(), columns.take()
        self._unread, self._readers_dropped = columns.take(), columns.take()
        self._tunnels = columns.take()
        self._deaths, self._died_with = columns.take(), columns.take()
        self._unknown, self._sampled_at = columns.take(), columns.take()
        self._most_columns = columns.count + SPARE_COLUMNS
        # The last row is for what the parent of several workers counts.
        self._parents_row = workers if workers > 1 else 0
        self._numbers = SharedNumbers(self._most_columns, self._parents_row + 1)
        self._row = self._numbers.row
        self._owns_row = workers == 1
        self._digest = 0.0
        self._pending = PendingRecords(workers)
        self._gauges = dict(gauges or {})
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def _take(self, routes: Iterable[tuple[str, Sequence[str]]], submissions: Iterable[str]) -> None:
        """Give columns to those of the routes that have none yet."""
        columns = self._columns
        for route, methods in routes:
            for method in methods:
                for decision, mode in product((*DECISIONS, OTHER), (ENFORCED, SHADOW)):
                    if (route, method, decision, mode) not in self._requests:
                        self._requests[route, method, decision, mode] = columns.take()
            if route in self._upstream:
                continue
            for state in (*OUTCOMES, None):
                self._settled[route, state] = columns.take()
            self._upstream[route] = Histogram(columns, HISTOGRAMS["upstream"].bounds)
            self._lost[route], self._refused[route], self._mismatched[route] = (columns.take() for _ in range(3))
        for route in submissions:
            for outcome in SUBMISSIONS:
                if (route, outcome) not in self._submissions:
                    self._submissions[route, outcome] = columns.take()

    def _columns_of(self, listed: Iterable[tuple[str, Sequence[str]]]) -> list[tuple[str, str, int]]:
        """The routes, with the columns of their matches; one that was there before keeps its own."""
        found: list[tuple[str, str, int]] = []
        for key in _matches(listed):
            if key not in self._matched:
                self._matched[key] = self._columns.take()
            found.append((key[0], key[1], self._matched[key]))
        return found

    def has_room(
        self,
        routes: Sequence[tuple[str, Sequence[str]]],
        submissions: Iterable[str],
        listed: Iterable[tuple[str, Sequence[str]]],
    ) -> bool:
        """Whether `serve` can be called with these, besides all that has been counted since the start."""
        methods = {(route, method) for route, names in routes for method in names}
        counted = (
            sum((*each, OTHER, ENFORCED) not in self._requests for each in methods) * _COLUMNS_OF_METHOD
            + len({route for route, _ in routes} - self._upstream.keys()) * _COLUMNS_OF_ROUTE
            + sum((route, each) not in self._submissions for route in {*submissions} for each in SUBMISSIONS)
            + sum(key not in self._matched for key in _matches(listed))
        )
        return self._columns.count + counted <= self._most_columns

    def serve(
        self,
        digest: str,
        routes: Iterable[tuple[str, Sequence[str]]],
        submissions: Iterable[str],
        gauges: Gauges,
        shares: Mapping[str, tuple[float, bool]],
        listed: Iterable[tuple[str, Sequence[str]]],
    ) -> None:
        """This process serves by the configuration of ``digest`` from now on. Routes that are gone stay counted.

        ``shares`` are the percent of the keys that are under enforcement, by pattern, and whether the rest is observed.
        ``listed`` are the routes as they are tried, the default not among them: whether a request has matched each is kept.
        """
        self._take(routes, submissions)
        self._shares = shares
        self._listed = self._columns_of(listed)
        self._gauges |= gauges
        self._digest = float(int(digest, 16))
        if self._owns_row:
            self._row[self._configuration] = self._digest

    def reloaded(self, outcome: str) -> None:
        """Count a reload, by one of `RELOADS`. For the process that decides it: the parent, where there are workers."""
        self._numbers.take(self._parents_row)
        self._numbers.row[self._reloads[outcome]] += 1

    def enter(self, index: int) -> None:
        """This process is worker ``index`` from now on: what its predecessor had under way is gone, what it counted stays."""
        self._numbers.take(index)
        self._row = self._numbers.row
        for gauge in (self._in_flight, self._waiting, self._buffered, self._unread, self._tunnels):
            self._row[gauge] = 0
        self._owns_row = True
        self._row[self._configuration] = self._digest
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
        row[self._configuration] = 0
        self._pending.clear(index)
        return lost, records

    # -- counting -----------------------------------------------------------------------------------------------------

    def observed(self, observation: Observation, _request: object = None) -> None:
        """Count one answered request."""
        route, method, mode = observation.route, observation.method, observation.mode
        column = self._requests.get((route, method, observation.decision, mode))
        self._row[column if column is not None else self._requests[route, method, OTHER, mode]] += 1
        if observation.mismatch and mode == ENFORCED:
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

    def noting_matches(self) -> Callable[[int], None]:
        """Notes that a request has matched a route, by its number among those that are ``listed`` now."""
        columns = [column for _, _, column in self._listed]

        def matched(number: int) -> None:
            self._row[columns[number]] = 1

        return matched

    def has_matched(self, number: int) -> bool:
        """Whether a request has matched that route since the start, in any worker."""
        return self._numbers.total(self._listed[number][2]) > 0

    def login_refused(self) -> None:
        """Count a request that brought a wrong token for operators."""
        self._row[self._refused_logins] += 1

    def access_log_dropped(self, lines: int) -> None:
        """Count ``lines`` of the access log that could not be written."""
        self._row[self._lines_dropped] += lines

    def cache_answered(self, operation: str, seconds: float) -> None:
        """Count a cache's answer, and how long it took."""
        columns = self._cache[operation]  # `Histogram.add`, spelled out: each request comes here
        self._row[columns.first + bisect_left(columns.bounds, seconds)] += 1
        self._row[columns.sum] += seconds

    def cache_failed(self, operation: str, seconds: float) -> None:
        """Count a call that the cache did not answer, or refused."""
        self._row[self._cache_errors[operation]] += 1
        self._cache[operation].add(self._row, seconds)

    def decided(self) -> Iterator[tuple[tuple[str, str, str, str], float]]:
        """How many requests were answered so far, by route, method, decision and mode: of all workers, those that are 0 too."""
        for labels, column in list(self._requests.items()):
            yield labels, self._numbers.total(column)

    def outcomes(self) -> Iterator[tuple[tuple[str, str], float]]:
        """How many attempts have ended so far, by route and outcome (a state, or ``released``): of all workers, 0 too."""
        for (route, state), column in list(self._settled.items()):
            yield (route, state.value if state else RELEASED), self._numbers.total(column)

    # -- exposing -----------------------------------------------------------------------------------------------------

    def page(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that ``accept`` asks for, and its content type."""
        return page_of(self._registry, accept)

    def of_the_moment(self) -> dict[str, int]:
        """What is under way in all workers, and what those have lost that died, by the names of their metrics."""
        columns = {
            "attempts_in_flight": self._in_flight,
            "outcomes_waiting": self._waiting,
            "worker_deaths": self._deaths,
            "attempts_lost": self._died_with,
            "logins_refused": self._refused_logins,
        }
        return {name: int(self._numbers.total(column)) for name, column in columns.items()}

    def describe(self) -> list[Metric]:
        """Called by the registry: no family is described beforehand."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Called by the registry: every family, those without a sample yet too."""
        total = self._numbers.total
        info = _gauge("build_info")
        info.add_metric([__version__], 1)
        yield info
        serving = Counter(self._numbers.column(self._configuration))
        configurations = _gauge("config_info")
        for digest, processes in sorted(serving.items()):
            if digest:
                configurations.add_metric([f"{int(digest):0{DIGEST_DIGITS}x}"], processes)
        yield configurations
        yield self._counter("reloads", self._reloads)
        happened = {
            labels: column
            for labels, column in self._requests.items()
            if (labels[2] in FROM_THE_START and labels[3] == ENFORCED)
            or total(column)  # most combinations never happen
        }
        yield self._counter("requests", happened)
        settled = {(route, state.value if state else RELEASED): each for (route, state), each in self._settled.items()}
        yield self._counter("attempts", settled)
        yield self._counter("lost_leases", self._lost)
        yield self._counter("outcomes_refused", self._refused)
        yield self._counter("mismatches_warned", self._mismatched)
        yield self._counter("logins_refused", {(): self._refused_logins})
        yield self._counter("access_log_dropped", {(): self._lines_dropped})
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
        yield self._matches()
        yield from self._samples()
        percent, shadowed = _gauge("enforced_percent"), _gauge("shadowed")
        for route, (share, is_shadowed) in self._shares.items():
            percent.add_metric([route], share)
            shadowed.add_metric([route], float(is_shadowed and share < 100))
        yield percent
        yield shadowed
        for name, read in self._gauges.items():
            yield _gauge(name, read())

    def _matches(self) -> Metric:
        family = _gauge("route_matched")
        found: dict[tuple[str, str], bool] = {}
        for number, (route, methods, _) in enumerate(self._listed):  # two of them may look the same
            found[route, methods] = found.get((route, methods), False) or self.has_matched(number)
        for labels, matched in found.items():
            family.add_metric([*labels], float(matched))
        return family

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


def _matches(listed: Iterable[tuple[str, Sequence[str]]]) -> Iterable[tuple[str, str, int]]:
    """What each of the routes is known by: its pattern, its methods, and how many before it look the same."""
    seen: Counter[tuple[str, str]] = Counter()
    for route, names in listed:
        methods = " ".join(names)
        yield route, methods, seen[route, methods]
        seen[route, methods] += 1


def _gauge(name: str, value: float | None = None) -> GaugeMetricFamily:
    """A family with ``value``, or with what is to be added by its labels."""
    meaning, labels, _ = GAUGES[name]
    return GaugeMetricFamily(f"oncegate_{name}", meaning, value=value, labels=labels or None)


def page_of(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The metrics of ``registry`` in the format that ``accept`` asks for, and its content type."""
    # Only the format is the client's choice: prometheus-client fails on a version that is no number, and echoes others.
    encode, content_type = choose_encoder(OPENMETRICS if OPENMETRICS.partition(";")[0] in accept.lower() else "")
    return encode(registry), content_type
