"""Drives an exchange over ASGI, for every case: reads the body, waits, runs the app, and relays its response as it comes."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context, copy_context
from typing import Any, Final

from oncegate.middleware.admission.admission import Verdict
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.lease import LeaseLost
from oncegate.middleware.admission.limits.within import DONE, within
from oncegate.middleware.http.app_run import AppRun
from oncegate.middleware.http.asgi import (
    SCOPE_EXTENSION,
    SUBMISSION_EXTENSION,
    App,
    AttemptView,
    BodyAgain,
    Receive,
    Send,
    read_body,
    respond,
)
from oncegate.middleware.http.exchange import Exchange, Step
from oncegate.middleware.outcome.problems import Answer
from oncegate.middleware.tokens.verifier import Tokens

log = logging.getLogger("oncegate.http")

_UNENFORCEABLE: Final = frozenset(
    {"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers", "http.response.push"}
)
"""ASGI extensions by which an app would send what can't be captured."""
_next: Final = next  # a built-in function takes no look into a dict, compiled
_LAST_STEPS: Final = (Answer, Exception)


class AsgiDriver:
    """Drives ``exchange``. `serve` is all there is to call, unless part of the way was gone already: `decide` goes on from
    its admission, `resume` from an attempt already begun.

    Usually the request waits once, for whatever comes first: its refusal, its replay, or the response of its attempt, which is
    begun by the callback of the cache's answer. Each wait resumes all coroutines around it, and what is alive meanwhile keeps the
    garbage collector busy.
    """

    __slots__ = ("_body", "_context", "_exchange", "_held", "_ready", "_receive", "_run", "_send", "_step")

    def __init__(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        self._exchange = exchange
        self._receive = receive
        self._send = send
        self._body = b""
        self._context: Context | None = None
        self._step: Step = None
        self._run: AppRun | None = None
        self._ready: asyncio.Future[None] | None = None
        """Done once there is a step, or something of the run to relay; ``None`` while nothing is waited for."""
        self._held = 0
        """Bytes of the body that are counted as waiting to be admitted."""

    def decide(self, body: bytes, step: Step) -> Coroutine[Any, Any, None]:
        """Answer a request that was admitted, from ``step`` on."""
        self._body = body
        return self.serve(True, step)

    async def serve(  # noqa: C901 - each step that the exchange decides on, and how it ends, on one screen
        self, is_admitted: bool = False, step: Step = None
    ) -> None:
        """Read the body of a request that was found to have a key, and do what the exchange decides, step by step, to its answer.

        Raises only what an in-process app raised.
        """
        exchange = self._exchange
        raised: BaseException | None = None
        try:
            found = None if is_admitted else exchange.found
            if not isinstance(found, str):  # which takes longer to find out about the others
                if isinstance(found, Tokens):
                    found = exchange.identify(waited=await found.refreshed())
                if isinstance(found, Answer):
                    step = found
            if isinstance(found, str):
                limit, timeout = exchange.policy.max_request_body, exchange.door.body_timeout
                body = await read_body(self._receive, exchange.fields, limit, timeout, self._hold)
                if body is None:  # the client left
                    return
                exchange.admit(found, body)
                self._body = body
                body = None
            while not isinstance(step, _LAST_STEPS):
                if isinstance(step, Verdict):
                    step = await self._wait(step)
                elif isinstance(step, AttemptView):
                    raised = await self._step_aside()
                    break
                else:
                    await self._claim_or_begin(step)
                    step, run = self._step, self._run
                    self._step = self._run = self._ready = None
                    if run is not None:
                        raised = await self._relay(run)
                        if not isinstance(raised, LeaseLost):
                            break
                        step = exchange.on_lease_lost()
        except BaseException as end:  # a closed loop ends it without a cancellation
            self._leave(end)
            if not isinstance(end, Exception):
                raise
            step = exchange.refused(end)
        finally:
            self._let_go()
        if isinstance(step, Answer):
            self._body = b""  # its client may take the answer as slowly as it likes
            start = {"type": "http.response.start", "status": step.status, "headers": step.all_headers()}
            try:
                await self._send(start)
                await self._send({"type": "http.response.body", "body": step.body})
            except OSError:
                log.debug("record %s: the client left before its answer", exchange.record, extra=exchange.ids())
        elif isinstance(step, Exception):
            raise step
        elif raised is not None:
            raise raised

    def _claim_or_begin(self, attempt: Attempt | None) -> "asyncio.Future[None]":
        """Claim the record, or run the ``attempt`` that there is; done once there is something to be given to the client."""
        exchange = self._exchange
        admissions = exchange.door.admissions
        if attempt is None:
            if exchange.admission.until > 0.0:  # before a slot is taken, since this may raise
                self._hold_once()
            if not admissions.enter(exchange.admission):
                self._hold_once()
        loop = asyncio.get_running_loop()
        self._ready = ready = loop.create_future()
        if attempt is not None:
            self._begin(attempt, ready)
        else:
            self._context = copy_context()
            admissions.claim(exchange.admission, loop, self._on_claimed)
        return ready

    def _on_claimed(self, reply: Any) -> None:
        """Callback of the cache's answer, in a context of its own. An error must not end here: the waiting request gets it."""
        ready = self._ready
        if ready is None or ready.done():  # the request is gone: `_leave` gives a won claim back
            return
        context, self._context = self._context, None
        if context is not None:
            context.run(self._go_on, reply, ready)
        if self._run is None:
            ready.set_result(None)

    def _go_on(self, reply: Any, ready: "asyncio.Future[None]") -> None:
        """Act on the cache's answer; an attempt begins, with the context that the request had when it claimed."""
        step = self._exchange.on_claimed(reply)
        try:
            if isinstance(step, Attempt):
                self._begin(step, ready)
            else:
                self._step = step
        except Exception as error:  # noqa: BLE001 - raised to the server by who waits
            self._step = error

    def _begin(self, attempt: Attempt, ready: "asyncio.Future[None]") -> None:
        """Run the attempt, which has a slot. ``ready`` is done once there is a response to be relayed, or it lasts too long."""
        if self._held:
            self._let_go()
        run = AppRun(self._exchange, attempt)
        run.begin(self._attempt_scope(attempt, run), self._body, ready.get_loop())
        run.expect(ready)
        self._run = run

    def _attempt_scope(self, attempt: Attempt, run: AppRun) -> dict[str, Any]:
        exchange = self._exchange
        scope = exchange.scope
        given = scope.get("extensions")
        extensions = {name: given[name] for name in given if name not in _UNENFORCEABLE} if given else {}
        extensions[SCOPE_EXTENSION] = AttemptView(attempt.number, exchange.record, run.confirm, attempt.claim.token)
        if attempt.claim.submission:
            extensions[SUBMISSION_EXTENSION] = exchange.submission(attempt)
        return {**scope, "headers": exchange.headers(attempt), "extensions": extensions}

    async def _wait(self, verdict: Verdict) -> Step:
        """Wait for the attempt in the way."""
        self._hold_once()
        exchange = self._exchange
        exchange.waits()
        return exchange.on_waited(await exchange.door.admissions.wait(exchange.admission, verdict))

    async def _step_aside(self) -> BaseException | None:
        """Call the app as if nothing were around it; what it raised, where it can't be taken for an error of ours."""
        exchange = self._exchange
        log.debug("record %s: enforced by a middleware around this one already", exchange.record, extra=exchange.ids())
        if self._held:
            self._let_go()
        again = BodyAgain(self._body, self._receive)
        try:
            await exchange.door.app(exchange.scope, again.receive, self._send)
        except Exception as error:  # noqa: BLE001 - raised by who called
            return error
        return None

    async def resume(self, app: App, left: float) -> None:
        """Go on with the attempt that was begun: ``app`` has its response, or will, within ``left`` seconds if in time."""
        exchange = self._exchange
        run = AppRun(exchange, exchange.attempt)
        ready = asyncio.get_running_loop().create_future()
        run.expect(ready)
        run.resume(app, left)
        try:
            await ready
        except BaseException:  # however the wait ends, the response has no reader any more
            run.leave()
            raise
        raised = await self._relay(run)
        if raised is not None:
            raise raised

    def _leave(self, end: BaseException) -> None:
        """The request ends; if it waits for the cache's answer, or for its attempt, that has no reader any more."""
        if self._ready is None:
            return
        self._ready = None
        if self._run is not None:
            self._run.leave()
        elif self._step is None:
            self._exchange.door.admissions.give_up(self._exchange.admission, end)

    # -- memory -------------------------------------------------------------------------------------------------------

    def _hold(self, size: int) -> None:
        """Count ``size`` bytes as held. Raises `Overloaded` where that is too much."""
        self._exchange.door.buffered.take(size)
        self._held += size

    def _hold_once(self) -> None:
        """Count the body, whose request may wait long for a slot or an answer. Raises `Overloaded`."""
        if not self._held:
            self._hold(len(self._body))

    def _let_go(self) -> None:
        """They are held no longer."""
        if self._held:
            self._exchange.door.buffered.give_back(self._held)
            self._held = 0

    # -- what is sent -------------------------------------------------------------------------------------------------

    async def _relay(  # noqa: C901 - a response that goes out at once, or as it comes, and how it ends, on one screen
        self, run: AppRun
    ) -> BaseException | None:
        """Send the client the response as it comes. Returns what the app raised, or `LeaseLost` where nothing was begun."""
        exchange = self._exchange
        try:
            if not run.status and not run.ended:
                await self._answer(exchange.unanswered())
                return None
            if (run.whole or run.bodiless) and not run.ended:  # the record comes first: all of it goes out together
                await run.news()
            if run.ended and not run.whole:
                await self._answer(exchange.failed())
            else:
                headers, _ = exchange.executed(run.attempt, run.status, run.headers)
                await self._send({"type": "http.response.start", "status": run.status, "headers": headers})
                # One that breaks off gets no last message: the server closes the connection.
                while not run.ended or run.whole:
                    piece, ended = run.read(), run.ended
                    message = {"type": "http.response.body", "body": piece, "more_body": not ended}
                    steps = self._send(message).__await__()
                    waits_for = _next(steps, DONE)
                    if waits_for is not DONE:
                        await within(exchange.door.body_timeout, steps, waits_for, run.stalls)
                    if run.slow:
                        run.catches_up()
                    if ended:
                        break
                    await run.news()
        except (OSError, TimeoutError):
            log.info("record %s: the client left before the end of its response", exchange.record, extra=exchange.ids())
            return None
        finally:
            if run.slow:
                run.catches_up()
            run.leave()
        if run.task is not None:  # background tasks of the app; a test client's loop would end them with the request
            await asyncio.shield(run.task)
        return exchange.raised

    async def _answer(self, answer: Answer | None) -> None:
        if answer is not None:
            await respond(self._send, answer.status, answer.all_headers(), answer.body)
