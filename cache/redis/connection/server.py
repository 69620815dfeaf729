"""A session: a cache's connections to one server on one event loop, and the task that withdraws claims over them.

Connections belong to the loop that opened them, and some programs make a loop per request (test clients do). So each loop
has its own session, and a session ends with its loop (`LoopGuard`).
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from hiredis import ReplyError

from oncegate.cache.errors import CacheError
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.connect import Opener, Peer
from oncegate.cache.redis.connection.pipe import Bounds
from oncegate.cache.redis.connection.reconnecting import PAUSES, SharedConnection
from oncegate.cache.redis.connection.withdrawal import Elsewhere, Withdrawal, Withdrawals, nowhere
from oncegate.cache.redis.scripts import pack

log = logging.getLogger(__name__)

MOST_TRIES = 6
"""How often one command is sent before its last refusal counts."""
LONGEST_HOLD = 5.0
"""Seconds that a failover, once announced, may take; then whoever is the master is used again."""

_PING = pack(b"PING")
_DBSIZE = pack(b"DBSIZE")
_OTHER_MASTER = "Redis has another master now"


@dataclass(frozen=True, slots=True)
class Detour:
    """The server for a command that was refused; ``asking`` if the command needs ``ASKING`` before it on that node."""

    session: "Session"
    asking: bool = False


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


class Session:
    """The connections to one server: ``claims`` for everything small, ``bodies`` for what would hold up the small ones.

    It is the `Routes` of a topology of one: all keys are here. As a node of a cluster it passes claims that moved to
    ``elsewhere``, and calls ``on_stuck`` when it can't withdraw.
    """

    def __init__(
        self,
        opener: Opener,
        bounds: Bounds,
        timeout: float,
        withdrawals: Withdrawals,
        *,
        elsewhere: Elsewhere = nowhere,
        on_stuck: Callable[[], None] = lambda: None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.only: Session | None = self
        """The session to the server that holds all keys; ``None`` where there are several."""
        self.place = opener.place
        self.claims = SharedConnection(opener, bounds, timeout, on_open=self._on_open, on_broken=self._on_broken)
        self.bodies = SharedConnection(opener, bounds, timeout, on_open=self._on_open, on_broken=self._on_broken)
        self._timeout = timeout
        self._withdrawals = withdrawals
        self._elsewhere = elsewhere
        self._on_stuck = on_stuck
        self._withdrawing: asyncio.Task[None] | None = None
        self._closed = False
        self._opener = opener
        self._watches: list[asyncio.Task[None]] = []
        self._guard = LoopGuard(self.close)
        self._server: Peer | None = None
        """The server connected to last."""
        self._counting: asyncio.Task[None] | None = None

    # -- as the routes of a topology of one

    def holder(self, _key: bytes) -> "Session":
        """The session to the server that holds a key, where that is known without a look-up."""
        return self

    async def locate(self, _key: bytes, _deadline: float) -> "Session":
        """The same, looked up if need be. Raises `CacheUnavailable`."""
        return self

    async def detour(
        self, refusal: ReplyError, _key: bytes, _refused_by: "Session", _tries: int, _deadline: float
    ) -> Detour | None:
        """The server for a command that was refused, and sent ``_tries`` times so far; ``None``: nowhere.

        Here there is no detour, but a server that turned out to be a replica is left, and looked up anew.
        """
        if faults.reply_class(refusal) in faults.REPLICA_REPLIES:
            for connection in (self.claims, self.bodies):
                if connection.pipeline is not None:
                    connection.pipeline.fail(faults.REPLICA)
        return None

    async def sessions(self, _deadline: float) -> "list[Session]":
        """One for each server that holds keys. Raises `CacheUnavailable` where they can't be found out."""
        return [self]

    async def guard(self) -> None:
        """Have all connections closed with the loop. Only the first call does anything."""
        await self._guard.arm()
        if not self._watches:
            self._watches = [self.loop.create_task(each) for each in self._opener.watches(self._on_place)]

    async def aclose(self) -> None:
        """Close, and wait until the transports have."""
        await self._guard.aclose()
        await asyncio.gather(*self._watches, return_exceptions=True)

    # -- as the connections to one server

    @property
    def idle(self) -> bool:
        """Whether nothing is unanswered and nothing waits to be withdrawn."""
        return self._withdrawing is None and self.claims.idle and self.bodies.idle

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Give back a claim that has no caller any more."""
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
                for pipeline in (self.claims.pipeline, self.bodies.pipeline):
                    if pipeline is not None:  # replies come in order: once this one's is here, all before it are
                        await pipeline.send(_PING, self.loop.time() + self._timeout)
                if self._withdrawing is not None:
                    await asyncio.wait((self._withdrawing,))

    def close(self) -> None:
        """Cut the connections, without warnings; also when the loop is closed already. Never raises."""
        self._closed = True  # what is lost by closing is withdrawn by the cache's next session
        with contextlib.suppress(RuntimeError):  # a loop that was closed under us takes no more callbacks
            for task in (self._withdrawing, self._counting, *self._watches):
                if task is not None:
                    task.cancel()
        for connection in (self.claims, self.bodies):
            with contextlib.suppress(RuntimeError):
                connection.close()

    def _on_open(self, peer: Peer) -> None:
        before, self._server = self._server, peer
        if before is not None and None not in (before.run_id, peer.run_id) and before.run_id != peer.run_id:
            self._counting = self.loop.create_task(self._log_other_server(peer))
        # Behind Sentinel, the last to be opened knows best who the master is. What the other one still talks to may be an
        # old master that takes writes until it is demoted, and then forgets them.
        for connection in (self.claims, self.bodies):
            if (
                connection.pipeline is not None
                and connection.peer is not None
                and connection.peer.run_id != peer.run_id
            ):
                connection.pipeline.fail(_OTHER_MASTER)
            connection.retry_now()

    async def _log_other_server(self, peer: Peer) -> None:
        """Log that the server is another process than before, and how much it holds: what it has lost is executed again."""
        count: object = None
        pipeline = self.claims.pipeline or self.bodies.pipeline
        if pipeline is not None:
            with contextlib.suppress(CacheError):
                count = await pipeline.send(_DBSIZE, self.loop.time() + self._timeout)
        if count == 0:
            log.error(
                "Redis at %s is another one now, and empty: what was executed before is executed again", peer.place
            )
        else:
            holds = f"; it holds {count} keys" if isinstance(count, int) else ""
            log.warning("Redis at %s is another one now, after a restart or a failover%s", peer.place, holds)

    def _on_place(self, place: str | None) -> None:
        for connection in (self.claims, self.bodies):
            if place is None:
                connection.hold(LONGEST_HOLD, "a failover of Redis is under way")
                continue
            if connection.pipeline is not None and connection.peer is not None and connection.peer.place != place:
                connection.pipeline.fail(_OTHER_MASTER)
            connection.retry_now()

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
                self._on_stuck()
                failures += 1
                await asyncio.sleep(PAUSES.pause(failures))
        finally:
            self._withdrawing = None

    async def _settle_batch(self) -> bool:
        deadline = self.loop.time() + self._timeout
        try:
            pipeline = await self.claims.ready(deadline)
        except CacheError:
            return False
        peer = self.claims.peer
        return peer is not None and await self._withdrawals.settle(pipeline, peer, deadline, self._elsewhere)


class OneServer:
    """The topology of one server at a time: a Redis by itself, or whichever Sentinel says is the master."""

    def __init__(self, opener: Opener, bounds: Bounds, timeout: float) -> None:
        self.withdrawals = Withdrawals()
        self._opener = opener
        self._bounds = bounds
        self._timeout = timeout

    def open(self) -> Session:
        """The routes for the running loop. Connects on first use."""
        return Session(self._opener, self._bounds, self._timeout, self.withdrawals)
