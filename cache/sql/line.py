"""The calls of one event loop on their way to the rows: one at a time for each key, bounded in time, and none left in doubt.

Strategy. Who waits is answered when its time-out is over, whatever the database does. What was sent is followed further all the
same, since a claim may be won after its caller has left: that one is given to ``adopt``, or given back.

A claim whose answer was lost is sent again under its token while its caller waits; the law knows its own. Once the caller has
left it is withdrawn (`oncegate.cache.sql.withdrawals`). Until that has ended no other call of this process on its key is sent:
none can arrive before what came first.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from oncegate.cache.callbacks import start
from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.record import Claim, ClaimRequest
from oncegate.cache.sql.calls import CallDecision
from oncegate.cache.sql.rows import AnswerLost, Found, Read, Reply, Rows, Step
from oncegate.cache.sql.withdrawals import ClaimWithdrawals

log = logging.getLogger("oncegate.cache")

Result = TypeVar("Result")

OVERDUE: Final = "the database did not answer in time"
_PAUSE: Final = 0.02
"""Seconds before a step whose answer was lost is sent again."""


class Call(Generic[Result]):
    """A decision whose answer goes to ``then``, once: within the time-out, or `CacheUnavailable` at its end."""

    __slots__ = ("_then", "deadline", "decision", "is_over", "repeats", "timer", "was_lost")

    def __init__(
        self, decision: CallDecision[Result], then: Callable[[Result | Exception], None], *, repeats: bool = True
    ) -> None:
        self.decision = decision
        self.repeats = repeats
        """Whether it may be made once more after its answer was lost."""
        self.was_lost = False
        self.is_over = False
        self.deadline = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self._then = then

    def answer(self, answer: Result | Exception) -> None:
        """Pass the answer on, unless one was before."""
        if not self.is_over:
            self.is_over = True
            if self.timer is not None:
                self.timer.cancel()
            try:
                self._then(answer)
            except Exception:  # it is the caller's; the calls behind this one go on
                log.exception("what waited for a record failed with its answer")

    def leave(self) -> None:
        """Nobody waits for it any more."""
        self.is_over = True
        if self.timer is not None:
            self.timer.cancel()


class ClaimCall(Call[Claim]):
    """A claim, of which nothing stays where its caller has left: ``adopt`` gets what was won late, or it is withdrawn."""

    __slots__ = ("_adopt", "request")

    def __init__(
        self,
        decision: CallDecision[Claim],
        request: ClaimRequest,
        adopt: Callable[[Claim], None] | None,
        then: Callable[[Claim | Exception], None],
    ) -> None:
        super().__init__(decision, then)
        self.request = request
        self._adopt = adopt

    def adopted(self, claim: Claim) -> bool:
        """Whether somebody takes over what was won after its caller had left."""
        if self._adopt is None:
            return False
        try:
            self._adopt(claim)
        except Exception:  # it is left to lapse: to release it could free a key whose attempt has begun
            log.exception("a claim that was won late could not be taken over")
        return True


class Line:
    """Sends the calls of one event loop to its ``rows``."""

    def __init__(self, rows: Rows, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self.rows = rows
        self._loop = loop
        self._timeout = timeout
        self._busy: dict[str, deque[Call[Any]]] = {}
        """The keys on which a call is under way, each with the calls behind it."""
        self._withdrawals = ClaimWithdrawals(loop, self._send, self._end)
        self._is_closing = False

    @property
    def withdrawals(self) -> int:
        """How many claims are in doubt, whose callers have left."""
        return self._withdrawals.count

    def start(self, call: Call[Any]) -> None:
        """Make the call, as soon as no other one on its key is under way."""
        behind = self._busy.get(call.decision.key)
        if behind is not None:
            self._limit(call)
            behind.append(call)
        elif not (call.decision.looks_first and self._answered_at_once(call)):
            self._limit(call)
            self._busy[call.decision.key] = deque()
            self._begin(call)

    def _answered_at_once(self, call: Call[Any]) -> bool:
        found = self.rows.glance(call.decision.key)
        if found is None or call.decision.takes_long(found):
            return False
        step = _next_step(call.decision, found)
        if step is None or isinstance(step, Exception):
            call.answer(call.decision.answer if step is None else step)
            return True
        self._limit(call)
        self._busy[call.decision.key] = deque()
        self._until(call)
        self._put(call, _timed(step, call.decision.until_ms))
        return True

    def _limit(self, call: Call[Any]) -> None:
        call.deadline = monotonic() + self._timeout
        call.timer = self._loop.call_later(self._timeout, self._overdue, call)

    def _until(self, call: Call[Any]) -> None:
        """From here on it is sent, perhaps to arrive much later: up to its time-out, by the database's clock."""
        now_ms = self.rows.now_ms()
        if isinstance(call, ClaimCall) and now_ms:
            call.decision.until_ms = now_ms + max(1, int((call.deadline - monotonic()) * 1000))

    def _begin(self, call: Call[Any]) -> None:
        self._until(call)
        try:
            # Without the database's clock a claim can't carry its instant: what is read first has the time.
            step = call.decision.begin() if not isinstance(call, ClaimCall) or call.decision.until_ms else None
        except Exception as error:  # noqa: BLE001 - as above
            call.answer(error)
            self._end(call.decision.key)
            return
        self._put(call, Read(call.decision.key) if step is None else step)

    def _put(self, call: Call[Any], step: Step) -> None:
        self._send(step, partial(self._replied, call))

    def _send(self, step: Step, then: Callable[[Reply], None]) -> None:
        if self._is_closing:
            self._loop.call_soon(then, CacheUnavailable("the cache is closed"))
        else:
            self.rows.put(step, then)

    def _replied(self, call: Call[Any], reply: Reply) -> None:
        if isinstance(reply, Found):
            if not call.decision.until_ms:
                self._until(call)
            if call.decision.takes_long(reply):
                start(self._loop, asyncio.to_thread(_next_step, call.decision, reply), partial(self._go_on, call))
            else:
                self._go_on(call, _next_step(call.decision, reply))
            return
        if isinstance(reply, AnswerLost):
            call.was_lost = True
            if call.repeats and not call.is_over and monotonic() + _PAUSE < call.deadline:
                self._loop.call_later(_PAUSE, self._once_more, call)
                return
        call.answer(reply)
        self._settle(call)

    def _go_on(self, call: Call[Any], step: Step | Exception | None) -> None:
        if isinstance(step, Exception):
            call.answer(step)
            self._settle(call)
        elif step is None:
            self._decided(call, call.decision.answer)
        elif call.is_over and isinstance(call, ClaimCall):
            self._settle(call)
        else:
            self._put(call, step)

    def _decided(self, call: Call[Any], answer: Any) -> None:
        is_late = call.is_over
        call.answer(answer)
        if isinstance(call, ClaimCall):
            # Lost, and lost against another's record: it may still be on its way, to be made once that one is released.
            in_doubt = not call.adopted(answer) if is_late and answer.won else call.was_lost and not answer.won
            if in_doubt:
                self._withdrawals.begin(call, self._timeout)
                return
        self._end(call.decision.key)

    def _once_more(self, call: Call[Any]) -> None:
        """Read what became of it: the law knows its own token."""
        if call.is_over:
            self._settle(call)
        else:
            self._put(call, Read(call.decision.key))

    def _overdue(self, call: Call[Any]) -> None:
        call.answer(CacheUnavailable(OVERDUE))

    def _settle(self, call: Call[Any]) -> None:
        """Nobody waits for the call, and nothing of it is under way: nothing of a claim in doubt may stay."""
        if call.was_lost and isinstance(call, ClaimCall):
            self._withdrawals.begin(call, self._timeout)
        else:
            self._end(call.decision.key)

    def _end(self, key: str) -> None:
        """The next call on the key begins. Where several wait, one read is for all of them: retries often come together."""
        behind = self._busy[key]
        while behind and behind[0].is_over:
            behind.popleft()
        if not behind:
            del self._busy[key]
        elif len(behind) == 1:
            self._begin(behind.popleft())
        else:
            # Only for those that wait already: to who comes later, what is read now may be old.
            self._send(Read(key), partial(self._read_for_all, key, len(behind)))

    def _read_for_all(self, key: str, count: int, reply: Reply) -> None:
        """Answer those of the first ``count`` calls that write nothing, up to the one that does: it changes what was read."""
        behind = self._busy[key]
        for _ in range(count):
            call = behind.popleft()
            if call.is_over:
                continue
            if isinstance(reply, Found) and not call.decision.takes_long(reply):
                step = _next_step(call.decision, reply)
                if step is None or isinstance(step, Exception):
                    call.answer(call.decision.answer if step is None else step)
                    continue
                self._until(call)
                self._put(call, _timed(step, call.decision.until_ms))
                return
            if isinstance(reply, Found):
                self._replied(call, reply)
                return
            call.answer(reply)
        self._end(key)

    async def close(self) -> None:
        """Give what is under way, withdrawals included, one more time-out; then close the rows."""
        ends = monotonic() + self._timeout
        while self._busy and monotonic() < ends:  # noqa: ASYNC110 - once, at the end: no call pays for an event
            await asyncio.sleep(0.01)
        self._is_closing = True
        self._withdrawals.close()
        await self.rows.close()


def _next_step(decision: CallDecision[Any], found: Found) -> Step | Exception | None:
    try:
        step = decision.found(found)
        if step is not None and decision.until_ms and found.now_ms > decision.until_ms:
            return CacheUnavailable(OVERDUE)  # it would not be made any more
        return step
    except Exception as error:  # noqa: BLE001 - passed on, whatever it is: else who waits would wait for ever
        return error


def _timed(step: Step, until_ms: int) -> Step:
    if not isinstance(step, Read):
        step.until_ms = until_ms
    return step
