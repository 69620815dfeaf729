"""The columns of a table of numbers in memory that processes share: a counter takes one, a histogram one for each bucket."""
# Compiled: docs/decisions/0012-compiled.md

from bisect import bisect_left
from collections.abc import Sequence

from oncegate.app.telemetry.shared_numbers import SharedNumbers


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
