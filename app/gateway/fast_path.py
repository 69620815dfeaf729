"""Fast path: answers a small, complete request by callbacks, without a task; whatever lasts is handed to the exchange.

Most requests are like that, and most of their cost in an ASGI app is waiting: a task, futures, messages, and a chain of
coroutines to resume at each step. Here each step is a callback of what it waited for: the client's bytes, the cache's
answer, the upstream's. The decisions are made by the same code.

Whatever lasts, or is unusual, leaves the fast path for a task that continues from the step reached: what is larger than one
read or write, an upstream without an idle connection, a response in pieces, an error, a wait for another request, a
submission that is to be accepted; and everything that is still under way a second later.
"""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from oncegate.app.server.request import InboundRequest
from oncegate.app.upstream.forward import Forwarder
from oncegate.cache.record import State
from oncegate.middleware.admission.admission import Verdict
from oncegate.middleware.admission.attempt import Attempt, LeaseLost
from oncegate.middleware.admission.gate import Decision
from oncegate.middleware.http.asgi import Receive, Scope, Send
from oncegate.middleware.http.enforcement import Enforcement
from oncegate.middleware.http.enter import Bypass
from oncegate.middleware.http.exchange import Exchange
from oncegate.middleware.http.extensions import AttemptView
from oncegate.middleware.http.keyed_request import KeyedRequest
from oncegate.middleware.outcome import responses
from oncegate.middleware.outcome.errors import NotProcessed
from oncegate.middleware.outcome.responses import Headers
from oncegate.middleware.rules.errors import Refusal
from oncegate.middleware.rules.policy import Policy

Answering = Callable[[Awaitable[None], Scope, Send], Coroutine[Any, Any, None]]
"""Awaits an answer by the upstream, and answers with a problem where that fails (`oncegate.app.gateway.gateway`)."""


class FastPath:
    """Takes a request that can be answered without a task."""

    def __init__(self, enforcement: Enforcement, forwarder: Forwarder) -> None:
        self._enforcement = enforcement
        self._forwarder = forwarder

    def take(self, request: InboundRequest, answering: Answering) -> bool:
        """Whether the request, which is whole, is being answered. ``answering`` is for the case that it leaves the fast path."""
        scope = request.scope
        enforcement, headers = self._enforcement, scope["headers"]
        policy = enforcement.policies.match(scope["method"], scope["path"], scope["raw_path"])
        if policy is None:
            return Passing(self._forwarder, request, answering).begin(headers)
        if policy.passes_named(request.fields):
            return self._bypass(request, answering, policy, headers)
        enforced = KeyedRequest(enforcement, policy, scope)
        try:
            look_up_key = enforced.identify(request.fields)
        except Refusal as refusal:
            request.answer(enforced.refused(refusal))
            return True
        if look_up_key is not None:
            return Enforcing(enforcement, self._forwarder, request, enforced).begin(look_up_key)
        return self._bypass(request, answering, policy, enforced.headers())

    def _bypass(self, request: InboundRequest, answering: Answering, policy: Policy, headers: Headers) -> bool:
        bypass = Bypass(self._enforcement.observe, policy, request.scope, request.send)
        return Passing(self._forwarder, request, answering, bypass).begin(headers)


class Passing:
    """One request that passes through. ``bypass``: its route's method is under enforcement, but it has no key."""

    __slots__ = ("_answering", "_began", "_bypass", "_connection", "_forwarder", "_limit", "_request", "_watches")

    def __init__(
        self,
        forwarder: Forwarder,
        request: InboundRequest,
        answering: Answering,
        bypass: Bypass | None = None,
    ) -> None:
        self._forwarder = forwarder
        self._request = request
        self._answering = answering
        self._bypass = bypass

    def begin(self, headers: Headers) -> bool:
        """Send it, with ``headers``, if that needs no waiting."""
        request = self._request
        connection = self._forwarder.begin(request.scope, headers, request.body)
        if connection is None:
            return False
        request.take()
        self._connection = connection
        self._began = connection.loop.time()
        self._watches = watches = self._forwarder.watches(connection.loop)
        self._limit = watches.set(self._leave)
        connection.then = self._on_response
        if connection.has_failed:
            self._leave()
        return True

    def _on_response(self) -> None:
        """The upstream's response has progressed, or failed."""
        connection, request = self._connection, self._request
        try:
            response = self._forwarder.take_response(connection)
            if response is not None:
                self._watches.drop(self._limit)
                status, headers, body = response
                if self._bypass is not None:
                    headers = self._bypass.headers(status, headers)
                request.respond(status, headers, body)
            elif not connection.is_soon_whole:
                self._leave()
        except Exception as error:  # noqa: BLE001 - logged there; who called has nothing to do with it
            self._watches.drop(self._limit)
            connection.forget()
            request.finish(error)

    def _leave(self) -> None:
        connection, request = self._connection, self._request
        self._watches.drop(self._limit)
        connection.then = None
        send = request.send if self._bypass is None else self._bypass.send
        rest = self._forwarder.resume(connection, self._began, request.scope["method"], request.receive, send)
        request.start(self._answering(rest, request.scope, request.send))


class Enforcing:
    """One request under enforcement, with its key."""

    __slots__ = (
        "_admission",
        "_attempt",
        "_body",
        "_connection",
        "_enforced",
        "_enforcement",
        "_forwarder",
        "_request",
        "_response",
    )

    def __init__(
        self,
        enforcement: Enforcement,
        forwarder: Forwarder,
        request: InboundRequest,
        enforced: KeyedRequest,
    ) -> None:
        self._enforcement = enforcement
        self._forwarder = forwarder
        self._request = request
        self._enforced = enforced

    def begin(self, look_up_key: str) -> bool:
        """Begin its admission, if that needs no waiting."""
        request, enforced = self._request, self._enforced
        self._body = body = request.body
        if len(body) > enforced.policy.max_request_body:
            return False
        self._admission = admission = enforced.admission(look_up_key, body)
        request.take()
        enforcer = self._enforcement.enforcer
        if enforcer.in_flight.slots < enforcer.in_flight.max_in_flight:
            enforcer.claim(admission, request.loop, self._on_claimed)
        else:  # bodies that may wait are counted there
            self._leave_unbegun(None)
        return True

    def _on_claimed(self, answer: Any) -> None:
        request = self._request
        try:
            outcome = self._enforcement.enforcer.admitted(self._admission, answer)
            if isinstance(outcome, Attempt):
                self._run(outcome)
            elif outcome.decision is Decision.IN_FLIGHT and self._admission.wait > 0:
                self._leave_unbegun(outcome)
            else:
                request.answer(self._enforced.answer_by(outcome))
        except Exception as error:  # noqa: BLE001 - answered or logged; who called has nothing to do with it
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        try:
            answer = self._enforced.refused(error)
        except Exception:  # noqa: BLE001 - the same one: there is no answer for it
            self._request.finish(error)
        else:
            self._request.answer(answer)

    def _run(self, attempt: Attempt) -> None:
        request = self._request
        connection = None
        # The first byte must not leave otherwise; and what accepts a submission is an app.
        if attempt.number and attempt.is_certain and not attempt.submission:
            try:
                connection = self._forwarder.begin(request.scope, self._enforced.headers(attempt), self._body)
            except Exception as error:  # noqa: BLE001 - logged; perhaps something was sent, so nothing may be sent again
                self._attempt = attempt
                self._enforcement.enforcer.in_flight.begin(attempt, request.loop)
                self._fail(error)
                return
        if connection is None:
            self._leave_unbegun(attempt)
            return
        self._attempt = attempt
        self._connection = connection
        in_flight = self._enforcement.enforcer.in_flight
        in_flight.begin(attempt, connection.loop)
        attempt.limit(in_flight.limits.on(connection.loop, attempt.policy.soon), self._on_limit)
        connection.then = self._on_response
        if connection.has_failed:
            self._on_response()

    def _on_response(self) -> None:
        """The upstream's response has progressed, or failed."""
        try:
            response = self._forwarder.take_response(self._connection)
            if response is not None:
                self._settle(*response)
            elif not self._connection.is_soon_whole:
                self._leave(self._attempt.policy.response_timeout)
        except Exception as error:  # noqa: BLE001 - logged there; who called has nothing to do with it
            self._connection.forget()
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._attempt.settle(State.UNKNOWN, note=f"failed in the gateway ({type(error).__name__})")
        self._enforcement.enforcer.in_flight.end(self._attempt)
        self._request.finish(error)

    def _settle(self, status: int, headers: Headers, body: bytes) -> None:
        self._response = status, headers, body
        attempt, policy = self._attempt, self._attempt.policy
        state = policy.state(status)
        kept = body if len(body) <= policy.max_response_body else None
        stored = None if state is None else responses.stored(status, headers, kept, policy)
        attempt.settle(state, stored, then=self._on_recorded)

    def _on_recorded(self) -> None:
        """The record is complete, or will be as soon as its cache answers."""
        request, attempt = self._request, self._attempt
        self._enforcement.enforcer.in_flight.end(attempt)
        try:
            status, headers, body = self._response
            request.respond(status, self._enforced.executed(attempt, status, headers), body)
        except Exception as error:  # noqa: BLE001 - logged there; who called has nothing to do with it
            request.finish(error)

    # -- off the fast path --------------------------------------------------------------------------------------------

    def _leave_unbegun(self, admitted: Attempt | Verdict | None) -> None:
        """Nothing was sent yet: the exchange decides what to do."""
        self._request.start(self._exchange().decide(self._admission, self._body, admitted))

    def _on_limit(self) -> None:
        """The response isn't whole after ``soon`` seconds."""
        policy = self._attempt.policy
        self._leave(max(0.0, policy.response_timeout - policy.soon))

    def _leave(self, left: float) -> None:
        """The request was sent: what comes of it is the attempt's outcome."""
        connection, forwarder, attempt = self._connection, self._forwarder, self._attempt
        connection.then = None
        method: str = self._request.scope["method"]

        async def rest(_: Scope, receive: Receive, send: Send) -> None:
            view = AttemptView(attempt.number, attempt.record, attempt.confirm)
            try:
                await forwarder.resume(connection, 0.0, method, receive, send, view)
            except LeaseLost as error:  # no response was read; a retry meets the attempt that took over
                raise NotProcessed(str(error)) from None

        self._request.start(self._exchange().resume(attempt, rest, left))

    def _exchange(self) -> Exchange:
        request = self._request
        return Exchange(self._enforcement, self._enforced, request.scope, request.receive, request.send)
