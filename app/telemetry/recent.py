"""The decisions of the last minutes, of all workers of a gateway: what was counted since, read once a minute.

Strategy. Requests are counted in memory that all workers share, and nothing is added for this. Each process reads those counts
once a minute and keeps what it has read for an hour; whoever wants to know reads once more, and subtracts. So any worker can
answer, for all.
"""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from oncegate.app.telemetry.metrics import Metrics
from oncegate.app.turns import in_pieces, others_first
from oncegate.middleware.admission.request import gateway_id
from oncegate.middleware.outcome.instants import instant
from oncegate.middleware.outcome.responses import now_ms

MOST_MINUTES: Final = 60
_MINUTE: Final = 60.0
_AT_ONCE: Final = 200
"""Counts that are read before the event loop goes on with others' work."""

Decided = tuple[str, str, str]
"""Route, decision, mode."""
Ended = tuple[str, str]
"""Route, and the outcome of an attempt."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """The counts since the start, at the instant ``at`` of the monotonic clock, which is ``at_ms`` of Unix time."""

    at: float
    at_ms: int
    decided: Counter[Decided]
    ended: Counter[Ended]


class RecentDecisions:
    """The decisions, and the outcomes, that ``metrics`` have counted in the last minutes, `MOST_MINUTES` at most."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._read: deque[_Reading] = deque(maxlen=MOST_MINUTES + 1)
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
        self._read.append(await self._now())

    async def _now(self) -> _Reading:
        at, at_ms = monotonic(), now_ms()
        ended = Counter({labels: int(count) for labels, count in self._metrics.outcomes() if count})
        await others_first()
        return _Reading(at, at_ms, await self.counts(), ended)

    async def counts(self) -> Counter[Decided]:
        """The counts since the start."""
        counts: Counter[Decided] = Counter()
        async for (route, _, decision, mode), count in in_pieces(self._metrics.decided(), _AT_ONCE):
            if count:
                counts[route, decision, mode] += int(count)
        return counts

    async def listing(self, minutes: int) -> dict[str, Any]:
        """The ``decisions`` of the last ``minutes`` by route, the most frequent first: of all workers of this gateway.

        ``outcomes`` are those of the attempts that have ended, by route: they are unknown, too, where the first request's answer
        was the upstream's own. Both are ``since`` an instant, ``seconds`` ago: up to a minute more, or less where it has not run
        for so long. ``process`` is who answers.
        """
        if not self._read:
            await self.note()
        wanted = monotonic() - minutes * _MINUTE
        before = next((each for each in reversed(self._read) if each.at <= wanted), self._read[0])
        now = await self._now()
        rows: list[dict[str, Any]] = [
            {"route": route, "decision": decision, "mode": mode, "count": count}
            for (route, decision, mode), count in (now.decided - before.decided).items()
        ]
        rows.sort(key=lambda row: (-row["count"], row["route"], row["decision"], row["mode"]))
        ended: list[dict[str, Any]] = [
            {"route": route, "outcome": outcome, "count": count}
            for (route, outcome), count in (now.ended - before.ended).items()
        ]
        ended.sort(key=lambda row: (-row["count"], row["route"], row["outcome"]))
        return {
            "since": instant(before.at_ms),
            "seconds": monotonic() - before.at,
            "process": gateway_id(),
            "decisions": rows,
            "outcomes": ended,
        }
