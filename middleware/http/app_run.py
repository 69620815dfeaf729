"""Executes one attempt over ASGI: calls the app once, captures its response, and feeds the exchange what came of it."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.tracing import AttemptTrace
from oncegate.middleware.http.apps.completion import ends_late
from oncegate.middleware.http.asgi import App, Message
from oncegate.middleware.http.capture import Capture
from oncegate.middleware.http.exchange import Exchange
from oncegate.middleware.outcome.errors import ENDS_PROCESS, NotProcessed, OutcomeUnknown
from oncegate.middleware.outcome.raised import failure_of, is_left

log = logging.getLogger("oncegate.http")


class AppRun(Capture):
    """A run of the app for ``attempt`` of ``exchange``, its response captured. ``task`` is there until all of that is done."""

    __slots__ = ("_body", "_exchange", "_late", "_over", "_refused", "_scope", "_sending", "attempt", "task")

    def __init__(self, exchange: Exchange, attempt: Attempt) -> None:
        super().__init__(attempt.policy.max_result)
        self.attempt = attempt
        self.task: asyncio.Task[None] | None = None
        self._exchange = exchange
        self._refused: NotProcessed | None = None
        self._late = False
        """The response is whole, and is recorded once the app has returned."""
        self._body: bytes | None = None
        self._scope: dict[str, Any] | None = None
        """The scope that the app got, where it matters to ``redact``; it refers back to us."""
        self._sending: asyncio.Timeout | None = None
        """The time-out of waiting for a slow client, which may be ended early."""
        self._over: asyncio.Event | None = None
        """Set at the response's end, where something waits for that."""

    async def confirm(self) -> None:
        """See `Lease.confirm`. What the app answers after a refusal, or makes of it, is no result of the attempt."""
        if self.attempt.lease.is_certain:
            return
        try:
            await self.attempt.lease.confirm()
        except NotProcessed as error:
            self._refused = error
            self.deaf = True
            raise

    def lasts(self) -> None:
        """The app takes longer than most: from here on it has time limits, and its lease is renewed."""
        task, attempt = self.task, self.attempt
        if task is None or attempt.settled:
            return
        attempt.lease.keep(task)
        policy = attempt.policy
        self.limit(self._exchange.door.admissions.in_flight.shared.limits.of(policy.response_timeout - policy.soon))

    def finish(self) -> None:
        """See `Capture.finish`."""
        late = self.attempt.policy.completes_late
        if late is None:  # as the route's dependencies want it
            late = self._scope is not None and ends_late(self._scope)
        if late and self.task is not None:
            self._late = True
            if self._over is not None:
                self._over.set()
        else:
            self._record()

    def _record(self) -> None:
        # The app goes on meanwhile: nothing of it is held up, or held in memory, until the cache has answered. What its task
        # still does is no part of the attempt: its server waits for that, through the request's coroutine.
        body = self.body
        if self.slow:
            self._count_record()
        if self._over is not None:
            self._over.set()
        scope, self._scope = self._scope, None
        self._exchange.on_response(self.status, self.headers, body, self.end, scope)

    def outgrow(self) -> None:
        """See `Capture.outgrow`. What is left is a transfer, as of what passes through; it takes no slot from commands."""
        self._exchange.door.admissions.in_flight.free(self.attempt)

    # -- a slow client ------------------------------------------------------------------------------------------------

    def stalls(self, sending: asyncio.Timeout) -> None:
        """The client is behind in reading: what waits for it is counted, until it `catches_up`."""
        self.slow, self._sending = True, sending
        self.put_aside(self._unread_bytes)
        if self.slow and self.whole:
            self._count_record()

    def catches_up(self) -> None:
        """The client has taken what it was sent, or is gone."""
        self.slow, self._sending = False, None
        self._exchange.door.unread.release(self)

    def put_aside(self, size: int) -> None:
        """See `Capture.put_aside`."""
        self._exchange.door.unread.hold(self, size)

    def _count_record(self) -> None:
        """A body that came in pieces is there once more, in one piece, as it is recorded."""
        if isinstance(self._kept, list):
            self._kept = b""
            self.put_aside(self._kept_bytes)

    def has_taken(self) -> bool:
        """See `oncegate.middleware.admission.buffers.Reader`. It counts from its last piece on: since then, nothing."""
        return False

    def drop(self) -> None:
        """See `oncegate.middleware.admission.buffers.Reader`."""
        sending, loop = self._sending, self.attempt.lease.loop
        self.slow, self._sending = False, None
        self.leave()
        if sending is not None and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(_expire, sending)

    # -- the attempt --------------------------------------------------------------------------------------------------

    def begin(self, scope: dict[str, Any], body: bytes, loop: asyncio.AbstractEventLoop) -> None:
        """Call the app, as a task of the running ``loop``."""
        attempt, door = self.attempt, self._exchange.door
        self._body = body
        if door.redact is not None or attempt.policy.completes_late is None:
            self._scope = scope
        self.patient = True  # until it lasts
        self._exchange.begin(attempt, loop, self.lasts)
        app = door.submit if attempt.claim.submission else door.app
        work, trace = self._run(app, scope, False), attempt.trace
        if trace is not None:
            work = _traced(trace, work)
        self.task = attempt.lease.task = task = loop.create_task(work)
        task.add_done_callback(attempt.ran)

    def resume(self, app: App, left: float) -> None:
        """The same for an attempt whose request was sent already: ``app`` gets the rest of it, ``left`` seconds if in time."""
        in_flight = self._exchange.door.admissions.in_flight
        self.task = in_flight.go_on(self.attempt, self._run(app, {}, True))
        self.limit(in_flight.shared.limits.of(left))

    async def _run(self, app: App, scope: dict[str, Any], is_sent: bool) -> None:
        """Call the app, and settle the attempt by what came of it. Raises nothing but a cancellation at shutdown."""
        attempt = self.attempt
        failure: BaseException | None = None
        try:
            try:
                if not is_sent and not attempt.lease.is_certain:
                    await attempt.lease.confirm()
                await app(scope, self._receive, self.send)
                if not self.whole:
                    raise RuntimeError("the app returned without a complete response")
            except BaseException as error:  # whatever an app raises is an outcome, too
                failure = failure_of(error)
                closing = self._exchange.door.admissions.in_flight.closing and not attempt.lease.overdue
                if is_left(failure, self.task, closing=closing):
                    raise
            if failure is None:
                if self._late:
                    self._record()
                return
            if self.whole:
                failure = self._raised_late(failure)
            # What the app made of a refusal is none of its own.
            raised = failure if self._refused is None else self._refused
            late = attempt.lease.overdue and not self.whole
            self._exchange.on_failure(raised, begun=self.status > 0, late=late, client_gone=self.client_gone)
            await attempt.ended()
        finally:
            failure = None  # its traceback holds this frame
            self._scope = None
            if self._late and not attempt.settled:  # the process ends: it breaks off, like one that is not whole
                self.whole = False
            self.cut()
            if self._over is not None:
                self._over.set()
            self.task = None  # it holds us

    def _raised_late(self, failure: BaseException) -> BaseException:
        """The app raised after its last byte: logged, with what became of the outcome. Returns what it is to be settled by."""
        kind, record, about = type(failure).__qualname__, self.attempt.named, self.attempt.lease.ids()
        if not self._late:
            log.error(
                "record %s: the app raised %s after its last byte: what was recorded stays", record, kind, extra=about
            )
            return failure
        log.error("record %s: the app raised %s after its last byte: its outcome is unknown", record, kind, extra=about)
        self.whole = False  # it is not shown any more
        return failure if isinstance(failure, ENDS_PROCESS) else OutcomeUnknown(f"raised {kind} after its last byte")

    async def _receive(self) -> Message:
        """ASGI ``receive``: the body at once, and a disconnect once the response is over; no client can leave an attempt."""
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        if not self.whole and not self.ended:
            if self._over is None:
                self._over = asyncio.Event()
            await self._over.wait()
        return {"type": "http.disconnect"}


async def _traced(trace: AttemptTrace, work: Coroutine[Any, Any, None]) -> None:
    trace.enter()
    await work


def _expire(limit: asyncio.Timeout) -> None:
    with suppress(RuntimeError):  # over by now
        limit.reschedule(0)
