"""Which routes have been matched by a request since the start: a rule that nothing meets is a rule that guards nothing."""
# Compiled: docs/decisions/0012-compiled.md

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import Metric

from oncegate.app.telemetry.columns import Columns
from oncegate.app.telemetry.exposition import gauge
from oncegate.app.telemetry.shared_numbers import SharedNumbers


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
