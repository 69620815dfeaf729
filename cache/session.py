"""What a cache has open on one event loop: its connections, and the task that withdraws claims over them.

Connections belong to the loop that opened them, and some programs make a loop per request (test clients do). So each loop
has its own session, and a session ends with its loop: an asynchronous generator that stands still inside it is closed by
``shutdown_asyncgens``, which every way of running a loop calls last, while transports can still be closed cleanly.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable

from oncegate.cache.dial import Dialler, Peer
from oncegate.cache.errors import CacheError
from oncegate.cache.lane import FIRST_PAUSE, LONGEST_PAUSE, Lane
from oncegate.cache.link import Bounds
from oncegate.cache.scripts import pack
from oncegate.cache.withdrawal import Withdrawal, Withdrawals

_PING = pack(b"PING")


class Session:
    """The connections of one loop: ``claims`` for everything small, ``bodies`` for what would hold up the small ones."""

    def __init__(self, dialler: Dialler, bounds: Bounds, timeout: float, withdrawals: Withdrawals) -> None:
        self.loop = asyncio.get_running_loop()
        self.claims = Lane(dialler, bounds, timeout, self._on_broken)
        self.bodies = Lane(dialler, bounds, timeout, self._on_broken)
        self._timeout = timeout
        self._withdrawals = withdrawals
        self._withdrawing: asyncio.Task[None] | None = None
        self._closed = False
        self._guard: AsyncGenerator[None, None] | None = None

    async def guard(self) -> None:
        """Have this session closed with its loop. Only the first call does anything."""
        if self._guard is None:
            self._guard = _close_at_end(self.close)
            await self._guard.asend(None)

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Give back a claim that nobody wants."""
        self._withdrawals.add(withdrawal)
        self.resume_withdrawing()

    def resume_withdrawing(self) -> None:
        """See to it that what waits to be withdrawn is withdrawn."""
        if self._withdrawing is None and len(self._withdrawals) and not self._closed:
            self._withdrawing = self.loop.create_task(self._withdraw())

    async def settle(self) -> None:
        """Wait, for up to one time-out, until all that was sent is answered and nothing is left to be withdrawn."""
        with contextlib.suppress(TimeoutError, CacheError):
            async with asyncio.timeout(self._timeout):
                for link in (self.claims.link, self.bodies.link):
                    if link is not None:  # replies come in order: this one's says that all before it are there
                        await link.send(_PING, self.loop.time() + self._timeout)
                if self._withdrawing is not None:
                    await asyncio.wait((self._withdrawing,))

    def close(self) -> None:
        """Cut the connections, without warnings; also when the loop is closed already. Never raises."""
        self._closed = True  # what is lost by closing is withdrawn by the cache's next session
        with contextlib.suppress(RuntimeError):  # a loop that was closed under us takes no more callbacks
            if self._withdrawing is not None:
                self._withdrawing.cancel()
        for lane in (self.claims, self.bodies):
            with contextlib.suppress(RuntimeError):
                lane.close()

    async def end(self) -> None:
        """Close, and wait until the transports have."""
        self.close()
        if self._guard is not None:
            await self._guard.aclose()

    def _on_broken(self, peer: Peer) -> None:
        self._withdrawals.kill(peer)
        self.resume_withdrawing()

    async def _withdraw(self) -> None:
        failures = 0
        try:
            while len(self._withdrawals):
                if await self._settle_batch():
                    failures = 0
                    continue
                await asyncio.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2**failures) * random.uniform(0.5, 1.0))
                failures = min(failures + 1, 16)
        finally:
            self._withdrawing = None

    async def _settle_batch(self) -> bool:
        deadline = self.loop.time() + self._timeout
        try:
            link = await self.claims.ready(deadline)
        except CacheError:
            return False
        peer = self.claims.peer
        return peer is not None and await self._withdrawals.settle(link, peer, deadline)


async def _close_at_end(close: Callable[[], None]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        close()
        for _ in range(3):  # a transport closes itself in the loop's next rounds: TLS needs two
            await asyncio.sleep(0)
