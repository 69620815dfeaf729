"""Withdrawals of claims in doubt: who made them has left, and nothing of them may stay.

Strategy. Each claim carries the instant after which the database doesn't begin it any more, and a statement that waits for a
lock is ended by the server after another time-out: from then on whether it was made can be read, for good. So a withdrawal
waits for that, and is repeated until the database has answered it.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from oncegate.cache import transitions
from oncegate.cache.backoff import Backoff
from oncegate.cache.errors import CacheError
from oncegate.cache.sql.calls import OwnerDecision
from oncegate.cache.sql.rows import Found, Read, Reply, Step

if TYPE_CHECKING:
    from oncegate.cache.sql.line import ClaimCall

log = logging.getLogger("oncegate.cache")

MOST_WITHDRAWALS: Final = 10_000
"""Beyond it a claim in doubt is left to lapse, which blocks its key, but runs nothing twice."""
_AGAIN: Final = Backoff(0.05, 2.0, least=0.5)


class ClaimWithdrawals:
    """The withdrawals of one event loop, each on its way to the rows by ``send``; ``ended`` is called with its key at its end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Step, Callable[[Reply], None]], None],
        ended: Callable[[str], None],
    ) -> None:
        self.count = 0
        self._loop = loop
        self._send = send
        self._ended = ended
        self._is_closed = False

    def begin(self, call: "ClaimCall", timeout: float) -> None:
        """Undo the claim, if it was made or still may be. ``timeout`` is the calls', and so the server's for a lock."""
        if self._is_closed or self.count >= MOST_WITHDRAWALS:
            log.warning(
                "a claim that may have been made is left to lapse: the cache is closed, or too many are withdrawn"
            )
            self._ended(call.decision.key)
            return
        self.count += 1
        self._try(_Withdrawal(call, timeout))

    def close(self) -> None:
        """Begin none any more, and let those under way go."""
        self._is_closed = True

    def _try(self, withdrawal: "_Withdrawal") -> None:
        if monotonic() >= withdrawal.gives_up or self._is_closed:
            self._end(withdrawal)
            return
        withdrawal.begin()
        self._send(Read(withdrawal.decision.key), partial(self._replied, withdrawal))

    def _replied(self, withdrawal: "_Withdrawal", reply: Reply) -> None:
        if isinstance(reply, Found):
            early_ms = 0 if reply.swapped else withdrawal.until_ms - reply.now_ms + 1
            if early_ms > 0:
                self._loop.call_later(early_ms / 1000, self._try, withdrawal)
                return
            try:
                step = withdrawal.decision.found(reply)
            except CacheError:  # unreadable: it is not ours
                step = None
            except Exception:
                log.exception("a claim could not be withdrawn")
                step = None
            if step is None:
                self._end(withdrawal)
            else:
                self._send(step, partial(self._replied, withdrawal))
            return
        withdrawal.tries += 1
        self._loop.call_later(_AGAIN.pause(withdrawal.tries), self._try, withdrawal)

    def _end(self, withdrawal: "_Withdrawal") -> None:
        self.count -= 1
        self._ended(withdrawal.decision.key)


class _Withdrawal:
    """A claim that is to be undone, if it was made: not before ``until_ms``, and no longer than its record lasts."""

    __slots__ = ("_call", "decision", "gives_up", "tries", "until_ms")

    def __init__(self, call: "ClaimCall", timeout: float) -> None:
        lasts_ms = call.request.lease_ms + call.request.retention_ms
        self._call = call
        self.begin()
        self.gives_up = monotonic() + timeout + lasts_ms / 1000
        # One that was answered is made already.
        self.until_ms = call.decision.until_ms + int(timeout * 1000) if call.was_lost else 0
        self.tries = 0

    def begin(self) -> None:
        """Decide anew: a decision gives up after some tries, and this is tried for as long as the record may be there."""
        claimed, token = self._call.decision, self._call.request.token
        self.decision = OwnerDecision(
            claimed.key, lambda held: transitions.release(held, token), claimed.encryption, token
        )
