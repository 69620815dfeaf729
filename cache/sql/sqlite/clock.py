"""The machine's clock, made to never go back: by it the records of a file live and end."""

import time
from collections.abc import Callable


class SteadyClock:
    """Unix milliseconds that never go back. Where the machine's clock is set back, they go on from where they were.

    ``wall`` and ``steady`` tell seconds; the second one never goes back. Threads may share it.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._steady = steady
        self._seen = (0, 0.0)

    def now_ms(self) -> int:
        """The instant now."""
        seen_ms, at = self._seen
        steady = self._steady()
        now_ms = max(int(self._wall() * 1000), seen_ms + int((steady - at) * 1000) if seen_ms else 0)
        self._seen = (now_ms, steady)
        return now_ms

    def now_after(self, instant_ms: int) -> int:
        """The same, where another process of this machine has been at ``instant_ms``."""
        now_ms = self.now_ms()
        if instant_ms > now_ms:
            self._seen = (instant_ms, self._steady())
            return instant_ms
        return now_ms
