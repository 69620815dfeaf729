"""A request under enforcement on the fast path (see `oncegate.app.gateway.fast_path`)."""
# Compiled: docs/decisions/0012-compiled.md

from typing import Any

from oncegate.app.server.request import InboundRequest
from oncegate.app.upstream.forward import Forwarder
from oncegate.cache.record import State
from oncegate.middleware.admission.admission import Verdict
from oncegate.middleware.admission.attempt import Attempt, LeaseLost
from oncegate.middleware.admission.gate import Decision
from oncegate.middleware.http.asgi import Receive, Scope, Send
from oncegate.middleware.http.enforcement import Enforcement
from oncegate.middleware.http.exchange import Exchange
from oncegate.middleware.http.extensions import AttemptView
from oncegate.middleware.http.keyed_request import Headers, KeyedRequest
from oncegate.middleware.outcome import responses
from oncegate.middleware.outcome.errors import NotProcessed


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
            enforcer.claim(admission, request.loop, self._claimed)
        else:  # bodies that may wait are counted there
            self._leave_unbegun(None)
        return True

    def _claimed(self, answer: Any) -> None:
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
            self._request.end(error)
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
        attempt.limit(in_flight.limits.on(connection.loop, attempt.policy.soon), self._last)
        connection.then = self._hear
        if connection.has_failed:
            self._hear()

    def _hear(self) -> None:
        """The upstream's response has progressed, or failed."""
        try:
            ended = self._forwarder.end(self._connection)
            if ended is not None:
                self._settle(*ended)
            elif not self._connection.is_soon_whole:
                self._leave(self._attempt.policy.response_timeout)
        except Exception as error:  # noqa: BLE001 - logged there; who called has nothing to do with it
            self._connection.forget()
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._attempt.settle(State.UNKNOWN, note=f"failed in the gateway ({type(error).__name__})")
        self._enforcement.enforcer.in_flight.end(self._attempt)
        self._request.end(error)

    def _settle(self, status: int, headers: Headers, body: bytes) -> None:
        self._response = status, headers, body
        attempt, policy = self._attempt, self._attempt.policy
        state = policy.state(status)
        kept = body if len(body) <= policy.max_response_body else None
        stored = None if state is None else responses.stored(status, headers, kept, policy)
        attempt.settle(state, stored, then=self._recorded)

    def _recorded(self) -> None:
        """The record is complete, or will be as soon as its cache answers."""
        request, attempt = self._request, self._attempt
        self._enforcement.enforcer.in_flight.end(attempt)
        try:
            status, headers, body = self._response
            request.respond(status, self._enforced.executed(attempt, status, headers), body)
        except Exception as error:  # noqa: BLE001 - logged there; who called has nothing to do with it
            request.end(error)

    # -- off the fast path --------------------------------------------------------------------------------------------

    def _leave_unbegun(self, admitted: Attempt | Verdict | None) -> None:
        """Nothing was sent yet: the exchange decides what to do."""
        self._request.start(self._exchange().decide(self._admission, self._body, admitted))

    def _last(self) -> None:
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
