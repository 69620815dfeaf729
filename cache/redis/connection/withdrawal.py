"""Withdraws claims whose caller is gone: the answer to "the reply was lost, did the claim happen?".

A claim whose caller left before the reply came may have been made. Left alone it would block its key until the lease
lapses, and then read as an attempt of unknown outcome, which never ran. So it is released with its own token: that undoes
the claim if it happened, does nothing if it did not, and can't touch another's.

One order must be kept: the release must not reach Redis before the claim does. Where the reply has come, it has happened.
Where the connection broke, the claim may still sit in Redis's socket; so that connection is killed by its id first
(`CLIENT KILL ID`), and only then are its claims released. A connection's id means something to one server process only,
so a kill is sent only where the run id is still the same. Where it differs, there are two cases. The server was restarted:
the old process, and what was on its way to it, is gone. Or another server is the master now: the old one may live and still
make the claim, but nothing of it can reach the new one any more. A server that became master takes nothing from its old
master, and an old master that comes back drops what the new one does not know. So the release on the new one is final: it
undoes the claim if it was replicated in time, and otherwise there is nothing to undo.

In a cluster, too, the release goes to the node that holds the slot now. If the slot was moved away by resharding, the old owner
refuses a claim that arrives late (`MOVED`, or `ASK` while it is being moved), and one that it had made has moved along.

What can't be guaranteed is in docs/decisions/0008-failover.md: a claim that was made on an old master, and answered,
may not have reached the new one.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hiredis import ReplyError

from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.connect import Peer
from oncegate.cache.redis.connection.pipe import PipelinedConnection, Reply, forget
from oncegate.cache.redis.scripts import ASKING, RELEASE, pack

log = logging.getLogger(__name__)

MOST = 10_000
"""Withdrawals that are kept; beyond that a claim is left to lapse, which blocks its key but runs nothing twice."""
BATCH = 256


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A claim to release, worth trying until ``until`` (monotonic, s): then the record is gone by itself.

    ``asking``: its slot is on its way to the node that it is to be released on.
    """

    key: bytes
    token: bytes
    until: float
    asking: bool = False


Elsewhere = Callable[[Withdrawal, ReplyError], bool]
"""Takes over a withdrawal whose key another node has, as the reply says. False: it does not know that node."""


def nowhere(withdrawal: Withdrawal, reply: ReplyError) -> bool:  # noqa: ARG001 - it is an `Elsewhere`
    """Where there is one server only, no other takes withdrawals over."""
    return False


class Withdrawals:
    """The claims still to be withdrawn. They belong to the cache, not to a connection or an event loop, and outlive both."""

    def __init__(self) -> None:
        self._claims: deque[Withdrawal] = deque()
        self._broken: dict[Peer, None] = {}

    def __len__(self) -> int:
        return len(self._claims) + len(self._broken)

    def add(self, withdrawal: Withdrawal) -> None:
        """Withdraw a claim. It must have been answered, or its connection's peer be given to `kill`."""
        if len(self._claims) >= MOST:
            log.warning("too many claims wait to be withdrawn; one more is left to lapse")
            return
        self._claims.append(withdrawal)

    def kill(self, peer: Peer) -> None:
        """Before anything else is withdrawn, make sure that nothing of this broken connection can still arrive."""
        self._broken[peer] = None

    def leave(self, stays: Callable[[Withdrawal], bool]) -> list[Withdrawal]:
        """Take out the withdrawals whose slots have another owner now."""
        leaving = [claim for claim in self._claims if not stays(claim)]
        self._claims = deque(claim for claim in self._claims if stays(claim))
        return leaving

    def forget_broken(self) -> None:
        """Kill nothing here any more: this server holds no keys now."""
        self._broken.clear()

    async def settle(self, pipeline: PipelinedConnection, peer: Peer, deadline: float, elsewhere: Elsewhere) -> bool:
        """Withdraw one batch over ``pipeline``. False: not all of it was acknowledged; that is kept for the next attempt."""
        for old in list(self._broken):
            if peer.run_id is None or old.run_id != peer.run_id:
                del self._broken[old]
        broken = list(self._broken)
        batch = self._take(BATCH)
        try:
            # One connection runs them in this order, so the kills are done before the first release.
            kills = [
                _send(pipeline, pack(b"CLIENT", b"KILL", b"ID", b"%d" % old.client_id), deadline) for old in broken
            ]
            # Rare enough to load it each time: a NOSCRIPT would not be noticed here.
            _send(pipeline, RELEASE.load, deadline)
            releases = [_release(pipeline, claim, deadline) for claim in batch]
            for old, kill in zip(broken, kills, strict=True):
                _log_refused(await kill)
                self._broken.pop(old, None)
            for release in releases:
                reply = await release
                if not _acknowledged(reply, pipeline) and not _moved(reply, batch[0], elsewhere):
                    return False
                batch.pop(0)
        except CacheUnavailable:
            return False
        finally:
            self._claims.extendleft(reversed(batch))
        return True

    def _take(self, most: int) -> list[Withdrawal]:
        """Out of the queue while they are on their way: the loops of several threads may be settling."""
        now = time.monotonic()
        taken = [self._claims.popleft() for _ in range(min(most, len(self._claims)))]
        return [claim for claim in taken if claim.until > now]


def _send(pipeline: PipelinedConnection, command: bytes, deadline: float) -> asyncio.Future[Reply]:
    future = pipeline.send(command, deadline)
    forget(future)  # when an earlier one fails, this one is not awaited any more
    return future


def _release(pipeline: PipelinedConnection, claim: Withdrawal, deadline: float) -> asyncio.Future[Reply]:
    call = RELEASE.call(claim.key, claim.token)
    if not claim.asking:
        return _send(pipeline, call, deadline)
    future = pipeline.send_behind(ASKING, call, deadline)
    forget(future)
    return future


def _moved(reply: Reply, claim: Withdrawal, elsewhere: Elsewhere) -> bool:
    return faults.reply_class(reply) in faults.REDIRECTIONS and elsewhere(claim, reply)


def _acknowledged(reply: Reply, pipeline: PipelinedConnection) -> bool:
    if not isinstance(reply, ReplyError):
        return True
    kind = faults.reply_class(reply)
    if kind in faults.REPLICA_REPLIES:
        pipeline.fail(faults.REPLICA)
    return kind == "WRONGTYPE"  # not a record any more, and it must not hold up those behind it


def _log_refused(reply: Reply) -> None:
    if isinstance(reply, ReplyError):
        kind = faults.reply_class(reply)
        log.warning(
            "Redis refused CLIENT KILL (%s): a claim on a broken connection may be made after its withdrawal", kind
        )
