"""Lets a worker execute a suspect command alone, and all others side by side.

A command whose last attempt ended with its process may have killed it, or only have run beside the one that did. It is a
suspect: nothing else runs while it does, so that if it kills the process again, no other command loses an attempt.
"""

import asyncio

PATIENCE = 10.0
"""Seconds to wait for the others to end: a handler that hangs must not hold up all that come after."""


class Alone:
    """A gate for many commands at once, or one `alone`. For one event loop; commands that wait have claimed nothing yet."""

    def __init__(self) -> None:
        self._inside = 0
        self._taken = False
        self._news = asyncio.Event()
        """Another one has left."""

    async def enter(self) -> None:
        """Enter beside others, as soon as no command is alone or waits to be."""
        while self._taken:
            await self._news.wait()
        self._inside += 1

    async def alone(self) -> bool:
        """Once entered, wait for all others to leave, `PATIENCE` at most. False: another is alone, or waits to be."""
        if self._taken:
            return False
        self._taken = True
        try:
            async with asyncio.timeout(PATIENCE):
                while self._inside > 1:
                    await self._news.wait()
        except TimeoutError:
            return True
        except BaseException:  # a cancellation too: nothing else would reset it
            self._taken = False
            self._wake()
            raise
        return True

    def leave(self, *, alone: bool) -> None:
        """Leave again."""
        self._inside -= 1
        if self._taken:  # else nobody waits
            self._taken = not alone
            self._wake()

    def _wake(self) -> None:
        """Wake all that wait; each checks its own condition."""
        news, self._news = self._news, asyncio.Event()
        news.set()
