"""Who is executed together with others in a worker, and who alone.

A command whose last attempt ended with its process may have killed it, or only have been beside the one that did. It is a
suspect: while it is executed nothing else is, so that what it kills next is itself, and no neighbour loses an attempt.
"""

import asyncio

PATIENCE = 10.0
"""Seconds to wait for the others to end: a handler that hangs must not hold up all that come after."""


class Alone:
    """Many may be in at once, or one `alone`. All of one event loop; those that wait have claimed nothing yet."""

    def __init__(self) -> None:
        self._inside = 0
        self._taken = False
        self._changed = asyncio.Condition()

    async def enter(self) -> None:
        """Be in, as soon as nobody is alone, or waits for it."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._taken)
            self._inside += 1

    async def alone(self) -> bool:
        """Who is in waits for all others to leave, `PATIENCE` at most. False: another one is alone, or is about to be."""
        async with self._changed:
            if self._taken:
                return False
            self._taken = True
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._changed.wait_for(lambda: self._inside == 1)
            except TimeoutError:
                return True
            except BaseException:  # a cancellation too: nobody else would put it right
                self._taken = False
                self._changed.notify_all()
                raise
        return True

    async def leave(self, *, alone: bool) -> None:
        """Be out again."""
        async with self._changed:
            self._inside -= 1
            if alone:
                self._taken = False
            self._changed.notify_all()
