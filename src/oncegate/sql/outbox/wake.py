"""Wakes the relays of this process when a session that has added messages commits."""

import asyncio
import contextlib
from typing import Final
from weakref import WeakSet

from sqlalchemy import event
from sqlalchemy.orm import Session

_ADDED: Final = "oncegate.sql.added"


class Wake:
    """An event that ends a relay's pause, in the event loop that it is made in; `set` from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        _WAKES.add(self)

    def set(self) -> None:
        """End the pause that is waited for, or the next one."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float) -> None:
        """Until it is set, or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        self._event.clear()


_WAKES: Final[WeakSet[Wake]] = WeakSet()


def wake_after_commit(session: Session) -> None:
    """The session has added a message in its transaction."""
    session.info[_ADDED] = True


@event.listens_for(Session, "after_commit")
def _on_commit(session: Session) -> None:
    if session.info.get(_ADDED) and not session.in_nested_transaction():  # a savepoint commits nothing
        del session.info[_ADDED]
        for wake in list(_WAKES):
            wake.set()
