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
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from oncegate import __version__
from oncegate.app.telemetry.columns import Columns, Histogram
from oncegate.app.telemetry.exposition import counter, gauge, histogram, page_of
from oncegate.app.telemetry.pending_records import PendingRecords
from oncegate.app.telemetry.route_matches import RouteMatches
from oncegate.app.telemetry.shared_numbers import SharedNumbers
from oncegate.cache.record import State
from oncegate.middleware.admission.observe import ENFORCED, SHADOW, Observation, Watch
from oncegate.prometheus.families import (
    DECISIONS,
    FROM_THE_START,
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
DIGEST_DIGITS: Final = 12
"""Hexadecimal digits of a configuration's digest: a double holds 53 bits."""
Gauges = Mapping[str, Callable[[], float]]
"""Functions by the name of the gauge that each reads at a scrape."""


_COLUMNS_OF_METHOD: Final = (len(DECISIONS) + 1) * 2
_COLUMNS_OF_ROUTE: Final = len(OUTCOMES) + 1 + len(HISTOGRAMS["upstream"].bounds) + 2 + 3
"""The columns that `Metrics._take` takes for each method of a route, and for the route."""


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
        self.matches = RouteMatches(columns, self._numbers)
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
            + self.matches.count_new(listed)
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
        self.matches.list_routes(listed)
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
        for column in (self._in_flight, self._waiting, self._buffered, self._unread, self._tunnels):
            self._row[column] = 0
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
        for column in (self._in_flight, self._waiting, self._buffered, self._unread, self._tunnels):
            row[column] = 0
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
        """Attempts and connections of this moment in all workers, and the losses of dead ones, by the names of their metrics."""
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
        numbers = self._numbers
        total = numbers.total
        info = gauge("build_info")
        info.add_metric([__version__], 1)
        yield info
        serving = Counter(numbers.column(self._configuration))
        configurations = gauge("config_info")
        for digest, processes in sorted(serving.items()):
            if digest:
                configurations.add_metric([f"{int(digest):0{DIGEST_DIGITS}x}"], processes)
        yield configurations
        yield counter(numbers, "reloads", self._reloads)
        happened = {
            labels: column
            for labels, column in self._requests.items()
            if (labels[2] in FROM_THE_START and labels[3] == ENFORCED)
            or total(column)  # most combinations never happen
        }
        yield counter(numbers, "requests", happened)
        settled = {(route, state.value if state else RELEASED): each for (route, state), each in self._settled.items()}
        yield counter(numbers, "attempts", settled)
        yield counter(numbers, "lost_leases", self._lost)
        yield counter(numbers, "outcomes_refused", self._refused)
        yield counter(numbers, "mismatches_warned", self._mismatched)
        yield counter(numbers, "logins_refused", {(): self._refused_logins})
        yield counter(numbers, "access_log_dropped", {(): self._lines_dropped})
        yield counter(numbers, "submissions", self._submissions)
        yield counter(numbers, "cache_errors", self._cache_errors)
        yield histogram(numbers, "upstream", self._upstream)
        yield histogram(numbers, "cache", self._cache)
        yield gauge("attempts_in_flight", total(self._in_flight))
        yield gauge("buffered_bytes", total(self._buffered))
        yield gauge("unread_bytes", total(self._unread))
        yield gauge("tunnels", total(self._tunnels))
        yield counter(numbers, "readers_dropped", {(): self._readers_dropped})
        yield gauge("outcomes_waiting", total(self._waiting))
        yield counter(numbers, "worker_deaths", {(): self._deaths})
        yield counter(numbers, "attempts_lost", {(): self._died_with})
        yield self.matches.family()
        yield from self._samples()
        percent, shadowed = gauge("enforced_percent"), gauge("shadowed")
        for route, (share, is_shadowed) in self._shares.items():
            percent.add_metric([route], share)
            shadowed.add_metric([route], float(is_shadowed and share < 100))
        yield percent
        yield shadowed
        for name, read in self._gauges.items():
            yield gauge(name, read())

    def _samples(self) -> Iterable[Metric]:
        at = self._numbers.total(self._sampled_at)
        unknown, when = gauge("records"), gauge("records_sampled_timestamp_seconds")
        if at:  # nothing was counted otherwise, and none would be a statement
            unknown.add_metric([State.UNKNOWN.value], self._numbers.total(self._unknown))
            when.add_metric([], at)
        yield unknown
        yield when
