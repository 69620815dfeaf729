"""Counters in shared memory: each forked worker counts in a row of its own, and any of them can sum the rows.

Strategy. An anonymous shared mapping is made before the fork, and every number has its place in it from then on: to count is
to add to a double in memory, without a lock, a file or a system call, and a worker that is killed takes nothing with it: its
successor goes on counting in the same row. A row has one writer, and an aligned double is read and written in one piece.
"""
# Compiled: docs/decisions/0012-compiled.md

import mmap
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
