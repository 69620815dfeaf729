"""The columns of a table of numbers in memory that processes share: a counter takes one, a histogram one for each bucket.

What each request counts is kept beside its column, too: to write takes half of what reading, adding and writing take. A row has
one writer, and another row is another object: who meets one reads it first.
"""
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


class Level:
    """A number's place in a table that goes up and down. Nothing else may write to its ``column`` of the row in use."""

    __slots__ = ("_row", "_value", "column")

    def __init__(self, columns: Columns) -> None:
        self.column = columns.take()
        self._row: memoryview[float] | None = None
        self._value = 0.0

    def change(self, row: "memoryview[float]", change: float) -> None:
        """Have the number be more by ``change``."""
        if row is not self._row:
            self._row, self._value = row, row[self.column]
        self._value += change
        row[self.column] = self._value


class Histogram:
    """A histogram's place in a table: a column for each bucket, one for what is above all bounds, one for the sum.

    The bucket of the value before is tried first: most values are near each other.
    """

    __slots__ = ("_above", "_bounds", "_bucket", "_counted", "_first", "_row", "_sum", "_total", "_up_to")

    def __init__(self, columns: Columns, bounds: Sequence[float]) -> None:
        self._bounds = [float(bound) for bound in bounds]
        self._first = columns.take(len(self._bounds) + 2)
        self._sum = self._first + len(self._bounds) + 1
        self._row: memoryview[float] | None = None
        self._total = 0.0
        # The bucket of the value before: its column, what it holds, and of which values.
        self._bucket = self._first
        self._counted = 0.0
        self._above = self._up_to = 0.0

    def add(self, row: "memoryview[float]", value: float) -> None:
        """Count ``value``: in the first bucket whose bound it does not exceed."""
        if row is not self._row or not self._above < value <= self._up_to:
            self._turn_to(row, value)
        self._counted += 1.0
        self._total += value
        row[self._bucket] = self._counted
        row[self._sum] = self._total

    def _turn_to(self, row: "memoryview[float]", value: float) -> None:
        if row is not self._row:
            self._row, self._total = row, row[self._sum]
        bounds = self._bounds
        at = bisect_left(bounds, value)
        self._bucket = self._first + at
        self._counted = row[self._bucket]
        self._above = bounds[at - 1] if at else float("-inf")
        self._up_to = bounds[at] if at < len(bounds) else float("inf")

    def read(self, numbers: SharedNumbers) -> tuple[list[tuple[str, float]], float]:
        """The cumulative counts by bound, as Prometheus wants them (the last is ``+Inf``), and the sum of all values."""
        counted = 0.0
        buckets = []
        for offset, bound in enumerate([*map(repr, self._bounds), "+Inf"]):
            counted += numbers.total(self._first + offset)
            buckets.append((bound, counted))
        return buckets, numbers.total(self._sum)
