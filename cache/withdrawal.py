"""Claims that nobody wants any more, given back: the answer to "the reply was lost, did the claim happen?".

A claim whose caller left before the reply came may have been made. Left alone it would block its key until the lease
lapses, and then read as an attempt of unknown outcome, which never ran. So it is released with its own token: that undoes
the claim if it happened, does nothing if it did not, and can't touch anybody else's.

One order must be kept: the release must not reach Redis before the claim does. Where the reply has come, it has happened.
Where the connection broke, the claim may still sit in Redis's socket; so that connection is killed by its id first
(`CLIENT KILL ID`), and only then are its claims released. A connection's id means something to one server process only,
so a kill is sent only where the run id is still the same; otherwise the old process, and what was on its way to it, is gone.
"""

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass

from hiredis import ReplyError

from oncegate.cache import faults
from oncegate.cache.dial import Peer
from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.link import Link, Reply, forget
from oncegate.cache.scripts import RELEASE, pack

log = logging.getLogger(__name__)

MOST = 10_000
"""Withdrawals that are kept; beyond that a claim is left to lapse, which blocks its key but runs nothing twice."""
BATCH = 256


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A claim to release, worth trying until ``until`` (monotonic, s): then the record is gone by itself."""

    key: bytes
    token: bytes
    until: float


class Withdrawals:
    """What is still to be withdrawn. It belongs to the cache, not to a connection or an event loop, and outlives both."""

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

    async def settle(self, link: Link, peer: Peer, deadline: float) -> bool:
        """Withdraw one batch over ``link``. False: not all of it was acknowledged; that is kept for the next attempt."""
        for old in list(self._broken):
            if peer.run_id is None or old.run_id != peer.run_id:
                del self._broken[old]
        broken = list(self._broken)
        batch = self._take(BATCH)
        try:
            # One connection runs them in this order, so the kills are done before the first release.
            kills = [_send(link, pack(b"CLIENT", b"KILL", b"ID", b"%d" % old.client_id), deadline) for old in broken]
            # Rare enough to load it each time: nobody else would notice a NOSCRIPT here.
            _send(link, RELEASE.load, deadline)
            releases = [_send(link, RELEASE.call(claim.key, claim.token), deadline) for claim in batch]
            for old, kill in zip(broken, kills, strict=True):
                _tell_refused(await kill)
                self._broken.pop(old, None)
            for release in releases:
                if not _acknowledged(await release, link):
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


def _send(link: Link, command: bytes, deadline: float) -> asyncio.Future[Reply]:
    future = link.send(command, deadline)
    forget(future)  # when an earlier one fails, nobody waits for this one any more
    return future


def _acknowledged(reply: Reply, link: Link) -> bool:
    if not isinstance(reply, ReplyError):
        return True
    kind = faults.reply_class(reply)
    if kind == "READONLY":
        link.fail(faults.REPLICA)
    return kind == "WRONGTYPE"  # not a record any more, and it must not hold up those behind it


def _tell_refused(reply: Reply) -> None:
    if isinstance(reply, ReplyError):
        kind = faults.reply_class(reply)
        log.warning(
            "Redis refused CLIENT KILL (%s): a claim on a broken connection may be made after its withdrawal", kind
        )
