"""Prometheus metrics: counted in shared memory, summed over the workers when they are scraped.

Every label has a bounded set of values, fixed at the start: a route's pattern, its methods, a decision, a state, an
operation. A key, a caller or a path never is one. The numbers are in `oncegate.app.telemetry.columns`;
prometheus-client only formats them (its own mode for several processes keeps a file per process and costs six times as
much per number).
"""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from oncegate import __version__
from oncegate.app.telemetry.columns import Columns, Histogram, SharedNumbers
from oncegate.app.telemetry.exposition import counter, gauge, histogram, page_of
from oncegate.app.telemetry.pending_records import PendingRecords
from oncegate.app.telemetry.process_columns import EventColumns, ProcessColumns, SampleColumns
from oncegate.app.telemetry.route_columns import RouteColumns, RouteMatches
from oncegate.cache.record import State
from oncegate.middleware.admission.observe import ENFORCED, Observation, Watch
from oncegate.prometheus.families import HISTOGRAMS, OPERATIONS, OTHER

SPARE_COLUMNS: Final = 65_536
"""Room for routes that come by a reload, some 600. Memory that nobody has written to takes none."""
Gauges = Mapping[str, Callable[[], float]]
"""Functions by the name of the gauge that each reads at a scrape."""


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
        self._routes = RouteColumns(columns)
        self._routes.take(routes, submissions)
        self._process = ProcessColumns(columns)
        self._cache = {operation: Histogram(columns, HISTOGRAMS["cache"].bounds) for operation in OPERATIONS}
        self._cache_errors = {operation: columns.take() for operation in OPERATIONS}
        self._events, self._samples = EventColumns(columns), SampleColumns(columns)
        # The last row is for what the parent of several workers counts.
        self._parents_row = workers if workers > 1 else 0
        self._numbers = SharedNumbers(columns.count + SPARE_COLUMNS, self._parents_row + 1)
        self._row = self._numbers.row
        self.matches = RouteMatches(columns, self._numbers)
        self._shares: Mapping[str, tuple[float, bool]] = {}
        self._owns_row = workers == 1
        self._digest = 0.0
        self._pending = PendingRecords(workers)
        self._gauges = dict(gauges or {})
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def has_room(
        self,
        routes: Sequence[tuple[str, Sequence[str]]],
        submissions: Iterable[str],
        listed: Iterable[tuple[str, Sequence[str]]],
    ) -> bool:
        """Whether `serve` can be called with these, besides all that has been counted since the start."""
        counted = self._routes.count_new(routes, submissions) + self.matches.count_new(listed)
        return self._columns.count + counted <= self._numbers.columns

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
        self._routes.take(routes, submissions)
        self._shares = shares
        self.matches.list_routes(listed)
        self._gauges |= gauges
        self._digest = float(int(digest, 16))
        if self._owns_row:
            self._row[self._process.configuration] = self._digest

    def reloaded(self, outcome: str) -> None:
        """Count a reload, by one of `RELOADS`. For the process that decides it: the parent, where there are workers."""
        self._numbers.take(self._parents_row)
        self._numbers.row[self._events.reloads[outcome]] += 1

    def enter(self, index: int) -> None:
        """This process is worker ``index`` from now on: what its predecessor had under way is gone, what it counted stays."""
        self._numbers.take(index)
        self._row = self._numbers.row
        self._process.begin(self._row, self._digest)
        self._owns_row = True
        self._pending.enter(index)

    def worker_died(self, index: int) -> tuple[int, list[str]]:
        """The outcomes that a worker took with it that ended unasked: how many, and the ids that are known of their records.

        For the parent, before another worker enters as ``index``: until then the row has no other writer.
        """
        self._numbers.take(index)
        records, lost = self._pending.of(index), self._process.end(self._numbers.row)
        self._pending.clear(index)
        return lost, records

    # -- counting -----------------------------------------------------------------------------------------------------

    def observed(self, observation: Observation, _request: object = None) -> None:
        """Count one answered request."""
        decision, _, _, _, route, method, _, mismatch, mode = observation
        requests = self._routes.requests
        column = requests.get((route, method, decision, mode))
        self._row[column if column is not None else requests[route, method, OTHER, mode]] += 1
        if mismatch and mode == ENFORCED:
            self._row[self._routes.attempts[route].mismatched] += 1

    def attempt_began(self, route: str) -> None:  # noqa: ARG002  # Watch names the parameters
        self._process.in_flight.change(self._row, 1.0)

    def attempt_ended(self, route: str) -> None:  # noqa: ARG002  # Watch names the parameters
        self._process.in_flight.change(self._row, -1.0)

    def attempt_settled(self, route: str, state: State | None, seconds: float) -> None:
        attempts = self._routes.attempts[route]
        self._row[attempts.settled[state]] += 1
        attempts.upstream.add(self._row, seconds)

    def outcome_pending(self, record: str) -> None:
        self._pending.note(record)

    def outcome_known(self, record: str) -> None:
        self._pending.drop(record)

    def lease_lost(self, route: str) -> None:
        self._row[self._routes.attempts[route].lost] += 1

    def outcome_refused(self, route: str) -> None:
        self._row[self._routes.attempts[route].refused] += 1

    def outcomes_waiting(self, change: int) -> None:
        self._process.waiting.change(self._row, change)

    def bodies_waiting(self, change: int) -> None:
        self._process.buffered.change(self._row, change)

    def responses_waiting(self, change: int) -> None:
        self._process.unread.change(self._row, change)

    def reader_dropped(self) -> None:
        self._row[self._events.readers_dropped] += 1

    def tunnels_changed(self, change: int) -> None:
        """Count tunnels that have begun, or ended."""
        self._process.tunnels.change(self._row, change)

    def sampled(self, unknown: int) -> None:
        """Note how many records of the cache were found to read unknown. One process samples."""
        self._samples.note(self._row, unknown)

    def submitted(self, route: str, outcome: str) -> None:
        """Count one submission: ``accepted``, or why not."""
        self._row[self._routes.submissions[route, outcome]] += 1

    def login_refused(self) -> None:
        """Count a request that brought a wrong token for operators."""
        self._row[self._events.logins_refused] += 1

    def access_log_dropped(self, lines: int) -> None:
        """Count ``lines`` of the access log that could not be written."""
        self._row[self._events.lines_dropped] += lines

    def cache_answered(self, operation: str, seconds: float) -> None:
        """Count a cache's answer, and how long it took."""
        self._cache[operation].add(self._row, seconds)

    def cache_failed(self, operation: str, seconds: float) -> None:
        """Count a call that the cache did not answer, or refused."""
        self._row[self._cache_errors[operation]] += 1
        self._cache[operation].add(self._row, seconds)

    def decided(self) -> Iterator[tuple[tuple[str, str, str, str], float]]:
        """How many requests were answered so far, by route, method, decision and mode: of all workers, those that are 0 too."""
        for labels, column in list(self._routes.requests.items()):
            yield labels, self._numbers.total(column)

    def outcomes(self) -> Iterator[tuple[tuple[str, str], float]]:
        """How many attempts have ended so far, by route and outcome (a state, or ``released``): of all workers, 0 too."""
        for labels, column in self._routes.outcomes():
            yield labels, self._numbers.total(column)

    # -- exposing -----------------------------------------------------------------------------------------------------

    def page(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that ``accept`` asks for, and its content type."""
        return page_of(self._registry, accept)

    def of_the_moment(self) -> dict[str, int]:
        """Attempts and connections of this moment in all workers, and the losses of dead ones, by the names of their metrics."""
        columns = {
            "attempts_in_flight": self._process.in_flight.column,
            "outcomes_waiting": self._process.waiting.column,
            "worker_deaths": self._process.deaths,
            "attempts_lost": self._process.died_with,
            "logins_refused": self._events.logins_refused,
        }
        return {name: int(self._numbers.total(column)) for name, column in columns.items()}

    def describe(self) -> list[Metric]:
        """Called by the registry: no family is described beforehand."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Called by the registry: every family, those without a sample yet too."""
        numbers = self._numbers
        info = gauge("build_info")
        info.add_metric([__version__], 1)
        yield info
        yield self._process.of_configurations(numbers)
        yield from self._events.families(numbers)
        yield from self._routes.of_requests(numbers)
        yield counter(numbers, "submissions", self._routes.submissions)
        yield counter(numbers, "cache_errors", self._cache_errors)
        yield self._routes.of_upstream(numbers)
        yield histogram(numbers, "cache", self._cache)
        yield from self._process.of_the_moment(numbers)
        yield self.matches.family()
        yield from self._samples.families(numbers)
        percent, shadowed = gauge("enforced_percent"), gauge("shadowed")
        for route, (share, is_shadowed) in self._shares.items():
            percent.add_metric([route], share)
            shadowed.add_metric([route], float(is_shadowed and share < 100))
        yield percent
        yield shadowed
        for name, read in self._gauges.items():
            yield gauge(name, read())
