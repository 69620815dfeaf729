"""The decisions of the last minutes, of all workers of a gateway: what was counted since, read once a minute.

Strategy. Requests are counted in memory that all workers share, and nothing is added for this. Each process reads those counts
once a minute and keeps what it has read for an hour; whoever wants to know reads once more, and subtracts. So any worker can
answer, for all.
"""

import asyncio
from collections import Counter, deque
from time import monotonic
from typing import Any, Final

from oncegate.app.telemetry.metrics import Metrics
from oncegate.middleware.admission.request import gateway_id
from oncegate.middleware.outcome.instants import instant
from oncegate.middleware.outcome.responses import now_ms

MOST_MINUTES: Final = 60
_MINUTE: Final = 60.0
_AT_ONCE: Final = 1000
"""Counts that are read before the event loop goes on with others' work."""

Decided = tuple[str, str, str]
"""Route, decision, mode."""


class RecentDecisions:
    """The decisions that ``metrics`` have counted in the last minutes, `MOST_MINUTES` at most."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._read: deque[tuple[float, int, Counter[Decided]]] = deque(maxlen=MOST_MINUTES + 1)
        self._reading: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read once a minute, in this process."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_each_minute())

    def stop(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _read_each_minute(self) -> None:
        while True:
            await self.note()
            await asyncio.sleep(_MINUTE)

    async def note(self) -> None:
        """Read the counts as they are now, to be subtracted later."""
        at, at_ms = monotonic(), now_ms()
        self._read.append((at, at_ms, await self.counts()))

    async def counts(self) -> Counter[Decided]:
        """What was counted since the start."""
        counts: Counter[Decided] = Counter()
        for number, ((route, _, decision, mode), count) in enumerate(self._metrics.decided()):
            if count:
                counts[route, decision, mode] += int(count)
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        return counts

    async def listing(self, minutes: int) -> dict[str, Any]:
        """The ``decisions`` of the last ``minutes`` by route, the most frequent first: of all workers of this gateway.

        They are those ``since`` an instant, ``seconds`` ago: up to a minute more, or less where it has not run for so long.
        ``process`` is who answers.
        """
        if not self._read:
            await self.note()
        wanted = monotonic() - minutes * _MINUTE
        at, at_ms, before = next((each for each in reversed(self._read) if each[0] <= wanted), self._read[0])
        now = await self.counts()
        rows: list[dict[str, Any]] = [
            {"route": route, "decision": decision, "mode": mode, "count": count - before[route, decision, mode]}
            for (route, decision, mode), count in now.items()
            if count > before[route, decision, mode]
        ]
        rows.sort(key=lambda row: (-row["count"], row["route"], row["decision"], row["mode"]))
        return {"since": instant(at_ms), "seconds": monotonic() - at, "process": gateway_id(), "decisions": rows}
