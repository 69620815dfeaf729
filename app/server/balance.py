"""Balances connections over workers: counts what each holds, in shared memory, so that none accepts more than its share.

A connection stays with the process that accepted it, and a load balancer keeps its pool for hours: the first worker to wake
up must not take all of it. SO_REUSEPORT, by which the kernel would distribute them, gives each worker a queue of its own, and
resets what waits in the queue of a worker that dies.
"""

from math import ceil
from time import monotonic
from typing import Final

from oncegate.app.telemetry.shared_numbers import SharedNumbers

SLACK: Final = 1.25
"""A worker may hold so many times its fair share before it leaves connections to others."""
STALE_SECONDS: Final = 1.0
"""A worker that has published nothing for so long is stopped, or stuck, and gets no share. Workers publish ten times as often."""
_HELD, _AT = 0, 1


class Balance:
    """To be made before ``workers`` are forked; each then calls `enter`."""

    def __init__(self, workers: int) -> None:
        self._numbers = SharedNumbers(2, workers)

    def enter(self, index: int) -> None:
        """This process is worker ``index``. It has its share from now on, although it does not accept yet."""
        self._numbers.take(index)
        self.publish(0)

    def publish(self, held: int) -> None:
        """Publish how many connections this worker holds, and that it is alive."""
        row = self._numbers.row
        row[_HELD], row[_AT] = held, monotonic()

    def leave(self) -> None:
        """This worker accepts nothing, until it publishes again."""
        self._numbers.row[_AT] = 0

    def died(self, index: int) -> None:
        """For the parent: worker ``index`` is gone."""
        self._numbers.take(index)
        self.leave()

    def room(self, held: int, waiting: int) -> int:
        """How many of the connections that wait this worker, which holds ``held``, should accept; perhaps none."""
        self.publish(held)
        total, workers = self._totals(waiting)
        return max(0, int(SLACK * ceil(total / workers)) - held)

    def part(self, waiting: int) -> int:
        """This worker's share of ``waiting`` alone, once the others have had their time and did not accept."""
        return ceil(waiting / self._totals(0)[1])

    def _totals(self, waiting: int) -> tuple[float, int]:
        """All connections, and how many workers are alive: at least the calling one."""
        since = monotonic() - STALE_SECONDS
        there = [
            held for held, at in zip(self._numbers.column(_HELD), self._numbers.column(_AT), strict=True) if at > since
        ]
        return waiting + sum(there), max(1, len(there))
