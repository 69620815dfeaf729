"""Fast path: answers a small, complete request by callbacks, without a task; whatever lasts is handed to the exchange.

Most requests are like that, and most of their cost in an ASGI app is waiting: a task, futures, messages, and a chain of
coroutines to resume at each step. Here each step is a callback of what it waited for: the client's bytes, the cache's
answer, the upstream's. The decisions are made by the same code.

Whatever lasts, or is unusual, leaves the fast path for a task that continues from the step reached: what is larger than one
read or write, an upstream without an idle connection, a response in pieces, an error, a wait for another request; and
everything that is still under way a second later.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from oncegate.app.gateway.passing import Answering, Passing
from oncegate.app.server.request import InboundRequest
from oncegate.app.upstream.forward import Forwarder
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.lease import LeaseLost
from oncegate.middleware.http.asgi import AttemptView, Receive, Scope, Send, Submission, respond
from oncegate.middleware.http.asgi_driver import AsgiDriver
from oncegate.middleware.http.door import HttpDoor
from oncegate.middleware.http.enter import Bypass, way_of
from oncegate.middleware.http.exchange import Exchange, Step
from oncegate.middleware.outcome.errors import GatewayFailed, NotProcessed
from oncegate.middleware.outcome.problems import Answer
from oncegate.middleware.outcome.responses import Headers

Response = tuple[int, Headers, bytes]
StartSubmission = Callable[[Scope, Headers, bytes, str, Submission, Callable[[Response | Exception], None]], None]
"""Accepts a command, by callback (`oncegate.app.commands.submit.Submitter.start`)."""


def came_in_on(port: int, scope: Scope) -> bool:
    """Whether a request came in on ``port`` (0: there is none such), by its socket, not by what the request says."""
    return bool(port and scope["server"] and scope["server"][1] == port)


class FastPath:
    """The way of a request that can be answered without a task, and is not the operators': by its path, or by their port.

    ``prefix`` begins the operators' paths. Set ``answering`` to what answers a request that passes through, once it has left
    the fast path.
    """

    answering: Answering

    def __init__(
        self,
        door: HttpDoor,
        forwarder: Forwarder,
        submit: StartSubmission | None = None,
        *,
        prefix: str,
        ops_port: int = 0,
    ) -> None:
        self._door = door
        self._forwarder = forwarder
        self._submit = submit
        self._prefix = prefix
        self._ops_port = ops_port

    def take(self, request: InboundRequest) -> bool:
        """Whether the request, which is whole, is being answered."""
        scope = request.scope
        path: str = scope["path"]
        if path.startswith(self._prefix) or (self._ops_port and came_in_on(self._ops_port, scope)):
            return False
        way = way_of(self._door, scope, path, scope["raw_path"], request.fields, request.caller)
        if isinstance(way, Exchange):
            CallbackDriver(way, self._forwarder, self._submit, request).begin()
            return True
        if way is None or isinstance(way, Bypass):
            return Passing(self._forwarder, request, self.answering, way).begin()
        request.start(self.answering(way.serve(request.receive, request.send), scope, request.send))  # it is observed
        return True


class CallbackDriver:
    """A driver, by callbacks, of the exchange of one request with a key, whose body is whole."""

    __slots__ = (
        "_body",
        "_connection",
        "_exchange",
        "_forwarder",
        "_late",
        "_lines",
        "_request",
        "_response",
        "_submit",
    )

    def __init__(
        self, exchange: Exchange, forwarder: Forwarder, submit: StartSubmission | None, request: InboundRequest
    ) -> None:
        self._exchange = exchange
        self._forwarder = forwarder
        self._submit = submit
        self._request = request
        self._lines = b""
        """The fields of ``_response``, if they can be sent as they came."""
        self._late: asyncio.Future[Response | Exception] | None = None
        """Gets the stream's answer, once a submission has left the fast path."""

    def begin(self) -> None:
        """Claim its record, or answer it; where that needs waiting, the other driver goes on."""
        request, exchange = self._request, self._exchange
        found, body = exchange.found, request.body
        # Three cases; nearly all requests are of the one that goes on below.
        if not isinstance(found, str) or len(body) > exchange.policy.max_request_body:
            if isinstance(found, Answer):
                request.respond(found.status, found.headers, found.body)
            else:  # what has to be waited for, or is too large to be held here
                request.start(self._asgi_driver().serve())
            return
        self._body = body
        admission = exchange.admit(found, body)
        request.take()
        admissions = exchange.door.admissions
        if admissions.enter(admission, True):
            admissions.claim(admission, request.loop, self._on_claimed)
        else:  # bodies that may wait are counted there
            self._leave_unbegun(None)

    def _on_claimed(self, reply: Any) -> None:
        request, step = self._request, self._exchange.on_claimed(reply)
        try:
            if isinstance(step, Attempt):
                self._execute(step)
            elif isinstance(step, Answer):
                request.respond(step.status, step.headers, step.body, step.lines)
            elif isinstance(step, Exception):
                request.finish(step)
            else:
                self._leave_unbegun(step)
        except Exception as error:  # noqa: BLE001 - logged there; who called has nothing to do with it
            request.finish(error)

    def _execute(self, attempt: Attempt) -> None:
        request, exchange = self._request, self._exchange
        if not attempt.number or not attempt.lease.is_certain:  # the first byte must not leave yet
            self._leave_unbegun(attempt)
            return
        if attempt.claim.submission and self._submit is not None:
            self._begin_submission(attempt, self._submit)
            return
        try:
            headers = exchange.headers(attempt)
            connection = self._forwarder.begin(request.scope, headers, self._body, request.last_head)
        except Exception as error:  # noqa: BLE001 - answered
            exchange.begin(attempt, request.loop, self._on_limit)
            self._fail(error)
            return
        if connection is None:  # none is idle, or the request is refused: the other driver opens one, or says why
            self._leave_unbegun(attempt)
            return
        self._connection = connection
        exchange.begin(attempt, connection.loop, self._on_limit)
        connection.then = self
        if connection.error is not None:
            self.on_response()

    def _begin_submission(self, attempt: Attempt, submit: StartSubmission) -> None:
        request, exchange = self._request, self._exchange
        exchange.begin(attempt, request.loop, self._on_limit)
        try:
            headers, submission = exchange.headers(attempt), exchange.submission(attempt)
            submit(request.scope, headers, self._body, exchange.record, submission, self._on_submitted)
        except Exception as error:  # noqa: BLE001 - answered
            self._fail(error)

    def on_response(self) -> None:
        """The upstream's response has progressed, or failed."""
        connection, exchange = self._connection, self._exchange
        try:
            forwarder = self._forwarder
            body = forwarder.take(connection)
            if body is not None:
                response = connection.response
                status, headers = response.status, forwarder.headers(response)
                self._response, self._lines = (status, headers, body), forwarder.lines(response)
                exchange.on_response(status, headers, body, self._on_recorded)
            elif not connection.is_soon_whole:
                self._leave(exchange.policy.response_timeout)
        except Exception as error:  # noqa: BLE001 - answered; who called has nothing to do with it
            connection.forget()
            self._fail(error)

    def on_lasting(self) -> None:
        """Nothing: how long it may take is its policy's, see `_on_limit`."""

    def _on_submitted(self, response: Response | Exception) -> None:
        """The stream has answered, or has not in time."""
        exchange, late = self._exchange, self._late
        try:
            if late is not None:
                if not late.done():
                    late.set_result(response)
            elif isinstance(response, Exception):
                exchange.on_failure(response, self._on_refused)
            else:
                self._response = response
                status, headers, body = response
                exchange.on_response(status, headers, body, self._on_recorded)
        except Exception as error:  # noqa: BLE001 - answered; who called has nothing to do with it
            self._fail(error)

    def _on_refused(self) -> None:
        """The record is released, or reads unknown: the problem says why."""
        request, exchange = self._request, self._exchange
        try:
            answer = exchange.failed()
            if answer is not None:
                request.respond(answer.status, answer.headers, answer.body)
            else:
                request.finish(RuntimeError("a failure could not be answered"))
        except Exception as error:  # noqa: BLE001 - logged there; who called has nothing to do with it
            request.finish(error)

    def _fail(self, error: Exception) -> None:
        """A fault of ours: perhaps something was sent, so nothing may be sent again."""
        exchange = self._exchange
        if exchange.attempt.settled:  # it was about the record, which calls nobody back then
            self._request.finish(error)
            return
        try:
            exchange.on_failure(GatewayFailed.by(error), self._on_refused)
        except Exception as another:  # noqa: BLE001 - logged there; who called has nothing to do with it
            self._request.finish(another)

    def _on_recorded(self) -> None:
        """The record is complete, or will be as soon as its cache answers."""
        request, exchange = self._request, self._exchange
        try:
            status, headers, body = self._response
            headers, lines = exchange.executed(exchange.attempt, status, headers, self._lines)
            request.respond(status, headers, body, lines)
        except Exception as error:  # noqa: BLE001 - logged there; who called has nothing to do with it
            request.finish(error)

    # -- off the fast path --------------------------------------------------------------------------------------------

    def _leave_unbegun(self, step: Step) -> None:
        """Nothing was sent yet: the other driver goes on."""
        self._request.start(self._asgi_driver().decide(self._body, step))

    def _on_limit(self) -> None:
        """The response isn't whole after ``soon`` seconds."""
        policy = self._exchange.policy
        self._leave(max(0.0, policy.response_timeout - policy.soon))

    def _leave(self, left: float) -> None:
        """The request was sent: what comes of it is the attempt's outcome."""
        attempt = self._exchange.attempt
        if attempt.claim.submission:
            self._late = late = self._request.loop.create_future()
            self._request.start(self._asgi_driver().resume(partial(_send_late, late), left))
            return
        connection, forwarder = self._connection, self._forwarder
        connection.leave_callbacks()
        sent = self._request.scope

        async def rest(_: Scope, receive: Receive, send: Send) -> None:
            view = AttemptView(attempt.number, attempt.record, attempt.lease.confirm)
            try:
                await forwarder.resume(connection, 0.0, sent, receive, send, view)
            except LeaseLost as error:  # no response was read; a retry meets the attempt that took over
                raise NotProcessed(str(error)) from None

        self._request.start(self._asgi_driver().resume(rest, left))

    def _asgi_driver(self) -> AsgiDriver:
        return AsgiDriver(self._exchange, self._request.receive, self._request.send)


async def _send_late(late: "asyncio.Future[Response | Exception]", _: Scope, __: Receive, send: Send) -> None:
    """An app that answers with what the stream answers to a submission on its way."""
    response = await late
    if isinstance(response, Exception):
        raise response
    await respond(send, *response)
