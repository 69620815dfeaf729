"""The exchange: takes one request under enforcement, over ASGI, from its key to the last byte of its answer."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from contextvars import Context, copy_context
from typing import Any, Final

from oncegate.cache.errors import CacheUnavailable, RecordUnreadable
from oncegate.middleware.admission.admission import Ask, Verdict
from oncegate.middleware.admission.attempt import Attempt, LeaseLost
from oncegate.middleware.admission.gate import Decision
from oncegate.middleware.admission.within import within
from oncegate.middleware.http.app_run import Execution
from oncegate.middleware.http.asgi import App, Receive, Send
from oncegate.middleware.http.bypass import Bypass
from oncegate.middleware.http.enforcement import Enforcement
from oncegate.middleware.http.extensions import SCOPE_EXTENSION, SUBMISSION_EXTENSION, AttemptView, Submission
from oncegate.middleware.http.keyed_request import EnforcedRequest
from oncegate.middleware.http.request import BodyAgain, read_body
from oncegate.middleware.outcome.problems import Answer
from oncegate.middleware.rules.errors import Overloaded, Refusal
from oncegate.middleware.rules.policy import ATTEMPT_HEADER, Policy

log = logging.getLogger("oncegate.http")

_MAX_ADMISSIONS = 3
"""How often a request whose attempt was lost before it began is decided anew."""
_REPLAY: Final = Decision.REPLAY  # members of an enumeration take long to look up
_UNENFORCEABLE = frozenset(
    {"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers", "http.response.push"}
)
"""ASGI extensions by which an app would send what can't be captured."""


Found = Execution | Verdict | Exception | None
"""The result of admission: the attempt, begun; the verdict on the record in its way; an error; ``None``: not requested yet."""


class Exchange:
    """One request under ``policy``. `serve` is all there is to call, unless part of the way was gone already.

    Then ``request`` is the one that was begun: `decide` goes on from its admission, `resume` from an attempt already begun.

    Usually the request waits once, for whatever comes first: its refusal, its replay, or the response of its attempt, which is
    begun by the callback of the cache's answer. Each wait resumes all coroutines around it, and what is alive meanwhile keeps the
    garbage collector busy.
    """

    __slots__ = (
        "_ask",
        "_body",
        "_context",
        "_enforcement",
        "_found",
        "_held",
        "_left",
        "_receive",
        "_request",
        "_scope",
        "_send",
        "_told",
    )

    _ask: Ask
    _body: bytes
    _told: "asyncio.Future[None]"

    def __init__(
        self,
        enforcement: Enforcement,
        policy: Policy,
        scope: Mapping[str, Any],
        receive: Receive,
        send: Send,
        request: EnforcedRequest | None = None,
    ) -> None:
        self._enforcement = enforcement
        self._request = request or EnforcedRequest(enforcement, policy, scope)
        self._scope = scope
        self._receive = receive
        self._send = send
        self._context: Context | None = None
        self._found: Found = None
        self._left = False
        self._held = 0
        """Bytes of the body that are counted as waiting to be admitted."""

    def serve(self) -> Awaitable[None]:
        """The awaitable that answers the request. Raises only what an in-process app raised."""
        request = self._request
        try:
            look_up_key = request.identify()
        except Refusal as refusal:
            return self._answer(request.refused(refusal))
        return self._bypass() if look_up_key is None else self._serve(look_up_key)

    async def _serve(self, look_up_key: str) -> None:
        request = self._request
        limit = request.policy.max_request_body
        body: bytes | None = None
        refusal: Refusal | None = None
        try:
            body = await read_body(self._receive, request.fields, limit, self._enforcement.body_timeout, self._hold)
        except Refusal as raised:
            refusal = raised
        except BaseException:  # also a cancellation: the body isn't held any more
            self._let_go()
            raise
        if body is None:
            self._let_go()
            if refusal is not None:
                await self._answer(request.refused(refusal))
            return
        self._ask, self._body = request.ask(look_up_key, body), body
        loop = asyncio.get_running_loop()
        self._told, self._context = loop.create_future(), copy_context()
        if self._enforcement.enforcer.claim_soon(self._ask, loop, self._claimed):
            try:
                await self._told
            except BaseException as end:  # a closed loop ends it without a cancellation
                self._leave(end)
                raise
        found, self._found = self._found, None
        body = None
        failure: BaseException | None = None
        refused: Exception | None = None
        try:
            failure = await self._conclusion(found)
        except (Refusal, RecordUnreadable, CacheUnavailable) as error:
            refused = error
        if failure is not None or refused is not None:
            await self._go_on(failure, refused)

    async def _go_on(self, failure: BaseException | None, refused: Exception | None) -> None:
        """Answer a request after one admission came to nothing."""
        if refused is not None:
            await self._answer(self._request.refused(refused))
        elif isinstance(failure, LeaseLost):
            await self.decide(self._ask, self._body, admissions=_MAX_ADMISSIONS - 1)
        elif failure is not None:
            raise failure

    def _conclusion(self, found: Found) -> Awaitable[BaseException | None]:
        """The first steps of `decide`, shortened for the usual cases; returns what the app raised, or `LeaseLost`."""
        if isinstance(found, Execution):
            return self._relay(found)
        if isinstance(found, Verdict) and found.decision is _REPLAY and not self._scope.get("extensions"):
            return self._tell(found)
        return self.decide(self._ask, self._body, found)

    def _claimed(self, answer: Any) -> None:
        """Callback of the cache's answer, in a context of its own. An error must not end here: the waiting request gets it."""
        if self._left or self._told.done():  # the request is gone: `_leave` gives a won claim back
            return
        context, self._context = self._context, None
        if context is not None:
            context.run(self._hear, answer)
        if not isinstance(self._found, Execution):
            self._told.set_result(None)

    def _hear(self, answer: Any) -> None:
        """Act on the cache's answer; an attempt begins, with the context that the request had when it claimed."""
        try:
            outcome = self._enforcement.enforcer.admitted(self._ask, answer)
            self._found = self._begin(outcome, self._body, self._told) if isinstance(outcome, Attempt) else outcome
        except Exception as error:  # noqa: BLE001 - answered, or raised to the server, by who waits
            self._found = error

    def _leave(self, end: BaseException) -> None:
        """The request ends while it waits for the cache's answer, or for its attempt."""
        self._left = True
        self._let_go()
        if isinstance(self._found, Execution):
            self._found.leave()
        elif self._found is None:
            self._enforcement.enforcer.give_up(self._ask, end)

    async def decide(
        self, ask: Ask, body: bytes, found: "Found | Attempt" = None, admissions: int = _MAX_ADMISSIONS
    ) -> None:
        """Answer a request whose body is whole. ``found``: its attempt, not begun yet, or the verdict that it is to wait for."""
        request, enforcer = self._request, self._enforcement.enforcer
        failure: BaseException | None = None
        refused: Exception | None = None
        try:
            for _ in range(admissions):
                if isinstance(found, Exception):
                    raise found
                if not isinstance(found, Execution):
                    self._wait_for_no_outer(ask)
                    self._hold_what_may_wait(ask, body, found)
                    try:
                        outcome = found if isinstance(found, Attempt) else await enforcer.admit(ask, found)
                    finally:
                        if ask.waited:
                            request.applied = int(ask.wait)
                    if isinstance(outcome, Verdict):
                        body = b""
                        failure = await self._meet(outcome)
                        break
                    found = await self._begun(outcome, body)
                failure = await self._relay(found)
                if not isinstance(failure, LeaseLost):
                    break
                found = None
            else:
                raise Overloaded("The request was overtaken again and again before it could begin: try again later.")
        except (Refusal, RecordUnreadable, CacheUnavailable) as error:
            refused = error
        finally:
            self._let_go()
        if refused is not None:
            await self._answer(request.refused(refused))
        elif failure is not None:
            raise failure

    def _meet(self, verdict: Verdict) -> Awaitable[Exception | None]:
        """Answer by the record in the way; if it is that of the attempt around us, call the app, and return what it raised."""
        outer = self._outer()
        if outer is not None and verdict.record.token == outer.token:
            self._let_go()
            return self._step_aside(self._body)
        return self._tell(verdict)

    def _tell(self, verdict: Verdict) -> Awaitable[None]:
        if self._held:
            self._let_go()
        self._body = b""  # its client may take the answer as slowly as it likes
        return self._answer(self._request.told(verdict))

    def _hold(self, size: int) -> None:
        """Count ``size`` bytes as held. Raises `Overloaded` where that is too much."""
        self._enforcement.buffered.take(size)
        self._held += size

    def _hold_what_may_wait(self, ask: Ask, body: bytes, found: "Found | Attempt") -> None:
        """Count a body whose request may wait long for a slot or an answer. Raises `Overloaded`."""
        if isinstance(found, Verdict):
            may_wait = found.decision is Decision.IN_FLIGHT and ask.wait > 0
        else:
            in_flight = self._enforcement.enforcer.in_flight
            may_wait = found is None and (ask.wait > 0 or in_flight.slots >= in_flight.max_in_flight)
        if may_wait and not self._held:
            self._hold(len(body))

    def _let_go(self) -> None:
        """They are held no longer."""
        if self._held:
            self._enforcement.buffered.give_back(self._held)
            self._held = 0

    # -- not enforced -------------------------------------------------------------------------------------------------

    def _bypass(self) -> Awaitable[None]:
        """Of its own it awaits nothing: the app answers a request that has no key."""
        request = self._request
        scope = self._scope
        if ATTEMPT_HEADER in request.fields:
            scope = {**scope, "headers": request.headers()}
        bypass = Bypass(self._enforcement.observe, request.policy, scope, self._send)
        return self._enforcement.app(scope, self._receive, bypass.send)

    # -- enforced already ---------------------------------------------------------------------------------------------

    def _outer(self) -> AttemptView | None:
        """The attempt of another middleware around this one, where it is under the same key of the same caller."""
        given = self._scope.get("extensions")
        view = given.get(SCOPE_EXTENSION) if given else None
        return view if isinstance(view, AttemptView) and view.record == self._request.record else None

    def _wait_for_no_outer(self, ask: Ask) -> None:
        """Its attempt would not end while we wait for it."""
        if ask.wait > 0 and self._outer() is not None:
            ask.wait = 0.0

    async def _step_aside(self, body: bytes) -> Exception | None:
        """Call the app as if nothing were around it: the record in the way is that of the very attempt that we are in.

        Returns what it raised. The owner token tells that, so that it holds whatever names the same store: two connections,
        two URLs.
        """
        log.debug("record %s: enforced by a middleware around this one already", self._request.record)
        again = BodyAgain(body, self._receive)
        try:
            await self._enforcement.app(self._scope, again.receive, self._send)
        except Exception as error:  # noqa: BLE001 - raised where it can't be taken for one of ours
            return error
        return None

    # -- an attempt of our own ----------------------------------------------------------------------------------------

    def _begin(self, attempt: Attempt, body: bytes, told: "asyncio.Future[None]") -> Execution:
        """Run the attempt, which has a slot. ``told`` is done once there is a response to be relayed, or it lasts too long."""
        if self._held:
            self._let_go()
        run = Execution(self._enforcement, attempt)
        in_flight, loop = self._enforcement.enforcer.in_flight, told.get_loop()
        work = run.execute(self._attempt_scope(attempt, run), body)
        run.patient = True  # until it lasts
        run.task = in_flight.run(attempt, work, loop, run.lasts)
        run.expect(told)
        return run

    async def _begun(self, attempt: Attempt, body: bytes) -> Execution:
        told = asyncio.get_running_loop().create_future()
        run = self._begin(attempt, body, told)
        await _either(told, run)
        return run

    async def resume(self, attempt: Attempt, app: App, left: float) -> None:
        """Go on with an attempt that was begun: ``app`` has its response, or will, within ``left`` seconds if in time."""
        run = Execution(self._enforcement, attempt)
        in_flight = self._enforcement.enforcer.in_flight
        told = asyncio.get_running_loop().create_future()
        run.task = in_flight.go_on(attempt, run.resume(app))
        run.expect(told)
        run.limit(in_flight.limits.of(left))
        await _either(told, run)
        failure = await self._relay(run)
        if failure is not None:
            raise failure

    def _attempt_scope(self, attempt: Attempt, run: Execution) -> dict[str, Any]:
        scope, request = self._scope, self._request
        given = scope.get("extensions")
        extensions = {name: given[name] for name in given if name not in _UNENFORCEABLE} if given else {}
        extensions[SCOPE_EXTENSION] = AttemptView(attempt.number, request.record, run.confirm, attempt.token)
        if attempt.submission:
            policy = request.policy
            submission = Submission(
                request.key or "", attempt.fingerprint, policy.route, policy.stream, policy.travelling
            )
            extensions[SUBMISSION_EXTENSION] = submission
        return {**scope, "headers": request.headers(attempt), "extensions": extensions}

    async def _relay(self, run: Execution) -> BaseException | None:
        """Send the client the response as it comes. Returns what the app raised, or `LeaseLost` where nothing was begun."""
        request, attempt = self._request, run.attempt
        try:
            if not run.status and not run.ended:
                detail = "The upstream has not answered yet; the attempt goes on: ask again with the same key."
                await self._answer(request.problem("upstream-timeout", detail, attempt=attempt.number))
                return None
            if (run.whole or run.bodiless) and not run.ended:  # the record comes first: all of it goes out together
                await run.news()
            if run.ended and not run.whole:
                await self._nothing_to_relay(run)
            else:
                headers = request.executed(attempt, run.status, run.headers)
                await self._send({"type": "http.response.start", "status": run.status, "headers": headers})
                # One that breaks off gets no last message: the server closes the connection.
                while not run.ended or run.whole:
                    piece, ended = run.read(), run.ended
                    message = {"type": "http.response.body", "body": piece, "more_body": not ended}
                    await within(self._enforcement.body_timeout, self._send(message), run.stalls)
                    if run.slow:
                        run.catches_up()
                    if ended:
                        break
                    await run.news()
        except (OSError, TimeoutError):
            log.info("record %s: the client left before the end of its response", request.record)
            return None
        finally:
            if run.slow:
                run.catches_up()
            run.leave()
        if run.task is not None:  # background tasks of the app; a test client's loop would end them with the request
            await asyncio.shield(run.task)
        return run.raised

    async def _nothing_to_relay(self, run: Execution) -> None:
        request, attempt = self._request, run.attempt
        if run.slug is not None:
            retryable = None
            if run.slug == "upstream-failed":
                retryable = request.policy.settings.on_unknown == "retry"
            await self._answer(request.problem(run.slug, run.detail, attempt=attempt.number, retryable=retryable))
        elif not isinstance(run.raised, LeaseLost):  # the server answers for an app that raised
            request.observed(Decision.RUN.value, 500, attempt.number)

    async def _answer(self, answer: Answer) -> None:
        try:
            await self._send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
            await self._send({"type": "http.response.body", "body": answer.body})
        except OSError:
            log.debug("record %s: the client left before its answer", self._request.record)


async def _either(told: "asyncio.Future[None]", run: Execution) -> None:
    try:
        await told
    except BaseException:  # however the wait ends, the response has no reader any more
        run.leave()
        raise
