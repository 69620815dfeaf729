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
        self._changed = asyncio.Condition()

    async def enter(self) -> None:
        """Enter beside others, as soon as no command is alone or waits to be."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._taken)
            self._inside += 1

    async def alone(self) -> bool:
        """Once entered, wait for all others to leave, `PATIENCE` at most. False: another is alone, or waits to be."""
        async with self._changed:
            if self._taken:
                return False
            self._taken = True
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._changed.wait_for(lambda: self._inside == 1)
            except TimeoutError:
                return True
            except BaseException:  # a cancellation too: nothing else would reset it
                self._taken = False
                self._changed.notify_all()
                raise
        return True

    async def leave(self, *, alone: bool) -> None:
        """Leave again."""
        async with self._changed:
            self._inside -= 1
            if alone:
                self._taken = False
            self._changed.notify_all()
