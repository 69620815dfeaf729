"""Faults: which process is killed with the next payment, or is away until it is let in again."""

import asyncio
from collections.abc import Awaitable, Callable

from oncegate.app.demo.actions import FAULTS, Fault
from oncegate.app.demo.supervised import Supervised
from oncegate.app.demo.upstream import Progress


class Faults:
    """Faults that can be armed, one at a time; each happens once. ``before`` is awaited right before a process is killed."""

    def __init__(self, before: Callable[[], Awaitable[None]]) -> None:
        self.processes: dict[str, Supervised] = {}
        """By their names; given once they are there."""
        self._before = before
        self._armed: Fault | None = None
        self._happening: asyncio.Task[None] | None = None

    async def arm(self, name: str) -> None:
        """Arm one of `FAULTS`. What is to happen at once has happened when this returns."""
        fault = FAULTS[name]
        if fault.at is None:
            await self._before()
            process = self.processes[fault.process]
            process.kill(hold=True)
            await process.down.wait()
        else:
            self._armed = fault

    def progressed(self, progress: Progress) -> None:
        """The payments service has got so far with a payment."""
        fault = self._armed
        if fault is not None and fault.at == progress:
            self._armed = None
            self._happening = asyncio.create_task(self._happen(self.processes[fault.process]))

    async def over(self) -> None:
        """Disarm what has not happened yet, and wait until all processes are up again."""
        self._armed = None
        if self._happening is not None:
            await self._happening
        for process in self.processes.values():
            process.release()
            await process.up.wait()

    async def _happen(self, process: Supervised) -> None:
        await self._before()
        process.kill()
        await process.down.wait()
