"""The exchange: takes one request under enforcement, over ASGI, from its key to the last byte of its answer."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping
from contextvars import Context, copy_context
from typing import Any, Final

from oncegate.cache.errors import CacheUnavailable, RecordUnreadable
from oncegate.middleware.admission.admission import AdmissionRequest, Verdict
from oncegate.middleware.admission.attempt import Attempt, LeaseLost
from oncegate.middleware.admission.gate import Decision
from oncegate.middleware.admission.within import within
from oncegate.middleware.http.app_run import AppRun
from oncegate.middleware.http.asgi import App, Receive, Send
from oncegate.middleware.http.body import BodyAgain, read_body
from oncegate.middleware.http.door import HttpDoor
from oncegate.middleware.http.extensions import SCOPE_EXTENSION, SUBMISSION_EXTENSION, AttemptView, Submission
from oncegate.middleware.http.keyed_request import KeyedRequest
from oncegate.middleware.outcome.problems import Answer
from oncegate.middleware.rules.errors import Overloaded, Refusal

log = logging.getLogger("oncegate.http")

_MAX_ADMISSIONS = 3
"""How often a request whose attempt was lost before it began is decided anew."""
_IN_FLIGHT: Final = Decision.IN_FLIGHT  # members of an enumeration take long to look up
_UNENFORCEABLE = frozenset(
    {"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers", "http.response.push"}
)
"""ASGI extensions by which an app would send what can't be captured."""

Found = AppRun | Verdict | Exception | None
"""The result of admission: the attempt, begun; the verdict on the record in its way; an error; ``None``: none yet."""


class Exchange:
    """One request with a key. `serve` is all there is to call, unless part of the way was gone already: `decide` goes on from
    its admission, `resume` from an attempt already begun.

    Usually the request waits once, for whatever comes first: its refusal, its replay, or the response of its attempt, which is
    begun by the callback of the cache's answer. Each wait resumes all coroutines around it, and what is alive meanwhile keeps the
    garbage collector busy.
    """

    __slots__ = (
        "_admission",
        "_body",
        "_context",
        "_door",
        "_found",
        "_held",
        "_ready",
        "_receive",
        "_request",
        "_scope",
        "_send",
    )

    _admission: AdmissionRequest
    _body: bytes

    def __init__(
        self,
        door: HttpDoor,
        request: KeyedRequest,
        scope: Mapping[str, Any],
        receive: Receive,
        send: Send,
    ) -> None:
        self._door = door
        self._request = request
        self._scope = scope
        self._receive = receive
        self._send = send
        self._context: Context | None = None
        self._found: Found = None
        self._ready: asyncio.Future[None] | None = None
        """Done once something was found; ``None`` while nothing is waited for."""
        self._held = 0
        """Bytes of the body that are counted as waiting to be admitted."""

    def refuse(self, refusal: Refusal) -> Awaitable[None]:
        """Answer a request that was refused."""
        return self._answer(self._request.refused(refusal))

    def serve(self, look_up_key: str) -> Awaitable[None]:
        """The awaitable that answers the request. Raises only what an in-process app raised."""
        return self._conclude(look_up_key)

    def decide(
        self, admission: AdmissionRequest, body: bytes, found: Attempt | Verdict | None
    ) -> Coroutine[Any, Any, None]:
        """Answer a request whose body is whole. ``found``: its attempt, not begun yet, or the verdict that it is to wait for."""
        self._admission, self._body = admission, body
        return self._conclude(None, found)

    async def _conclude(  # noqa: C901 - the whole way of a request with a key, on one screen
        self, look_up_key: str | None, found: "Found | Attempt" = None
    ) -> None:
        """Read the body, where there is a ``look_up_key``; claim the record; relay the attempt's response, or answer by the
        record. The claim is sent once more where the lease was lost before anything began, and after a wait.
        """
        request = self._request
        body: bytes | None = None
        failure: BaseException | None = None
        refused: Exception | None = None
        lost = 0
        try:
            if look_up_key is not None:
                limit, timeout = request.policy.max_request_body, self._door.body_timeout
                body = await read_body(self._receive, request.fields, limit, timeout, self._hold)
                if body is None:  # the client left
                    return
                self._admission, self._body = request.admission(look_up_key, body), body
                body = None
            while lost < _MAX_ADMISSIONS:
                if found is None or isinstance(found, Attempt):
                    await self._begin_or_claim(found)
                    found, self._found, self._ready = self._found, None, None
                if isinstance(found, AppRun):
                    failure = await self._relay(found)
                    if not isinstance(failure, LeaseLost):
                        break
                    lost += 1
                elif isinstance(found, Verdict):
                    verdict = found if found.decision is not _IN_FLIGHT else await self._waited(found)
                    if verdict is not None:
                        failure = await self._meet(verdict)
                        break
                elif found is not None:
                    raise found
                found = None
        except (Refusal, RecordUnreadable, CacheUnavailable) as error:
            refused = error
        except BaseException as end:  # a closed loop ends it without a cancellation
            self._leave(end)
            raise
        finally:
            if self._held:
                self._let_go()
        if refused is not None or failure is not None:
            await self._end(failure, refused)

    async def _end(self, failure: BaseException | None, refused: Exception | None) -> None:
        if isinstance(failure, LeaseLost):
            detail = "The request was overtaken again and again before it could begin: try again later."
            refused = Overloaded(detail)
        if refused is not None:
            await self._answer(self._request.refused(refused))
        elif failure is not None:
            raise failure

    def _begin_or_claim(self, attempt: Attempt | None) -> "asyncio.Future[None]":
        """Run the attempt, or claim the record first; done once there is something to be given to the client."""
        admission, admissions = self._admission, self._door.admissions
        in_flight = admissions.in_flight
        if admission.wait > 0 and self._outer() is not None:  # its attempt would not end while we wait for it
            admission.wait = 0.0
        if attempt is None and (admission.wait > 0 or in_flight.slots >= in_flight.max_in_flight):
            self._hold_once()
        loop = asyncio.get_running_loop()
        self._ready = ready = loop.create_future()
        if attempt is not None:
            self._found = self._begin(attempt, self._body, ready)
        else:
            self._context = copy_context()
            admissions.claim(admission, loop, self._claimed)
        return ready

    def _claimed(self, answer: Any) -> None:
        """Callback of the cache's answer, in a context of its own. An error must not end here: the waiting request gets it."""
        ready = self._ready
        if ready is None or ready.done():  # the request is gone: `_leave` gives a won claim back
            return
        context, self._context = self._context, None
        if context is not None:
            context.run(self._admitted, answer, ready)
        if not isinstance(self._found, AppRun):
            ready.set_result(None)

    def _admitted(self, answer: Any, ready: "asyncio.Future[None]") -> None:
        """Act on the cache's answer; an attempt begins, with the context that the request had when it claimed."""
        try:
            outcome = self._door.admissions.admitted(self._admission, answer)
            self._found = self._begin(outcome, self._body, ready) if isinstance(outcome, Attempt) else outcome
        except Exception as error:  # noqa: BLE001 - answered, or raised to the server, by who waits
            self._found = error

    def _leave(self, end: BaseException) -> None:
        """The request ends; if it waits for the cache's answer, or for its attempt, that has no reader any more."""
        if self._ready is None:
            return
        self._ready = None
        if isinstance(self._found, AppRun):
            self._found.leave()
        elif self._found is None:
            self._door.admissions.give_up(self._admission, end)

    async def _waited(self, found: Verdict) -> Verdict | None:
        admission = self._admission
        if admission.wait <= 0:
            return found
        self._hold_once()
        try:
            return await self._door.admissions.wait(admission, found)
        finally:
            self._request.applied = int(admission.wait)

    def _meet(self, verdict: Verdict) -> Awaitable[Exception | None]:
        """Answer by the record in the way; if it is that of the attempt around us, call the app, and return what it raised."""
        if self._held:
            self._let_go()
        if self._scope.get("extensions"):
            outer = self._outer()
            if outer is not None and verdict.record.token == outer.token:
                return self._step_aside(self._body)
        self._body = b""  # its client may take the answer as slowly as it likes
        return self._answer(self._request.answer_by(verdict))

    def _hold(self, size: int) -> None:
        """Count ``size`` bytes as held. Raises `Overloaded` where that is too much."""
        self._door.buffered.take(size)
        self._held += size

    def _hold_once(self) -> None:
        """Count the body, whose request may wait long for a slot or an answer. Raises `Overloaded`."""
        if not self._held:
            self._hold(len(self._body))

    def _let_go(self) -> None:
        """They are held no longer."""
        if self._held:
            self._door.buffered.give_back(self._held)
            self._held = 0

    # -- enforced already ---------------------------------------------------------------------------------------------

    def _outer(self) -> AttemptView | None:
        """The attempt of another middleware around this one, where it is under the same key of the same caller."""
        given = self._scope.get("extensions")
        view = given.get(SCOPE_EXTENSION) if given else None
        return view if isinstance(view, AttemptView) and view.record == self._request.record else None

    async def _step_aside(self, body: bytes) -> Exception | None:
        """Call the app as if nothing were around it: the record in the way is that of the very attempt that we are in.

        Returns what it raised. The owner token shows that, so that it holds whatever names the same store: two connections,
        two URLs.
        """
        log.debug("record %s: enforced by a middleware around this one already", self._request.record)
        again = BodyAgain(body, self._receive)
        try:
            await self._door.app(self._scope, again.receive, self._send)
        except Exception as error:  # noqa: BLE001 - raised where it can't be taken for one of ours
            return error
        return None

    # -- an attempt of our own ----------------------------------------------------------------------------------------

    def _begin(self, attempt: Attempt, body: bytes, ready: "asyncio.Future[None]") -> AppRun:
        """Run the attempt, which has a slot. ``ready`` is done once there is a response to be relayed, or it lasts too long."""
        if self._held:
            self._let_go()
        run = AppRun(self._door, attempt)
        in_flight, loop = self._door.admissions.in_flight, ready.get_loop()
        work = run.execute(self._attempt_scope(attempt, run), body)
        run.patient = True  # until it lasts
        run.task = in_flight.run(attempt, work, loop, run.lasts)
        run.expect(ready)
        return run

    async def resume(self, attempt: Attempt, app: App, left: float) -> None:
        """Go on with an attempt that was begun: ``app`` has its response, or will, within ``left`` seconds if in time."""
        run = AppRun(self._door, attempt)
        in_flight = self._door.admissions.in_flight
        ready = asyncio.get_running_loop().create_future()
        run.task = in_flight.go_on(attempt, run.resume(app))
        run.expect(ready)
        run.limit(in_flight.limits.of(left))
        try:
            await ready
        except BaseException:  # however the wait ends, the response has no reader any more
            run.leave()
            raise
        failure = await self._relay(run)
        if failure is not None:
            raise failure

    def _attempt_scope(self, attempt: Attempt, run: AppRun) -> dict[str, Any]:
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

    async def _relay(self, run: AppRun) -> BaseException | None:
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
                    await within(self._door.body_timeout, self._send(message), run.stalls)
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

    async def _nothing_to_relay(self, run: AppRun) -> None:
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
