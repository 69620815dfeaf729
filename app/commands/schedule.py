"""The schedule of entries that wait to be processed again. No I/O and no clock of its own."""

import heapq


class Schedule:
    """The entries to process again, and when. It holds their ids, never their content: a body is read when it is due.

    Times are those of whatever clock the caller goes by. An id that is added again has its new time alone.
    """

    def __init__(self) -> None:
        self._due: dict[bytes, float] = {}
        self._heap: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, entry: bytes) -> bool:
        return entry in self._due

    def add(self, entry: bytes, due: float) -> None:
        """Schedule ``entry`` for the time ``due``."""
        self._due[entry] = due
        heapq.heappush(self._heap, (due, entry))

    def take(self, now: float) -> list[bytes]:
        """Remove and return those that are due, the longest overdue first."""
        taken = []
        while self._heap and (self._heap[0][0] <= now or self._stale()):
            due, entry = heapq.heappop(self._heap)
            if self._due.get(entry) == due:
                del self._due[entry]
                taken.append(entry)
        return taken

    def next(self) -> float | None:
        """When the next one is due; ``None`` while nothing waits."""
        while self._heap and self._stale():
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def remaining(self, now: float) -> dict[bytes, float]:
        """All that wait, with how long each still has to."""
        return {entry: max(0.0, due - now) for entry, due in self._due.items()}

    def _stale(self) -> bool:
        due, entry = self._heap[0]
        return self._due.get(entry) != due
