"""The lane of what ends at once: a small request that is there whole, and is answered before anybody would look after it.

Most requests are like that, and what they cost as an ASGI app is mainly waiting: a task, futures, messages, and a chain of
coroutines to be gone through at each step. Here each step is a plain call out of what it waited for: the client's bytes, the
cache's answer, the upstream's. The decisions are the same code.

Whatever turns out to last, or to be unusual, leaves the lane for a task that goes on where it is: what is larger than one
read or write, an upstream without an idle connection, a response in pieces, an error, a wait for another request, a
submission; and everything that is still under way a second later.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from oncegate.app.connection import UpstreamConnection
from oncegate.app.forward import Forwarder
from oncegate.app.inbound_request import InboundRequest
from oncegate.cache.base import Claim
from oncegate.cache.errors import CacheError
from oncegate.middleware import respond
from oncegate.middleware.asgi import Receive, Scope, Send
from oncegate.middleware.attempt import Attempt
from oncegate.middleware.capture import declared_length
from oncegate.middleware.enforce import Verdict
from oncegate.middleware.enforced import EnforcedRequest, Headers
from oncegate.middleware.errors import Refusal
from oncegate.middleware.exchange import Exchange
from oncegate.middleware.gate import Decision
from oncegate.middleware.http import IdempotencyMiddleware
from oncegate.middleware.policy import ATTEMPT_HEADER

SMALL = 65536
"""Bytes of a response's body that may be waited for, so that it goes out whole."""

Answering = Callable[[Awaitable[None], Scope, Send], Coroutine[Any, Any, None]]
"""Awaits what answers a request by the upstream, and answers with a problem where it can't (see `oncegate.app.gateway`)."""


class Direct:
    """Takes a request where that goes without a task."""

    def __init__(self, middleware: IdempotencyMiddleware, forwarder: Forwarder) -> None:
        self._middleware = middleware
        self._forwarder = forwarder

    def take(self, request: InboundRequest, answering: Answering) -> bool:
        """Whether the request, which is whole, is being answered. ``answering`` is for the case that it leaves the lane."""
        scope = request.scope
        policy = self._middleware.policies.match(scope["method"], scope["path"])
        if policy is None:
            return Passing(self._forwarder, request, answering).begin(scope)
        if policy.submission is not None:
            return False
        enforced = EnforcedRequest(self._middleware, policy, scope)
        try:
            look_up_key = enforced.identify()
        except Refusal as refusal:
            request.respond(*enforced.refused(refusal))
            return True
        if look_up_key is not None:
            return Enforcing(self._middleware, self._forwarder, request, enforced).begin(look_up_key)
        if ATTEMPT_HEADER in enforced.fields:
            scope = {**scope, "headers": enforced.headers()}
        return Passing(self._forwarder, request, answering, enforced).begin(scope)


class Passing:
    """One request that passes through. ``enforced``: its route's method is under enforcement, but it has no key."""

    __slots__ = ("_answering", "_began", "_connection", "_enforced", "_forwarder", "_limit", "_request")

    def __init__(
        self,
        forwarder: Forwarder,
        request: InboundRequest,
        answering: Answering,
        enforced: EnforcedRequest | None = None,
    ) -> None:
        self._forwarder = forwarder
        self._request = request
        self._answering = answering
        self._enforced = enforced

    def begin(self, scope: Scope) -> bool:
        """Send it, if that can be done at once."""
        request = self._request
        connection = self._forwarder.begin(scope, request.body)
        if connection is None:
            return False
        request.take()
        loop = connection.loop
        self._connection = connection
        self._began = loop.time()
        self._limit = self._forwarder.watches(loop).set(self._leave)
        connection.then = self._hear
        if connection.has_failed:
            self._leave()
        return True

    def _hear(self) -> None:
        """There is news of the response."""
        connection, request = self._connection, self._request
        try:
            ended = self._forwarder.end(connection)
            if ended is not None:
                self._forwarder.watches(connection.loop).drop(self._limit)
                status, headers, body = ended
                if self._enforced is not None:
                    headers = self._enforced.bypassed(status, headers)
                request.respond(status, headers, body)
            elif not is_soon_whole(connection):
                self._leave()
        except Exception as error:  # noqa: BLE001 - logged there; who called has nothing to do with it
            request.end(error)

    def _leave(self) -> None:
        connection, request = self._connection, self._request
        self._forwarder.watches(connection.loop).drop(self._limit)
        connection.then = None
        send = request.send if self._enforced is None else self._enforced.marking(request.send)
        rest = self._forwarder.resume(connection, self._began, request.receive, send, enforced=False)
        request.start(self._answering(rest, request.scope, request.send))


class Enforcing:
    """One request under enforcement, with its key."""

    __slots__ = (
        "_ask",
        "_attempt",
        "_body",
        "_connection",
        "_enforced",
        "_forwarder",
        "_middleware",
        "_request",
        "_response",
    )

    def __init__(
        self,
        middleware: IdempotencyMiddleware,
        forwarder: Forwarder,
        request: InboundRequest,
        enforced: EnforcedRequest,
    ) -> None:
        self._middleware = middleware
        self._forwarder = forwarder
        self._request = request
        self._enforced = enforced

    def begin(self, look_up_key: str) -> bool:
        """Ask for its admission, if that can be done at once."""
        request, enforced = self._request, self._enforced
        self._body = body = request.body
        if len(body) > enforced.policy.settings.max_request_body:
            return False
        self._ask = ask = enforced.ask(look_up_key, body)
        request.take()
        if not self._middleware.enforcer.claim_soon(ask, request.loop, self._claimed):
            self._leave_unbegun(None)
        return True

    def _claimed(self, answer: Claim | CacheError) -> None:
        request = self._request
        try:
            outcome = self._middleware.enforcer.admitted(self._ask, answer)
            if isinstance(outcome, Attempt):
                self._run(outcome)
            elif outcome.decision is Decision.IN_FLIGHT and self._ask.wait > 0:
                self._leave_unbegun(outcome)
            else:
                request.respond(*self._enforced.told(outcome))
        except CacheError as error:
            request.respond(*self._enforced.refused(error))
        except Exception as error:  # noqa: BLE001 - logged there; who called has nothing to do with it
            request.end(error)

    def _run(self, attempt: Attempt) -> None:
        request = self._request
        connection = None
        if attempt.number and attempt.is_certain:  # the first byte must not leave otherwise
            scope = {**request.scope, "headers": self._enforced.headers(attempt)}
            connection = self._forwarder.begin(scope, self._body)
        if connection is None:
            self._leave_unbegun(attempt)
            return
        self._attempt = attempt
        self._connection = connection
        in_flight = self._middleware.enforcer.in_flight
        in_flight.begin(attempt, connection.loop)
        attempt.limit(in_flight.limits.on(connection.loop, attempt.policy.soon), self._last)
        connection.then = self._hear
        if connection.has_failed:
            self._hear()

    def _hear(self) -> None:
        """There is news of the response."""
        try:
            ended = self._forwarder.end(self._connection)
            if ended is not None:
                self._settle(*ended)
            elif not is_soon_whole(self._connection):
                self._leave(self._attempt.policy.settings.response_timeout)
        except Exception as error:  # noqa: BLE001 - logged there; who called has nothing to do with it
            self._request.end(error)

    def _settle(self, status: int, headers: Headers, body: bytes) -> None:
        self._response = status, headers, body
        attempt, policy = self._attempt, self._attempt.policy
        state = policy.state(status)
        kept = body if len(body) <= policy.settings.max_response_body else None
        stored = None if state is None else respond.stored(status, headers, kept, policy)
        attempt.settle_soon(state, stored, self._told)

    def _told(self) -> None:
        """The record is complete, or will be as soon as its cache answers."""
        request, attempt = self._request, self._attempt
        self._middleware.enforcer.in_flight.end(attempt)
        try:
            status, headers, body = self._response
            request.respond(status, self._enforced.executed(attempt, status, headers), body)
        except Exception as error:  # noqa: BLE001 - logged there; who called has nothing to do with it
            request.end(error)

    # -- out of the lane ----------------------------------------------------------------------------------------------

    def _leave_unbegun(self, admitted: Attempt | Verdict | None) -> None:
        """Nothing was sent yet."""
        self._request.start(self._exchange().decide(self._ask, self._body, admitted))

    def _last(self) -> None:
        """Nothing was heard for a while."""
        policy = self._attempt.policy
        self._leave(max(0.0, policy.settings.response_timeout - policy.soon))

    def _leave(self, left: float) -> None:
        """It was sent: whatever comes of it is the attempt's outcome."""
        connection, forwarder = self._connection, self._forwarder
        connection.then = None

        async def rest(_: Scope, receive: Receive, send: Send) -> None:
            await forwarder.resume(connection, 0.0, receive, send, enforced=True)

        self._request.start(self._exchange().resume(self._attempt, rest, left))

    def _exchange(self) -> Exchange:
        request = self._request
        return Exchange(
            self._middleware, self._enforced.policy, request.scope, request.receive, request.send, self._enforced
        )


def is_soon_whole(connection: UpstreamConnection) -> bool:
    """Whether what is missing of a response is the rest of a small body: then its head can wait for it."""
    response = connection.response
    if connection.has_failed or response.surplus:
        return False
    return not response.status or 0 <= declared_length(response.status, response.headers) <= SMALL
