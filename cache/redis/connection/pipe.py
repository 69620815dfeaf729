"""A pipelined connection to Redis, shared by many callers: commands go out several to a write, replies come back in order.

Strategy. Redis replies in order, so a queue of calls is enough to match replies to calls.
A call whose caller has left (time-out, cancellation) keeps its place in that queue: its reply will still come, and for a
claim its content matters, so it is passed to the call's `Orphan`. The queue is kept in two parts, ``_late`` (overdue,
callers notified) and ``_waiting``; deadlines rise along the queue, so one timer for the oldest waiting call serves all.

No caller's code runs unguarded inside the connection's callbacks: an exception there would break the connection for all
callers.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import hiredis

from oncegate.cache.errors import CacheUnavailable

log = logging.getLogger(__name__)

Reply = Any
"""A reply as hiredis gives it: bytes, int, list, None, or a `hiredis.ReplyError` as a value."""

_RAISED: Final = "a callback of a Redis connection raised"
OVERDUE: Final = "Redis did not answer in time"
EARLY: Final = 8
"""Commands that are written without waiting for the tick's end, so that Redis works while we do (measured: 1.4 times as many)."""


class Orphan(Protocol):
    """A handler of a call whose caller has left without its reply."""

    def came_late(self, reply: Reply) -> None:
        """The reply came after all."""

    def lost(self) -> None:
        """The connection broke before the reply; the command may have run, and may still be on its way."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on what one connection may have unanswered, in commands and bytes; beyond them a call fails at once.

    What Redis does not read stays in the transport's buffer; it is unanswered, so it counts here.
    ``patience`` is how long (s) nothing may come back, after a call's time-out, until the connection counts as dead.
    """

    commands: int = 10_000
    bytes: int = 64 * 1024 * 1024
    patience: float = 1.0


class PendingReply:
    """A command whose reply is awaited; this base class ignores it. Exceptions of its methods are only logged."""

    __slots__ = ("deadline", "size")

    deadline: float
    size: int

    def answered(self, reply: Reply) -> None:
        """The reply has come, in time or later."""

    def overdue(self) -> None:
        """Fail the call: its reply has not come in time. It may still come."""

    def broken(self, reason: str) -> None:
        """Fail the call: the connection broke. The command may have run, and may still be on its way."""


class _Awaited(PendingReply):
    __slots__ = ("future", "orphan")

    def __init__(self, future: asyncio.Future[Reply], orphan: Orphan | None) -> None:
        self.future = future
        self.orphan = orphan

    def answered(self, reply: Reply) -> None:
        if not self.future.done():
            self.future.set_result(reply)
        elif self.orphan is not None:
            self.orphan.came_late(reply)

    def overdue(self) -> None:
        if not self.future.done():
            self.future.set_exception(CacheUnavailable(OVERDUE))

    def broken(self, reason: str) -> None:
        if not self.future.done():
            self.future.set_exception(CacheUnavailable(reason))
        if self.orphan is not None:
            self.orphan.lost()


class PipelinedConnection(asyncio.Protocol):
    """A connection that is open, until ``lost`` says why it no longer is. Belongs to the event loop that made it.

    ``on_lost`` is called once, with this connection and whether anything that it had sent was still unanswered.
    """

    def __init__(self, bounds: Bounds, on_lost: Callable[["PipelinedConnection", bool], None]) -> None:
        self.lost: str | None = None
        self._loop = asyncio.get_running_loop()
        self.time: Callable[[], float] = self._loop.time
        """The loop's clock, by which deadlines are."""
        self._bounds = bounds
        self._on_lost = on_lost
        reader = hiredis.Reader()
        # Methods that each command takes, kept so that none is made anew.
        self._feed: Callable[[bytes], None] = reader.feed
        self._gets: Callable[[], Reply] = reader.gets
        self._transport: asyncio.WriteTransport | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: deque[PendingReply] = deque()
        self._wait: Callable[[PendingReply], None] = self._waiting.append
        self._oldest: Callable[[], PendingReply] = self._waiting.popleft
        self._late: deque[PendingReply] = deque()
        self._bytes = 0
        self._out: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._received_at = self.time()

    # -- for callers

    def send(self, packed: bytes, deadline: float, orphan: Orphan | None = None) -> asyncio.Future[Reply]:
        """Queue one packed command; the future gives its reply, or `CacheUnavailable` at ``deadline`` (the loop's clock).

        Once this has returned, a caller that gives up on the future leaves the reply to ``orphan``. Raises `CacheUnavailable`,
        with nothing queued, where the connection is gone or too much is unanswered.
        """
        future: asyncio.Future[Reply] = self._loop.create_future()
        self.put(packed, deadline, _Awaited(future, orphan))
        return future

    def put(self, packed: bytes, deadline: float, call: PendingReply) -> None:
        """Queue one packed command; ``call``'s methods are called with the result, within this connection's callbacks.

        Raises `CacheUnavailable`, with nothing queued, as `send` does.
        """
        if self.lost is not None:
            raise CacheUnavailable(self.lost)
        waiting, out, bounds = self._waiting, self._out, self._bounds
        call.deadline = deadline
        call.size = size = len(packed)
        total = self._bytes + size
        if self._late or total > bounds.bytes or len(waiting) >= bounds.commands:
            self._check_bounds(total)
        self._wait(call)
        self._bytes = total
        if not out:
            self._loop.call_soon(self._flush)
        out.append(packed)
        if len(out) >= EARLY:
            self._flush()
        if deadline < self._timer_at:
            self._set_timer(deadline)

    def _check_bounds(self, total: int) -> None:
        """Raises `CacheUnavailable` where one more command is too many. A single one may have any size."""
        pending, bounds = self.unanswered, self._bounds
        if pending and (pending >= bounds.commands or total > bounds.bytes):
            raise CacheUnavailable(f"Redis does not keep up: {pending} commands are unanswered")

    def send_behind(
        self, prefix: bytes, packed: bytes, deadline: float, orphan: Orphan | None = None
    ) -> asyncio.Future[Reply]:
        """The same for a command that needs another one right before it: both are written at once, or neither is queued.

        A prefix on its own would apply to the next caller's command.
        """
        future = self.send(prefix + packed, deadline, orphan)
        if self.lost is not None:  # it was found broken by writing
            return future
        own = self._waiting.pop()
        before = PendingReply()
        before.deadline, before.size = deadline, 0
        self._waiting.extend((before, own))
        return future

    @property
    def unanswered(self) -> int:
        """How many commands await their reply."""
        return len(self._waiting) + len(self._late)

    def fail(self, reason: str) -> None:
        """Cut the connection: every caller gets `CacheUnavailable` with ``reason``. Later calls of this do nothing."""
        if self.lost is not None:
            return
        self.lost = reason
        if self._timer is not None:
            self._timer.cancel()
        self._out.clear()
        calls = (*self._late, *self._waiting)
        self._late.clear()
        self._waiting.clear()
        if self._transport is not None:
            self._transport.abort()
        _guarded(self._on_lost, self, bool(calls))  # before the orphans: they rely on what it notes
        for call in calls:
            _guarded(call.broken, reason)

    # -- for the transport

    def take_over(self, writer: asyncio.StreamWriter) -> None:
        """Become the protocol of ``writer``'s transport, which is connected and idle."""
        self._writer = writer  # kept, since a stream writer closes its transport when it is collected
        self._transport = writer.transport
        self._transport.set_protocol(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - treated alike, whatever broke it
        """The transport has closed."""
        self.fail("the connection to Redis was lost")

    def data_received(self, data: bytes) -> None:
        """Replies, or parts of them."""
        self._received_at = self.time()
        gets = self._gets
        try:
            self._feed(data)
            while (reply := gets()) is not False:
                call = self._late.popleft() if self._late else self._oldest()
                self._bytes -= call.size
                try:
                    call.answered(reply)
                except Exception:  # one call's error must not break the connection for the others
                    log.exception(_RAISED)
        except (hiredis.ProtocolError, IndexError):  # IndexError: a reply without a call
            self.fail("the connection to Redis is out of step")

    def _flush(self) -> None:
        if self._out and self._transport is not None:
            out, self._out = self._out, []
            try:
                self._transport.write(out[0] if len(out) == 1 else b"".join(out))
            except (RuntimeError, OSError):  # uvloop raises where the other side has left; asyncio does not
                self.fail("the connection to Redis was lost")

    def _set_timer(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self._loop.call_at(moment, self._on_timer)

    def _on_timer(self) -> None:
        """Notify the callers whose time is over; called again when the next one's is.

        A loop that was held up reads what has come before it runs its timers, so no reply that is there comes too late.
        """
        now = self.time()
        self._timer, self._timer_at = None, math.inf
        while self._waiting and self._waiting[0].deadline <= now:
            call = self._waiting.popleft()
            self._late.append(call)
            _guarded(call.overdue)
        if self._late:
            # Any reply counts: a server that answers slowly is alive, one that answers nothing may be gone.
            dead_at = max(self._received_at, self._late[0].deadline) + self._bounds.patience
            if now >= dead_at:
                self.fail("the connection to Redis is dead: nothing came back")
                return
            self._set_timer(dead_at)
        if self._waiting and self._waiting[0].deadline < self._timer_at:
            self._set_timer(self._waiting[0].deadline)


def _guarded(callback: Callable[..., None], *args: object) -> None:
    try:
        callback(*args)
    except Exception:  # one callback's error must not break the connection for the others
        log.exception(_RAISED)


def forget(future: asyncio.Future[Reply]) -> None:
    """Mark the exception of a reply as retrieved, which may have no caller any more."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
