"""Growing pauses between tries. No I/O and no clock of its own."""

import random
from collections.abc import Callable
from dataclasses import dataclass

_MOST_TRIES = 63
"""Beyond it every cap is reached, and a float would overflow in the end."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff: a pause is ``base`` times ``factor`` for each try before, at most ``cap`` (s).

    With jitter: it is anything from ``least`` of that, 0 to 1, to all of it. By default from nothing on (full jitter), since
    those that failed together, on a service that was down, must not come back together.
    """

    base: float
    cap: float
    least: float = 0.0
    factor: float = 2.0

    def pause(self, tries: int, draw: Callable[[], float] = random.random) -> float:
        """Seconds to wait after the ``tries``-th try in vain, counted from 1. ``draw`` gives a number from 0 to 1."""
        grown = self.base * self.factor ** (min(max(tries, 1), _MOST_TRIES) - 1)
        return min(self.cap, grown) * (self.least + (1.0 - self.least) * draw())
