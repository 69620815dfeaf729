"""Closes connections when the event loop that opened them ends."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable


class LoopGuard:
    """Calls ``close`` when its event loop ends.

    An asynchronous generator that is suspended in the loop is closed by ``shutdown_asyncgens``, which every way of
    running a loop calls last, while transports can still be closed cleanly.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._generator: AsyncGenerator[None, None] | None = None

    async def arm(self) -> None:
        """Watch over the running loop. Only the first call does anything."""
        if self._generator is None:
            self._generator = self._wait_for_the_end()
            await self._generator.asend(None)

    async def aclose(self) -> None:
        """Close now, and give the transports time to do so."""
        if self._generator is None:
            self._close()
        else:
            await self._generator.aclose()

    async def _wait_for_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            with contextlib.suppress(RuntimeError):  # a loop that was closed under us takes no more callbacks
                self._close()
            for _ in range(3):  # a transport closes itself in the loop's next rounds: TLS needs two
                await asyncio.sleep(0)
