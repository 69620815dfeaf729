"""One request under enforcement, from its key to the last byte of its answer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from oncegate.cache.errors import CacheUnavailable, RecordUnreadable
from oncegate.cache.record import State
from oncegate.middleware import respond
from oncegate.middleware.attempt import Attempt, LeaseLost
from oncegate.middleware.capture import Capture, Message
from oncegate.middleware.deadlines import within
from oncegate.middleware.enforce import Ask, Verdict
from oncegate.middleware.errors import Overloaded, Refusal
from oncegate.middleware.execution import Execution
from oncegate.middleware.fingerprint import fingerprint
from oncegate.middleware.gate import Decision
from oncegate.middleware.key import Fields, pick, record_id, record_key
from oncegate.middleware.observe import Observation
from oncegate.middleware.policy import ATTEMPT_HEADER, Policy
from oncegate.middleware.problems import Answer, challenge, original_result, problem
from oncegate.middleware.processor import SCOPE_EXTENSION, SUBMISSION_EXTENSION, AttemptView, Submission
from oncegate.middleware.request import (
    Receive,
    is_signed,
    read_body,
    request_key,
    request_scope,
    wanted_wait,
    wants_async,
    wants_error,
)

if TYPE_CHECKING:
    from oncegate.middleware.http import IdempotencyMiddleware

log = logging.getLogger("oncegate.http")

_MAX_ADMISSIONS = 3
"""How often a request whose attempt was lost before it began is decided anew."""
_UNENFORCEABLE = frozenset(
    {"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers", "http.response.push"}
)
"""ASGI extensions by which an app would send what can't be captured."""

_DETAILS = {
    Decision.IN_FLIGHT: "The first request with this key is still being executed: try again later, or send Prefer: wait.",
    Decision.MISMATCH: "This key was used for a request with another method, path, query or payload: use a new key.",
    Decision.REFUSE: "An earlier request with this key may or may not have been executed: find out before sending another.",
    Decision.DUPLICATE: "A request with this key was already processed: its result is in original_result.",
}


class Exchange:
    """One request under ``policy``. `serve` is all there is to call."""

    def __init__(
        self,
        middleware: "IdempotencyMiddleware",
        policy: Policy,
        scope: Mapping[str, Any],
        receive: Receive,
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        self._middleware = middleware
        self._policy = policy
        self._scope = scope
        self._receive = receive
        self._send = send
        self._began = monotonic()
        self._fields: Fields = {}
        self._key: str | None = None
        self._key_line = b""
        self._generated = False
        self._record = ""
        self._applied: int | None = None
        """The seconds of ``Prefer: wait`` that were applied, if a wait took place."""
        self._asked_async = False
        self._accepted = False
        """Whether the answer is the one that a submission got."""

    async def serve(self) -> None:
        """Answer the request. Raises only what an in-process app raised."""
        try:
            look_up_key = self._identify()
        except Refusal as refusal:
            await self._problem(refusal.slug, str(refusal))
            return
        if look_up_key is None:
            await self._bypass()
            return
        try:
            failure = await self._enforce(look_up_key)
        except Refusal as refusal:
            await self._problem(refusal.slug, str(refusal))
        except RecordUnreadable as error:
            log.error("record %s: %s", self._record, error)
            await self._problem(
                "record-unreadable", "The record of this key is damaged, or of a newer version of oncegate."
            )
        except CacheUnavailable as error:
            log.warning("record %s: refused, the cache is unavailable: %s", self._record, error)
            await self._problem("cache-unavailable", "The record cache can't be reached. Nothing was executed.")
        else:
            if failure is not None:
                raise failure

    def _identify(self) -> str | None:
        """The look-up key of the request's record, or ``None`` where no key came. Raises a `Refusal`."""
        policy = self._policy
        self._fields = fields = pick(self._scope["headers"], policy.wanted)
        found = request_key(fields, policy)
        if found is None:
            return None
        self._key, self._key_line, self._generated = found
        if policy.submission is not None:
            self._asked_async = wants_async(fields)
            if self._asked_async or policy.mode == "async":
                self._policy = policy = policy.submission
        look_up_key = record_key(self._middleware.namespace, self._key, request_scope(fields, policy))
        self._record = record_id(look_up_key)
        if self._middleware.warn_of_signed_callers and is_signed(fields):
            self._warn_of_signed_callers()
        return look_up_key

    async def _enforce(self, look_up_key: str) -> Exception | None:
        """Answer an identified request. Returns what an in-process app raised, for the server to deal with."""
        policy, fields = self._policy, self._fields
        body = await read_body(self._receive, fields, policy.settings.max_request_body, self._middleware.body_timeout)
        if body is None:
            return None
        wait = wanted_wait(fields, policy)
        ask = Ask(
            look_up_key,
            self._fingerprint(body),
            policy,
            wait,
            wants_error(fields, policy),
            submission=bool(policy.stream),
        )
        for _ in range(_MAX_ADMISSIONS):
            try:
                outcome = await self._middleware.enforcer.admit(ask)
            finally:
                if ask.waited:
                    self._applied = wait
            if isinstance(outcome, Verdict):
                await self._tell(outcome)
                return None
            result = await self._run(outcome, body)
            if not isinstance(result, LeaseLost):
                return result
        raise Overloaded("The request was overtaken again and again before it could begin: try again later.")

    def _fingerprint(self, body: bytes) -> bytes:
        scope = self._scope
        path = scope.get("raw_path") or scope["path"].encode()
        as_json = self._policy.settings.fingerprint == "json"
        return fingerprint(scope["method"], path, scope.get("query_string", b""), body, as_json=as_json)

    def _warn_of_signed_callers(self) -> None:
        self._middleware.warn_of_signed_callers = False
        log.warning(
            "Authorization changes with each request here (a signing scheme), so that no retry meets its own record: "
            "set scope to a header that names the caller"
        )

    # -- not enforced, or somebody else's result ----------------------------------------------------------------------

    async def _bypass(self) -> None:
        send = self._send

        def send_marked(message: Message) -> Awaitable[None]:  # of its own it awaits nothing
            if message["type"] == "http.response.start":
                message = {**message, "headers": respond.bypassed_headers(message.get("headers", ()))}
                self._observed(Decision.BYPASS.value, message["status"])
            return send(message)

        scope = self._scope
        if ATTEMPT_HEADER in self._fields:
            scope = {**scope, "headers": self._headers()}
        await self._middleware.app(scope, self._receive, send_marked)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        """The request's, without a word on attempts, which only we may say."""
        headers = self._scope["headers"]
        if ATTEMPT_HEADER not in self._fields:
            return [*headers]
        return [line for line in headers if line[0] != ATTEMPT_HEADER]

    async def _tell(self, verdict: Verdict) -> None:
        record, decision = verdict.record, verdict.decision
        if verdict.mismatch:
            log.warning("record %s: another payload under a used key; answered by on_mismatch = warn", self._record)
        if decision is Decision.REPLAY and record.response is not None:
            self._accepted = record.submission and record.state is State.SUCCEEDED
            answer = respond.replay(record.response, verdict.remaining_ms, policy=self._policy, key_line=self._key_line)
            await self._answer(answer, decision.value, record.attempt, mismatch=verdict.mismatch)
            return
        extra = {"original_result": original_result(record.response)} if decision is Decision.DUPLICATE else None
        await self._problem(
            decision.value, _DETAILS[decision], attempt=record.attempt, extra=extra, mismatch=verdict.mismatch
        )

    # -- an attempt of our own ----------------------------------------------------------------------------------------

    async def _run(self, attempt: Attempt, body: bytes) -> Exception | None:
        """Run the attempt and relay its response. Returns what the app raised, or `LeaseLost` where nothing was begun."""
        run = Execution(self._middleware, attempt)
        task = self._middleware.enforcer.in_flight.run(attempt, run.execute(self._attempt_scope(attempt, run), body))
        try:
            done = await self._relay(attempt, run)
        finally:
            run.capture.leave()
        if not done:
            return None
        if not task.done():  # background tasks of the app; a test client's loop would end them with the request
            await asyncio.shield(task)
        return run.raised

    def _attempt_scope(self, attempt: Attempt, run: Execution) -> dict[str, Any]:
        scope = self._scope
        headers = self._headers()
        if attempt.number:
            headers.append((ATTEMPT_HEADER, b"%d" % attempt.number))
        if self._generated:
            headers.append((self._policy.key_names[0], self._key_line))
        extensions = {
            name: value for name, value in (scope.get("extensions") or {}).items() if name not in _UNENFORCEABLE
        }
        extensions[SCOPE_EXTENSION] = AttemptView(attempt.number, self._record, run.confirm)
        if attempt.submission:
            policy, key = self._policy, self._key or ""
            extensions[SUBMISSION_EXTENSION] = Submission(key, attempt.fingerprint, policy.route, policy.stream)
        return {**scope, "headers": headers, "extensions": extensions}

    async def _relay(self, attempt: Attempt, run: Execution) -> bool:
        """Give the client the response as it comes. False: the client was answered, the attempt goes on without it."""
        capture = run.capture
        limits = self._middleware.enforcer.in_flight.limits
        if not await capture.begun(limits.of(self._policy.settings.response_timeout)):
            await self._problem(
                "upstream-timeout",
                "The upstream has not answered yet; the attempt goes on: ask again with the same key.",
                attempt=attempt.number,
            )
            return False
        if capture.whole or capture.bodiless:  # the record comes first: head and body go out together
            await capture.news()
        if capture.ended and not capture.whole:
            return await self._nothing_to_relay(attempt, run)
        headers = respond.executed_headers(
            capture.headers, capture.status, policy=self._policy, key_line=self._key_line, recorded=attempt.number > 0
        )
        decision = Decision.RUN if attempt.number else Decision.BYPASS  # without a record, nothing is enforced
        self._observed(decision.value, capture.status, attempt.number)
        self._accepted = attempt.submission
        self._add_preference(headers)
        try:
            await self._send({"type": "http.response.start", "status": capture.status, "headers": headers})
            while await self._relay_piece(capture):
                await capture.news()
        except (OSError, TimeoutError):
            log.info("record %s: the client left before the end of its response", self._record)
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
        if run.slug is not None:
            retryable = None
            if run.slug == "upstream-failed":
                retryable = self._policy.settings.on_unknown == "retry"
            await self._problem(run.slug, run.detail, attempt=attempt.number, retryable=retryable)
        elif not isinstance(run.raised, LeaseLost):  # the server answers for an app that raised
            self._observed(Decision.RUN.value, 500, attempt.number)
        return True

    # -- answers ------------------------------------------------------------------------------------------------------

    async def _problem(
        self,
        slug: str,
        detail: str,
        *,
        attempt: int = 0,
        retryable: bool | None = None,
        extra: dict[str, Any] | None = None,
        mismatch: bool = False,
    ) -> None:
        answer = problem(
            slug,
            detail,
            docs_url=self._policy.settings.docs_url,
            key=self._key,
            record=self._record or None,
            retryable=retryable,
            extra=extra,
        )
        if self._key is not None:
            answer.headers.append((self._policy.key_names[0], self._key_line))
        if answer.status == 401:
            answer.headers.append(challenge(self._policy.scope_names))
        if answer.status in (408, 413) and self._scope.get("http_version", "1.1").startswith("1"):
            answer.headers.append((b"connection", b"close"))  # the rest of the body is not worth waiting for
        await self._answer(answer, slug, attempt, mismatch=mismatch)

    async def _answer(self, answer: Answer, decision: str, attempt: int, *, mismatch: bool = False) -> None:
        self._observed(decision, answer.status, attempt, mismatch=mismatch)
        self._add_preference(answer.headers)
        if self._middleware.date_header:
            answer.headers.append(respond.date())
        try:
            await self._send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
            await self._send({"type": "http.response.body", "body": answer.body})
        except OSError:
            log.debug("record %s: the client left before its answer", self._record)

    def _add_preference(self, headers: list[tuple[bytes, bytes]]) -> None:
        applied = [b"respond-async"] if self._asked_async and self._accepted else []
        if self._applied is not None:
            applied.append(b"wait=%d" % self._applied)
        if applied:
            headers.append((b"preference-applied", b", ".join(applied)))

    def _observed(self, decision: str, status: int, attempt: int = 0, *, mismatch: bool = False) -> None:
        if not self._middleware.is_observed:
            return
        self._middleware.observed(
            Observation(
                decision=decision,
                status=status,
                attempt=attempt,
                record=self._record,
                route=self._policy.route,
                method=self._scope["method"],
                seconds=monotonic() - self._began,
                mismatch=mismatch,
            )
        )
