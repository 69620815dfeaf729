"""Counters in shared memory: each forked worker counts in a row of its own, and any of them can sum the rows.

Strategy. An anonymous shared mapping is made before the fork, and every number has its place in it from then on: to count is
to write a double in memory, without a lock, a file or a system call, and a worker that is killed takes nothing with it: its
successor goes on counting in the same row. A row has one writer, and an aligned double is read and written in one piece. A
counter takes one column of the table, a histogram one for each bucket.

What each request counts is kept beside its column, too: to write takes half of what reading, adding and writing take. Another
row is another object: who meets one reads it first.
"""
# Compiled: docs/decisions/0012-compiled.md

import mmap
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

_DOUBLE: Final = 8


class SharedNumbers:
    """``rows`` times ``columns`` doubles, all 0. ``row`` is the one that this process counts in: the first, until `take`."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self._rows = rows
        self._all = memoryview(mmap.mmap(-1, max(1, columns * rows) * _DOUBLE)).cast("d")
        self.row = self._all[:columns]

    def take(self, index: int) -> None:
        """Count in row ``index`` from now on."""
        self.row = self._all[index * self.columns : (index + 1) * self.columns]

    def column(self, column: int) -> list[float]:
        """A column's number in each row."""
        return [float(number) for number in self._all[column :: self.columns]]

    def total(self, column: int) -> float:
        """The sum of a column over all rows."""
        return sum(self._all[column :: self.columns]) if self._rows > 1 else self._all[column]


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
