"""The columns of what is counted by route: requests by what was decided, attempts by how they ended, submissions.

And which routes have been matched by a request since the start: a rule that nothing meets is a rule that guards nothing.
"""
# Compiled: docs/decisions/0012-compiled.md

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Final

from prometheus_client.core import Metric

from oncegate.app.telemetry.columns import Columns, Histogram, SharedNumbers
from oncegate.app.telemetry.exposition import counter, gauge, histogram
from oncegate.cache.record import State
from oncegate.middleware.admission.observe import ENFORCED, SHADOW
from oncegate.prometheus.families import DECISIONS, FROM_THE_START, HISTOGRAMS, OTHER, OUTCOMES, RELEASED, SUBMISSIONS

_OF_METHOD: Final = (len(DECISIONS) + 1) * 2
_OF_ROUTE: Final = len(OUTCOMES) + 1 + len(HISTOGRAMS["upstream"].bounds) + 2 + 3
"""Columns that `RouteColumns.take` takes for each method of a route, and for the route."""


class AttemptColumns:
    """The columns of one route's attempts: by their outcome (``None``: released), how long they took, and what went wrong."""

    __slots__ = ("lost", "mismatched", "refused", "settled", "upstream")

    def __init__(self, columns: Columns) -> None:
        self.settled: dict[State | None, int] = {state: columns.take() for state in (*OUTCOMES, None)}
        self.upstream = Histogram(columns, HISTOGRAMS["upstream"].bounds)
        self.lost, self.refused, self.mismatched = columns.take(), columns.take(), columns.take()


class RouteColumns:
    """The columns of all routes that there have been. ``requests`` are by route, method, decision and mode, ``attempts`` by
    route, ``submissions`` by route and outcome.
    """

    __slots__ = ("_columns", "attempts", "requests", "submissions")

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.requests: dict[tuple[str, str, str, str], int] = {}
        self.attempts: dict[str, AttemptColumns] = {}
        self.submissions: dict[tuple[str, str], int] = {}

    def take(self, routes: Iterable[tuple[str, Sequence[str]]], submissions: Iterable[str]) -> None:
        """Give columns to those of the routes that have none yet."""
        columns = self._columns
        for route, methods in routes:
            for method in methods:
                for decision, mode in product((*DECISIONS, OTHER), (ENFORCED, SHADOW)):
                    if (route, method, decision, mode) not in self.requests:
                        self.requests[route, method, decision, mode] = columns.take()
            if route not in self.attempts:
                self.attempts[route] = AttemptColumns(columns)
        for route in submissions:
            for outcome in SUBMISSIONS:
                if (route, outcome) not in self.submissions:
                    self.submissions[route, outcome] = columns.take()

    def count_new(self, routes: Iterable[tuple[str, Sequence[str]]], submissions: Iterable[str]) -> int:
        """How many columns `take` would take."""
        given = [*routes]
        methods = {(route, method) for route, names in given for method in names}
        return (
            sum((*each, OTHER, ENFORCED) not in self.requests for each in methods) * _OF_METHOD
            + len({route for route, _ in given} - self.attempts.keys()) * _OF_ROUTE
            + sum((route, each) not in self.submissions for route in {*submissions} for each in SUBMISSIONS)
        )

    def outcomes(self) -> Iterator[tuple[tuple[str, str], int]]:
        """The columns of attempts by route and outcome: a state, or ``released``."""
        for route, attempts in list(self.attempts.items()):
            for state, column in attempts.settled.items():
                yield (route, state.value if state else RELEASED), column

    def of_requests(self, numbers: SharedNumbers) -> Iterator[Metric]:
        """The families of requests and their attempts."""
        happened = {
            labels: column
            for labels, column in self.requests.items()
            if (labels[2] in FROM_THE_START and labels[3] == ENFORCED)
            or numbers.total(column)  # most combinations never happen
        }
        yield counter(numbers, "requests", happened)
        yield counter(numbers, "attempts", dict(self.outcomes()))
        attempts = self.attempts
        yield counter(numbers, "lost_leases", {route: each.lost for route, each in attempts.items()})
        yield counter(numbers, "outcomes_refused", {route: each.refused for route, each in attempts.items()})
        yield counter(numbers, "mismatches_warned", {route: each.mismatched for route, each in attempts.items()})

    def of_upstream(self, numbers: SharedNumbers) -> Metric:
        """The family of how long attempts took."""
        return histogram(numbers, "upstream", {route: each.upstream for route, each in self.attempts.items()})


class RouteMatches:
    """A number in ``numbers`` for each route, by its place among those that `list_routes` was called with last."""

    def __init__(self, columns: Columns, numbers: SharedNumbers) -> None:
        self._columns = columns
        self._numbers = numbers
        self._matched: dict[tuple[str, str, int], int] = {}
        self._listed: list[tuple[str, str, int]] = []

    def list_routes(self, listed: Iterable[tuple[str, Sequence[str]]]) -> None:
        """``listed`` are the routes from now on. One that was there before keeps what is known of it."""
        found: list[tuple[str, str, int]] = []
        for key in _keys_of(listed):
            if key not in self._matched:
                self._matched[key] = self._columns.take()
            found.append((key[0], key[1], self._matched[key]))
        self._listed = found

    def count_new(self, listed: Iterable[tuple[str, Sequence[str]]]) -> int:
        """How many columns `list_routes` would take."""
        return sum(key not in self._matched for key in _keys_of(listed))

    def noting(self) -> Callable[[int], None]:
        """Notes that a request has matched a route, by its number among those that are listed now."""
        numbers = self._numbers
        columns = [column for _, _, column in self._listed]

        def matched(number: int) -> None:
            numbers.row[columns[number]] = 1

        return matched

    def has_matched(self, number: int) -> bool:
        """Whether a request has matched that route since the start, in any worker."""
        return self._numbers.total(self._listed[number][2]) > 0

    def family(self) -> Metric:
        """The gauge of all that are listed."""
        family = gauge("route_matched")
        found: dict[tuple[str, str], bool] = {}
        for number, (route, methods, _) in enumerate(self._listed):  # two of them may look the same
            found[route, methods] = found.get((route, methods), False) or self.has_matched(number)
        for labels, matched in found.items():
            family.add_metric([*labels], float(matched))
        return family


def _keys_of(listed: Iterable[tuple[str, Sequence[str]]]) -> Iterable[tuple[str, str, int]]:
    """The key of each of the routes: its pattern, its methods, and how many before it look the same."""
    seen: Counter[tuple[str, str]] = Counter()
    for route, names in listed:
        methods = " ".join(names)
        yield route, methods, seen[route, methods]
        seen[route, methods] += 1
