"""The topology of a Redis Cluster: one session per node, and the table of slots and their owners.

Strategy. The table is only a hint: a node refuses a command for a slot that it doesn't own. So a wrong table costs a
redirection, never a wrong answer. ``MOVED``, from the slot's last owner, corrects the slot at once and has the whole table
fetched again; ``ASK`` (the slot is being moved, and this key has moved already) sends one command to the other node and
changes nothing. While a node can't be reached, the table is fetched again and again: a replica may have taken its place.
Calls for its slots fail meanwhile; those for other slots go on over their own connections.

Claims whose reply was lost are withdrawn where their slot is at that time (`oncegate.cache.redis.connection.withdrawal` says
why that is safe). What is to be withdrawn outlives the event loop, so it is kept here by node, and shared by all loops.
"""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Mapping

from hiredis import ReplyError
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from oncegate.cache.backoff import Backoff
from oncegate.cache.errors import CacheError, CacheUnavailable, CacheUnsupported
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.connect import RedisConnector
from oncegate.cache.redis.connection.pipe import Bounds, Reply
from oncegate.cache.redis.connection.server import MOST_TRIES, Detour, LoopGuard, Session
from oncegate.cache.redis.connection.withdrawal import Withdrawal, Withdrawals
from oncegate.cache.redis.scripts import pack
from oncegate.cache.redis.url import Server

log = logging.getLogger(__name__)

LOOK_UP_PAUSE = 0.1
"""Seconds between two look-ups of the table that nobody waits for."""
Table = list[tuple[int, int, Server]]
"""Ranges of slots, first and last, each with the master that owns them."""
_PAUSES = Backoff(0.02, 1.0, least=0.5)
"""Seconds until a command that no node can run right now is sent again; twice as long each time."""
AT_ONCE = 5
"""Nodes that the table is fetched from at the same time; the first answer counts."""


class Cluster:
    """The topology of a cluster. ``seeds`` are nodes to begin with; ``connector`` knows how to log in to each."""

    def __init__(self, seeds: tuple[Server, ...], connector: RedisConnector, bounds: Bounds, timeout: float) -> None:
        self.seeds = seeds
        self.connector = connector
        self.bounds = bounds
        self.timeout = timeout
        self.withdrawals: defaultdict[Server, Withdrawals] = defaultdict(Withdrawals)

    def open(self) -> "ClusterRoutes":
        """See `OneServer.open`."""
        return ClusterRoutes(self)


class ClusterRoutes:
    """Which node of a cluster holds which key, on one event loop: it does what a `Session` does for a single server."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.loop = asyncio.get_running_loop()
        self.only: Session | None = None
        """See `Session.only`."""
        self._nodes: dict[Server, Session] = {}
        self._slots: list[Session | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._owners: set[Session] = set()
        self._fetching: asyncio.Task[CacheError | None] | None = None
        self._fetch_not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._guard = LoopGuard(self.close)

    # -- the holder of a key

    def holder(self, key: bytes) -> Session | None:
        """See `Session.holder`."""
        session = self._slots[key_slot(key)]
        if session is not None and session.claims.pipeline is None:
            self._fetch_soon()
        return session

    async def locate(self, key: bytes, deadline: float) -> Session:
        """See `Session.locate`."""
        try:
            await self._fetched(deadline)
        except CacheUnsupported as error:
            raise CacheUnavailable(str(error)) from error  # final for `check`; for a call, one more way to be down
        session = self.holder(key)
        if session is None:
            raise CacheUnavailable("no node of the Redis Cluster serves this key's slot")
        return session

    async def sessions(self, deadline: float) -> list[Session]:
        """See `Session.sessions`."""
        await self._fetched(deadline)
        return sorted(self._owners, key=lambda session: session.place)

    async def detour(
        self, refusal: ReplyError, key: bytes, refused_by: Session, tries: int, deadline: float
    ) -> Detour | None:
        """See `Session.detour`."""
        kind = faults.reply_class(refusal)
        if tries == MOST_TRIES:
            return None
        if kind in faults.REDIRECTIONS:
            return self._redirected(kind, refusal, key, refused_by)
        if kind not in faults.UNDECIDED:
            return None
        self._fetch_soon()
        pause = _PAUSES.pause(tries)
        if self.loop.time() + pause > deadline:
            return None
        await asyncio.sleep(pause)
        return Detour(self.holder(key) or refused_by)

    def _redirected(self, kind: str, refusal: ReplyError, key: bytes, refused_by: Session) -> Detour | None:
        target = faults.redirection(refusal)
        if target is None:
            return None
        server = (target[0] or refused_by.place.rpartition(":")[0].strip("[]"), target[1])
        session = self._node(server)
        if kind == "ASK":
            return Detour(session, asking=True)
        self._slots[key_slot(key)] = session
        self._fetch_soon(first=server)
        return Detour(session)

    def _node(self, server: Server) -> Session:
        session = self._nodes.get(server)
        if session is None:
            cluster = self._cluster
            session = self._nodes[server] = Session(
                cluster.connector.to(*server),
                cluster.bounds,
                cluster.timeout,
                cluster.withdrawals[server],
                elsewhere=lambda claim, reply: self._elsewhere(claim, reply, server),
                on_stuck=self._fetch_soon,
            )
        return session

    # -- the table

    async def _fetched(self, deadline: float) -> None:
        """Have the table fetched, and wait for it. Raises `CacheUnavailable`, or `CacheUnsupported`."""
        fetching = self._fetching or self._start_fetching(None)
        await asyncio.wait((fetching,), timeout=max(0.0, deadline - self.loop.time()))
        if not fetching.done():
            raise CacheUnavailable("no node of the Redis Cluster answered in time who owns what")
        fault = None if fetching.cancelled() else fetching.result()
        if isinstance(fault, CacheUnsupported) or (fault is not None and not self._owners):
            raise type(fault)(str(fault))

    def _fetch_soon(self, first: Server | None = None) -> None:
        if self._fetching is None and self._timer is None and not self._closed:
            pause = max(0.0, self._fetch_not_before - self.loop.time())
            self._timer = self.loop.call_later(pause, self._fetch_now, first)

    def _fetch_now(self, first: Server | None) -> None:
        self._timer = None
        if self._fetching is None and not self._closed:
            self._start_fetching(first)

    def _start_fetching(self, first: Server | None) -> asyncio.Task[CacheError | None]:
        if self._closed:
            raise CacheUnavailable("the cache was closed")
        self._fetch_not_before = self.loop.time() + LOOK_UP_PAUSE
        self._fetching = self.loop.create_task(self._fetch_table(first))
        return self._fetching

    async def _fetch_table(self, first: Server | None) -> CacheError | None:
        """Never raises a `CacheError` but returns it: it is for as many callers as there are, or for none."""
        try:
            deadline = self.loop.time() + self._cluster.timeout
            # ``first`` is known to have the newest table; any other node could have one that is older than ours.
            nodes = [first] if first is not None else self._candidates()
            answer = await fetch_table({server: self._node(server) for server in nodes}, deadline)
            if isinstance(answer, CacheError):
                return answer
            self._apply(answer)
            return None
        finally:
            self._fetching = None

    def _candidates(self) -> list[Server]:
        """The nodes to fetch the table from: connected ones before others, in any order."""
        known = list({*self._nodes, *self._cluster.seeds})
        random.shuffle(known)
        return sorted(known, key=lambda server: self._node(server).claims.pipeline is None)[:AT_ONCE]

    def _apply(self, table: Table) -> None:
        slots: list[Session | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, server in table:
            slots[first : last + 1] = [self._node(server)] * (last + 1 - first)
        self._slots = slots
        self._owners = {session for session in slots if session is not None}
        for server, withdrawals in list(self._cluster.withdrawals.items()):
            self._bring_home(server, withdrawals)
        self.resume_withdrawing()
        for server, session in list(self._nodes.items()):
            if session not in self._owners and session.idle:
                self._nodes.pop(server).close()

    # -- withdrawals

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """See `Session.withdraw`."""
        session = self.holder(withdrawal.key) or next(iter(self._nodes.values()))
        session.withdraw(withdrawal)

    def resume_withdrawing(self) -> None:
        """See `Session.resume_withdrawing`."""
        for server, withdrawals in list(self._cluster.withdrawals.items()):
            if len(withdrawals):
                self._node(server).resume_withdrawing()

    def _bring_home(self, server: Server, withdrawals: Withdrawals) -> None:
        here = self._nodes.get(server)
        for claim in withdrawals.leave(lambda claim: self._slots[key_slot(claim.key)] in (here, None)):
            self.withdraw(claim)
        if here not in self._owners:
            withdrawals.forget_broken()

    def _elsewhere(self, claim: Withdrawal, reply: ReplyError, server: Server) -> bool:
        kind = faults.reply_class(reply)
        detour = self._redirected(kind, reply, claim.key, self._node(server))
        if detour is None:
            return False
        detour.session.withdraw(Withdrawal(claim.key, claim.token, claim.until, detour.asking))
        return True

    # -- all nodes at once

    async def guard(self) -> None:
        """See `Session.guard`."""
        await self._guard.arm()

    async def settle(self) -> None:
        """See `Session.settle`."""
        await asyncio.gather(*(session.settle() for session in list(self._nodes.values())))

    def close(self) -> None:
        """See `Session.close`."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._fetching is not None and not self.loop.is_closed():
            self._fetching.cancel()
        for session in list(self._nodes.values()):
            session.close()

    async def aclose(self) -> None:
        """See `Session.aclose`."""
        await self._guard.aclose()


_CLUSTER_SLOTS = pack(b"CLUSTER", b"SLOTS")


async def fetch_table(nodes: Mapping[Server, Session], deadline: float) -> Table | CacheError:
    """The first table that any of ``nodes`` sends; or why there is none."""
    fetches = [asyncio.ensure_future(_fetch(server, session, deadline)) for server, session in nodes.items()]
    fault: CacheError = CacheUnavailable("no node of the Redis Cluster can be reached")
    try:
        for answer in asyncio.as_completed(fetches):
            found = await answer
            if not isinstance(found, CacheError):
                return found
            fault = found
    finally:
        for each in fetches:
            each.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)
    return fault


async def _fetch(server: Server, session: Session, deadline: float) -> Table | CacheError:
    try:
        pipeline = await session.claims.ready(deadline)
        reply = await pipeline.send(_CLUSTER_SLOTS, deadline)
    except CacheError as error:
        return error
    if isinstance(reply, ReplyError):
        if faults.reply_class(reply) == "ERR":
            return CacheUnsupported(f"Redis at {session.place} is not part of a cluster: use redis://")
        return faults.of_reply(reply)
    try:
        table = read_table(reply, server)
    except (ValueError, TypeError, LookupError, AttributeError):
        return CacheUnavailable(f"what answers at {session.place} does not answer as a Redis Cluster does")
    return table or CacheUnavailable(f"Redis at {session.place} knows of no slots: is the cluster set up?")


def read_table(reply: Reply, source: Server) -> Table:
    """Parse a reply to ``CLUSTER SLOTS``. A node that does not know its own host leaves it out: it is the one that replied."""
    table = []
    for first, last, master, *_ in reply:
        host = master[0].decode() if master[0] else ""
        if host != "?":  # a host name that was never announced
            table.append((first, last, (host or source[0], master[1])))
    return table
