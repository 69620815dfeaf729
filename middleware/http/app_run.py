"""Executes one attempt over HTTP: calls the app once, and settles the record by its response or error."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from oncegate.cache.record import State, StoredResponse
from oncegate.middleware.admission.attempt import Attempt, LeaseLost, Unconfirmed
from oncegate.middleware.http.asgi import App, Message
from oncegate.middleware.http.capture import Capture
from oncegate.middleware.http.door import HttpDoor
from oncegate.middleware.http.redact import redacted
from oncegate.middleware.outcome import responses
from oncegate.middleware.outcome.errors import ENDS_PROCESS, NotAccepted, NotProcessed, OutcomeUnknown
from oncegate.middleware.outcome.raised import failure_of, is_left, kind_and_text, outcome_of

log = logging.getLogger("oncegate.http")


class AppRun(Capture):
    """Runs the app for ``attempt``, captures its response, and settles the record accordingly.

    Where there is no response: ``slug`` and ``detail`` are the problem to answer with, or ``raised`` is what the app raised
    (`LeaseLost`: nothing was begun). ``task`` is the attempt's, until it has nothing more to do.
    """

    __slots__ = (
        "_body",
        "_door",
        "_over",
        "_refused",
        "_scope",
        "_sending",
        "attempt",
        "detail",
        "raised",
        "slug",
        "task",
    )

    _scope: dict[str, Any]

    def __init__(self, door: HttpDoor, attempt: Attempt) -> None:
        super().__init__(attempt.policy.max_response_body)
        self.attempt = attempt
        self.slug: str | None = None
        self.detail = ""
        self.raised: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self._door = door
        self._refused: NotProcessed | None = None
        self._body: bytes | None = None
        self._sending: asyncio.Timeout | None = None
        """What ends, early if need be, that a slow client is waited for."""
        self._over: asyncio.Event | None = None
        """Set at the response's end, where something waits for that."""

    async def confirm(self) -> None:
        """See `Attempt.confirm`. What the app answers after a refusal, or makes of it, is no result of the attempt."""
        if self.attempt.is_certain:
            return
        try:
            await self.attempt.confirm()
        except NotProcessed as error:
            self._refused = error
            self.deaf = True
            raise

    def lasts(self) -> None:
        """The app takes longer than most: from here on it has time limits, and its lease is renewed."""
        task, attempt = self.task, self.attempt
        if task is None or attempt.settled:
            return
        attempt.keep(task)
        policy = attempt.policy
        self.limit(self._door.admissions.in_flight.limits.of(policy.response_timeout - policy.soon))

    def finish(self) -> None:
        """See `Capture.finish`."""
        # The app goes on meanwhile: nothing of it is held up, or held in memory, until the cache has answered.
        attempt = self.attempt
        state = attempt.policy.state(self.status)
        stored = None if state is None else responses.stored(self.status, self.headers, self.body, attempt.policy)
        redact = self._door.redact
        if redact is None or stored is None:
            self._settle(state, stored)
            return
        kept: StoredResponse | None = None
        try:
            kept = redacted(redact, self._scope, stored, attempt.policy, attempt.record)
        finally:
            self._settle(state, kept)

    def _settle(self, state: State | None, stored: StoredResponse | None) -> None:
        attempt = self.attempt
        if self.slow:
            self._count_record()
        attempt.settle(state, stored, then=self.end)
        # What the app's task still does is no part of it: its server waits for that, through the request's coroutine.
        attempt.over()
        if self._over is not None:
            self._over.set()

    def outgrow(self) -> None:
        """See `Capture.outgrow`. What is left is a transfer, as of what passes through; it takes no slot from commands."""
        self._door.admissions.in_flight.free(self.attempt)

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
        self._door.unread.release(self)

    def put_aside(self, size: int) -> None:
        """See `Capture.put_aside`."""
        self._door.unread.hold(self, size)

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
        sending, loop = self._sending, self.attempt.loop
        self.slow, self._sending = False, None
        self.leave()
        if sending is not None and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(_expire, sending)

    # -- the attempt --------------------------------------------------------------------------------------------------

    def execute(self, scope: dict[str, Any], body: bytes) -> Coroutine[Any, Any, None]:
        """Call the app, and settle the attempt by what came of it. Raises nothing but a cancellation at shutdown."""
        self._body = body
        if self._door.redact is not None:
            self._scope = scope
        return self._run(self._door.submit if self.attempt.submission else self._door.app, scope)

    def resume(self, app: App) -> Coroutine[Any, Any, None]:
        """The same for an attempt whose request was sent already: ``app`` gets the rest of it, and no scope."""
        return self._run(app, None)

    async def _run(self, app: App, scope: dict[str, Any] | None) -> None:
        attempt = self.attempt
        failure: BaseException | None = None
        try:
            try:
                if scope is not None and not attempt.is_certain:
                    await attempt.confirm()
                await app(scope or {}, self._receive, self.send)
                if not self.whole:
                    raise RuntimeError("the app returned without a complete response")
            except BaseException as error:  # whatever an app raises is an outcome, too
                failure = failure_of(error)
                closing = self._door.admissions.in_flight.closing and not attempt.overdue
                if is_left(failure, self.task, closing=closing):
                    raise
            if failure is not None:
                # What the app made of a refusal is none of its own.
                self._settle_by(failure if self._refused is None else self._refused)
                await attempt.ended()
        finally:
            failure = None  # its traceback holds this frame
            self.cut()
            if self._over is not None:
                self._over.set()
            self.task = None  # it holds us

    def _settle_by(self, error: BaseException) -> None:
        attempt = self.attempt
        response: StoredResponse | None = None
        state, note = outcome_of(error, overdue=attempt.overdue and not self.whole)
        if isinstance(error, LeaseLost):
            # A response that has begun can't be begun anew.
            self.raised = error if not self.status else RuntimeError("confirmed after its response had begun")
        elif isinstance(error, Unconfirmed):
            self._answer("cache-unavailable", "The record cache can't be reached. Nothing was executed.")
        elif isinstance(error, NotAccepted):
            log.warning("record %s: not accepted: %s", attempt.record, kind_and_text(error)[1])
            self._answer(error.slug, str(error))
            # Submitting again is harmless, and takes over what is unknown. To execute it beside its copy would not be, which
            # a request can only ask for where the mode is "either".
            state = State.UNKNOWN if error.copied and attempt.policy.mode == "either" else None
            note = "the command stream did not answer"
        elif isinstance(error, NotProcessed):
            log.warning("record %s: nothing was sent: %s", attempt.record, kind_and_text(error)[1])
            self._answer(
                "upstream-unreachable", "No connection to the upstream. Nothing was executed; the key is free."
            )
        elif isinstance(error, OutcomeUnknown):
            log.warning("record %s: the outcome is unknown: %s", attempt.record, note)
            self._answer("upstream-failed", "The connection broke after the request was sent: its outcome is unknown.")
        elif isinstance(error, ENDS_PROCESS):
            self.raised = error
        elif state is State.UNKNOWN:
            self._answer("upstream-failed", f"The attempt {note}: its outcome is unknown.")
        else:  # its failure, kept and raised again
            self.raised = error
            if self.client_gone:  # the server has no client left to answer
                log.error("record %s: the app raised after its client had left", attempt.record, exc_info=error)
            response, note = responses.stored_exception(), f"raised {type(error).__qualname__}"
        attempt.settle(state, response, note=note)

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

    def _answer(self, slug: str, detail: str) -> None:
        self.slug, self.detail = slug, detail


def _expire(limit: asyncio.Timeout) -> None:
    with suppress(RuntimeError):  # over by now
        limit.reschedule(0)
