"""Interfaces between a cache and its servers: `Routes` finds the server that holds a key, `Topology` opens the routes.

A cache asks its `Routes` for the `Session` that holds a key, and sends its command there. With one server (and behind
Sentinel) that is always the same session, which is its own `Routes`; in a cluster it is one session per node. A reply that
refuses a command may name a detour: in each of these cases the command did not run, so it can be sent again.
"""

import asyncio
from typing import Protocol

from hiredis import ReplyError

from oncegate.cache.redis.connection.server import Detour, Session
from oncegate.cache.redis.connection.withdrawal import Withdrawal

MOST_TRIES = 6
"""How often one command is sent before its last refusal counts."""


class Routes(Protocol):
    """Which server holds which key, on one event loop: ``loop``."""

    loop: asyncio.AbstractEventLoop
    only: Session | None
    """The session to the server that holds all keys; ``None`` where there are several."""

    def holder(self, key: bytes) -> Session | None:
        """The session to the server that holds ``key``, where that is known without a look-up."""
        ...

    async def locate(self, key: bytes, deadline: float) -> Session:
        """The same, looked up if need be. Raises `CacheUnavailable`."""
        ...

    async def detour(
        self, refusal: ReplyError, key: bytes, refused_by: Session, tries: int, deadline: float
    ) -> Detour | None:
        """Where to send a command that ``refused_by`` has refused, and that was sent ``tries`` times; ``None``: nowhere."""
        ...

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Give back a claim that has no caller any more."""
        ...

    def resume_withdrawing(self) -> None:
        """See to it that what waits to be withdrawn is withdrawn."""
        ...

    async def sessions(self, deadline: float) -> list[Session]:
        """One for each server that holds keys. Raises `CacheUnavailable` where they can't be found out."""
        ...

    async def guard(self) -> None:
        """Have all connections closed with the loop. Only the first call does anything."""
        ...

    async def settle(self) -> None:
        """Wait, for up to one time-out, until all that was sent is answered and nothing is left to be withdrawn."""
        ...

    def close(self) -> None:
        """Cut the connections, without warnings; also when the loop is closed already. Never raises."""
        ...

    async def aclose(self) -> None:
        """Close, and wait until the transports have."""
        ...


class Topology(Protocol):
    """What a cache's URL names, not bound to an event loop yet."""

    def open(self) -> Routes:
        """The routes for the running loop. Connects on first use."""
        ...
