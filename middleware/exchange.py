"""One request under enforcement as an ASGI exchange, from its key to the last byte of its answer."""

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any

from oncegate.cache.errors import CacheUnavailable, RecordUnreadable
from oncegate.middleware.asgi import App, Receive, Send
from oncegate.middleware.attempt import Attempt, LeaseLost
from oncegate.middleware.capture import Capture
from oncegate.middleware.enforce import Ask, Verdict
from oncegate.middleware.enforced import EnforcedRequest
from oncegate.middleware.errors import Overloaded, Refusal
from oncegate.middleware.execution import Execution
from oncegate.middleware.gate import Decision
from oncegate.middleware.policy import ATTEMPT_HEADER, Policy
from oncegate.middleware.problems import Answer
from oncegate.middleware.processor import SCOPE_EXTENSION, SUBMISSION_EXTENSION, AttemptView, Submission
from oncegate.middleware.request import read_body
from oncegate.middleware.within import within

if TYPE_CHECKING:
    from oncegate.middleware.http import IdempotencyMiddleware

log = logging.getLogger("oncegate.http")

_MAX_ADMISSIONS = 3
"""How often a request whose attempt was lost before it began is decided anew."""
_UNENFORCEABLE = frozenset(
    {"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers", "http.response.push"}
)
"""ASGI extensions by which an app would send what can't be captured."""


class Exchange:
    """One request under ``policy``. `serve` is all there is to call, unless part of the way was gone already.

    Then ``request`` is what went it: `decide` goes on with what was admitted, `resume` with an attempt that was begun.
    """

    def __init__(
        self,
        middleware: "IdempotencyMiddleware",
        policy: Policy,
        scope: Mapping[str, Any],
        receive: Receive,
        send: Send,
        request: EnforcedRequest | None = None,
    ) -> None:
        self._middleware = middleware
        self._request = request or EnforcedRequest(middleware, policy, scope)
        self._scope = scope
        self._receive = receive
        self._send = send

    def serve(self) -> Awaitable[None]:
        """What answers the request, to be awaited. Raises only what an in-process app raised."""
        request = self._request
        try:
            look_up_key = request.identify()
        except Refusal as refusal:
            return self._answer(request.refused(refusal))
        return self._bypass() if look_up_key is None else self._serve(look_up_key)

    async def _serve(self, look_up_key: str) -> None:
        request = self._request
        limit = request.policy.settings.max_request_body
        try:
            body = await read_body(self._receive, request.fields, limit, self._middleware.body_timeout)
        except Refusal as refusal:
            await self._answer(request.refused(refusal))
            return
        if body is not None:
            await self.decide(request.ask(look_up_key, body), body)

    async def decide(self, ask: Ask, body: bytes, admitted: Attempt | Verdict | None = None) -> None:
        """Answer a request whose body is whole. ``admitted``: its attempt, not begun yet, or what it is to wait for."""
        request, enforcer = self._request, self._middleware.enforcer
        failure: Exception | None = None
        try:
            for _ in range(_MAX_ADMISSIONS):
                try:
                    outcome = admitted if isinstance(admitted, Attempt) else await enforcer.admit(ask, admitted)
                finally:
                    if ask.waited:
                        request.applied = int(ask.wait)
                if isinstance(outcome, Verdict):
                    await self._answer(request.told(outcome))
                    return
                failure = await self._run(outcome, body)
                if not isinstance(failure, LeaseLost):
                    break
                admitted = None
            else:
                raise Overloaded("The request was overtaken again and again before it could begin: try again later.")
        except (Refusal, RecordUnreadable, CacheUnavailable) as error:
            await self._answer(request.refused(error))
            return
        if failure is not None:
            raise failure

    # -- not enforced -------------------------------------------------------------------------------------------------

    def _bypass(self) -> Awaitable[None]:
        """Of its own it awaits nothing: the app answers a request that has no key."""
        request = self._request
        scope = self._scope
        if ATTEMPT_HEADER in request.fields:
            scope = {**scope, "headers": request.headers()}
        return self._middleware.app(scope, self._receive, request.marking(self._send))

    # -- an attempt of our own ----------------------------------------------------------------------------------------

    async def _run(self, attempt: Attempt, body: bytes) -> Exception | None:
        """Run the attempt and relay its response. Returns what the app raised, or `LeaseLost` where nothing was begun."""
        run = Execution(self._middleware, attempt)
        work = run.execute(self._attempt_scope(attempt, run), body)
        task = self._middleware.enforcer.in_flight.run(attempt, work)
        return await self._finish(attempt, run, task, attempt.policy.settings.response_timeout)

    async def resume(self, attempt: Attempt, app: App, left: float) -> None:
        """Go on with an attempt that was begun: ``app`` has its response, or will, within ``left`` seconds if in time."""
        run = Execution(self._middleware, attempt)
        task = self._middleware.enforcer.in_flight.go_on(attempt, run.resume(app))
        failure = await self._finish(attempt, run, task, left)
        if failure is not None:
            raise failure

    async def _finish(
        self, attempt: Attempt, run: Execution, task: "asyncio.Task[None]", left: float
    ) -> Exception | None:
        try:
            done = await self._relay(attempt, run, left)
        finally:
            run.capture.leave()
        if not done:
            return None
        if not task.done():  # background tasks of the app; a test client's loop would end them with the request
            await asyncio.shield(task)
        return run.raised

    def _attempt_scope(self, attempt: Attempt, run: Execution) -> dict[str, Any]:
        scope, request = self._scope, self._request
        given = scope.get("extensions")
        extensions = {name: given[name] for name in given if name not in _UNENFORCEABLE} if given else {}
        extensions[SCOPE_EXTENSION] = AttemptView(attempt.number, request.record, run.confirm)
        if attempt.submission:
            policy = request.policy
            submission = Submission(request.key or "", attempt.fingerprint, policy.route, policy.stream)
            extensions[SUBMISSION_EXTENSION] = submission
        return {**scope, "headers": request.headers(attempt), "extensions": extensions}

    async def _relay(self, attempt: Attempt, run: Execution, left: float) -> bool:
        """Give the client the response as it comes. False: the client was answered, the attempt goes on without it."""
        capture, request = run.capture, self._request
        if not await capture.begun(self._middleware.enforcer.in_flight.limits.of(left)):
            detail = "The upstream has not answered yet; the attempt goes on: ask again with the same key."
            await self._answer(request.problem("upstream-timeout", detail, attempt=attempt.number))
            return False
        if (
            capture.whole or capture.bodiless
        ) and not capture.ended:  # the record comes first: all of it goes out together
            await capture.news()
        if capture.ended and not capture.whole:
            return await self._nothing_to_relay(attempt, run)
        headers = request.executed(attempt, capture.status, capture.headers)
        try:
            await self._send({"type": "http.response.start", "status": capture.status, "headers": headers})
            while await self._relay_piece(capture):
                await capture.news()
        except (OSError, TimeoutError):
            log.info("record %s: the client left before the end of its response", request.record)
            return False
        return True

    async def _relay_piece(self, capture: Capture) -> bool:
        piece, ended = capture.read(), capture.ended
        if ended and not capture.whole:
            return False  # it broke off: without a last message, the server closes the connection
        message = {"type": "http.response.body", "body": piece, "more_body": not ended}
        await within(self._middleware.body_timeout, self._send(message))
        return not ended

    async def _nothing_to_relay(self, attempt: Attempt, run: Execution) -> bool:
        request = self._request
        if run.slug is not None:
            retryable = None
            if run.slug == "upstream-failed":
                retryable = request.policy.settings.on_unknown == "retry"
            await self._answer(request.problem(run.slug, run.detail, attempt=attempt.number, retryable=retryable))
        elif not isinstance(run.raised, LeaseLost):  # the server answers for an app that raised
            request.observed(Decision.RUN.value, 500, attempt.number)
        return True

    async def _answer(self, answer: Answer) -> None:
        try:
            await self._send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
            await self._send({"type": "http.response.body", "body": answer.body})
        except OSError:
            log.debug("record %s: the client left before its answer", self._request.record)
