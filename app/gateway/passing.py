"""A request that passes through, by callbacks: no record is claimed for it."""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from oncegate.app.server.request import InboundRequest
from oncegate.app.upstream.forward import Forwarder
from oncegate.middleware.http.asgi import Scope, Send
from oncegate.middleware.http.enter import Bypass
from oncegate.middleware.outcome.errors import GatewayFailed

Answering = Callable[[Awaitable[None], Scope, Send], Coroutine[Any, Any, None]]
"""Awaits an answer by the upstream, and answers with a problem where that fails (`oncegate.app.gateway.gateway`)."""


class Passing:
    """One request that passes through. ``bypass``: its route's method is under enforcement, but it has no key."""

    __slots__ = ("_answering", "_began", "_bypass", "_connection", "_forwarder", "_request")

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

    def begin(self) -> bool:
        """Send it, if that needs no waiting."""
        request, bypass = self._request, self._bypass
        headers = request.scope["headers"] if bypass is None else bypass.headers
        connection = self._forwarder.begin(request.scope, headers, request.body, request.last_head)
        if connection is None:
            return False
        request.take()
        self._connection = connection
        self._began = began = connection.loop.time()
        connection.then = self
        self._forwarder.watch(connection, began)
        if connection.error is not None:
            self.on_lasting()
        return True

    def on_response(self) -> None:
        """The upstream's response has progressed, or failed."""
        connection, bypass = self._connection, self._bypass
        try:
            forwarder = self._forwarder
            body = forwarder.take(connection)
            if body is not None:
                response = connection.response
                status, lines = response.status, forwarder.lines(response)
                headers = [] if lines else forwarder.headers(response)
                if bypass is not None:
                    lines, headers = bypass.answered(status, lines, headers)
                self._request.respond(status, headers, body, lines)
                return
            if not connection.is_soon_whole:
                self.on_lasting()
        except Exception as error:  # noqa: BLE001 - answered; who called has nothing to do with it
            connection.forget()
            self._answer_by(_failing(error))

    def on_lasting(self) -> None:
        """Go on as a task."""
        connection, request = self._connection, self._request
        connection.leave_callbacks()
        send = request.send if self._bypass is None else self._bypass.sending(request.send)
        self._answer_by(self._forwarder.resume(connection, self._began, request.scope, request.receive, send))

    def _answer_by(self, rest: Awaitable[None]) -> None:
        request = self._request
        request.start(self._answering(rest, request.scope, request.send))


async def _failing(error: Exception) -> None:
    raise GatewayFailed.by(error)
