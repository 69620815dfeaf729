"""Counters in shared memory: each forked worker counts in a row of its own, and any of them can sum the rows.

Strategy. An anonymous shared mapping is made before the fork, and every number has its place in it from then on: to count is
to add to a double in memory, without a lock, a file or a system call, and a worker that is killed takes nothing with it: its
successor goes on counting in the same row. A row has one writer, and an aligned double is read and written in one piece.
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
        self._columns = columns
        self._rows = rows
        self._all = memoryview(mmap.mmap(-1, max(1, columns * rows) * _DOUBLE)).cast("d")
        self.row = self._all[:columns]

    def take(self, index: int) -> None:
        """Count in row ``index`` from now on."""
        self.row = self._all[index * self._columns : (index + 1) * self._columns]

    def column(self, column: int) -> list[float]:
        """A column's number in each row."""
        return [float(number) for number in self._all[column :: self._columns]]

    def total(self, column: int) -> float:
        """The sum of a column over all rows."""
        return sum(self._all[column :: self._columns]) if self._rows > 1 else self._all[column]


class Columns:
    """Gives out columns before there is a table."""

    def __init__(self) -> None:
        self.count = 0

    def take(self, count: int = 1) -> int:
        """The first of ``count`` columns in a row."""
        first = self.count
        self.count += count
        return first


class Histogram:
    """Where one histogram lives in a table: a column for each bucket, one for what is above all bounds, one for the sum."""

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
