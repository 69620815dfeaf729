"""A look-back window: how far a table is published whose database has no order of commits that could be read."""

import sys
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Final

import orjson

from oncegate.sql.reading.checkpoint import Checkpoint, Place, Read

_MARKS: Final = 100
"""The length of a window is kept to a hundredth."""


class Window:
    """Rows in the order of their positions, and those again that are behind a ``floor``, for what appears late.

    The floor follows the highest position ``look_back`` seconds after that was seen: what commits later than so long after a
    higher position is lost. The whole of the window is read again and again, in pages of ``page`` rows. What is published of
    it is known as runs of positions without one between them: ``recent`` of them at most, or nothing more is read until the
    floor has risen. ``kept`` of them are stored: what no other relay knows of is published again.
    """

    def __init__(
        self, look_back: float, page: int, recent: int, kept: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not (look_back > 0 and page > 0 and recent > 0 and kept > 0):
            raise ValueError("look_back is above 0 seconds; page, recent and kept are 1 or more")
        if kept > recent:
            raise ValueError(f"kept is {kept}, of the {recent} recent positions: give as many at most")
        self.page = page
        self._look_back, self._recent, self._kept, self._clock = look_back, recent, kept, clock
        self._stored: Checkpoint | None = None
        self._floor = 0
        self._runs = Runs()
        self._marks: deque[tuple[float, int]] = deque()
        """Times, each with the position that was the highest that had been seen then."""
        self._reached = 0
        self._began = self._seen = 0.0
        """When this reading of the window began, and when it came to the end."""
        self._is_at_end = False
        self._open: set[int] = set()
        """Positions that the last call gave, and nobody has confirmed."""
        self._lowest_open = sys.maxsize
        """The lowest position of what earlier calls gave, since the floor was left."""

    @property
    def place(self) -> tuple[int, int]:
        """See `TransactionOrder`."""
        return 0, self._floor

    @property
    def published(self) -> int:
        """See `TransactionOrder`."""
        return len(self._runs)

    @property
    def is_full(self) -> bool:
        """Whether nothing behind what is published is read, as there are too many runs."""
        return self._runs.count >= self._recent

    def load(self, checkpoint: Checkpoint) -> None:
        """See `TransactionOrder`. Of a checkpoint that it has stored itself, this relay knows more."""
        if checkpoint == self._stored:
            return
        self._stored = checkpoint
        self._floor = 0 if checkpoint.transaction else checkpoint.position  # of the other order
        self._runs = Runs((run[0], run[1]) for run in orjson.loads(checkpoint.ahead) if isinstance(run, list))
        self._restart()

    def rows(self, read: Read, most: int) -> list[Place]:
        """See `TransactionOrder`. Goes on where the last call ended; behind the end of the table, at the floor again."""
        self._lowest_open = min([*self._open, self._lowest_open])
        found: list[Place] = []
        if self._is_at_end:
            self._rise()
        while len(found) < most:
            some = min(self.page, most - len(found))
            page = read(0, self._runs.end(self._reached), some)
            last = self._runs.last if self.is_full else None
            fitting = [place for place in page if last is None or place.position <= last]
            found += [place for place in fitting if place.position not in self._runs]
            self._reached = max([self._reached, *[place.position for place in fitting[-1:]]])
            if len(fitting) < some:
                self._is_at_end = True
                self._seen = self._clock()
                break
        self._open = {place.position for place in found}
        return found

    def is_published(self, position: int) -> bool:
        """See `TransactionOrder`."""
        return position in self._runs

    def confirmed(self, positions: Collection[int]) -> Checkpoint:
        """See `TransactionOrder`."""
        self._runs.add(positions)
        self._open.difference_update(positions)
        self._stored = Checkpoint(0, self._floor, orjson.dumps(self._runs.highest(self._kept)).decode())
        return self._stored

    def _restart(self) -> None:
        """Read from the floor on."""
        self._reached = self._floor
        self._began = self._seen = self._clock()
        self._is_at_end = False
        self._open, self._lowest_open = set(), sys.maxsize

    def _rise(self) -> None:
        """The whole window was read: the floor may follow, and the next round begins."""
        due = -1
        while self._marks and self._marks[0][0] <= self._began - self._look_back:
            due = self._marks.popleft()[1]
        due = min(due, self._lowest_open - 1)
        if due > self._floor:
            self._floor = due
            self._runs.forget(due)
        if not self._marks or self._seen - self._marks[-1][0] >= self._look_back / _MARKS:
            self._marks.append((self._seen, max(self._runs.last, self._floor)))
        self._restart()


class Runs:
    """Integers, as runs of those that follow one another."""

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        """``runs`` ascend, and have one between them at least."""
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in runs:
            self._firsts.append(first)
            self._lasts.append(last)

    def __len__(self) -> int:
        """How many integers."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    @property
    def count(self) -> int:
        """How many runs."""
        return len(self._firsts)

    @property
    def last(self) -> int:
        """The highest one; 0 without any."""
        return self._lasts[-1] if self._lasts else 0

    def end(self, number: int) -> int:
        """The last one of the run that ``number`` is in, or in front of; without one ``number``."""
        at = bisect_right(self._firsts, number + 1) - 1
        return max(number, self._lasts[at]) if at >= 0 else number

    def add(self, numbers: Iterable[int]) -> None:
        """Some that may be there."""
        for number in numbers:
            at = bisect_right(self._firsts, number)
            if at and number <= self._lasts[at - 1]:
                continue
            follows, leads = at and self._lasts[at - 1] == number - 1, self._firsts[at : at + 1] == [number + 1]
            if follows and leads:
                del self._firsts[at], self._lasts[at - 1]
            elif follows:
                self._lasts[at - 1] = number
            elif leads:
                self._firsts[at] = number
            else:
                self._firsts.insert(at, number)
                self._lasts.insert(at, number)

    def forget(self, highest: int) -> None:
        """Forget the positions up to ``highest``."""
        gone = bisect_right(self._lasts, highest)
        del self._firsts[:gone], self._lasts[:gone]
        if self._firsts:
            self._firsts[0] = max(self._firsts[0], highest + 1)

    def highest(self, count: int) -> list[tuple[int, int]]:
        """The ``count`` runs, at most, with the highest positions."""
        return list(zip(self._firsts[-count:], self._lasts[-count:], strict=True))
