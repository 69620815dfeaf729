"""Acknowledges what a worker is done with: entries that end within a few milliseconds of each other, in one step.

What is not acknowledged when the process dies is read again, and skipped: its outcome was recorded before it came here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from oncegate.cache.redis.streams.group import Group

SOON = 0.01
"""Seconds that an entry waits for others at most."""
MOST_AT_ONCE = 100
"""Entries that are acknowledged in one step."""


class Acknowledgements:
    """The entries that are to be acknowledged in ``group``, and are no longer ``held`` then. For one event loop.

    ``failed`` is awaited with those that could not be, and the reason.
    """

    def __init__(
        self,
        group: Group,
        held: dict[bytes, int],
        failed: Callable[[Sequence[bytes], Exception], Awaitable[None]],
    ) -> None:
        self._group = group
        self._held = held
        self._failed = failed
        self._entries: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    def add(self, entry: bytes) -> None:
        """Acknowledge ``entry`` soon."""
        self._entries.append(entry)
        if len(self._entries) >= MOST_AT_ONCE:
            self._send()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SOON, self._send)

    async def flush(self) -> None:
        """Acknowledge at once what there is, and return when that is over."""
        self._send()
        if self._under_way:
            await asyncio.wait(self._under_way)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        entries, self._entries = self._entries, []
        if entries:
            task = asyncio.get_running_loop().create_task(self._sent(entries))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _sent(self, entries: Sequence[bytes]) -> None:
        try:
            await self._group.acknowledge(entries)
        except Exception as error:  # noqa: BLE001  # a fault of ours, too: they must not be held for good
            await self._failed(entries, error)
        else:
            for entry in entries:
                self._held.pop(entry, None)
