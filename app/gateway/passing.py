"""A request that passes through the gateway on the fast path (see `oncegate.app.gateway.fast_path`)."""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from oncegate.app.server.request import InboundRequest
from oncegate.app.upstream.forward import Forwarder
from oncegate.middleware.http.asgi import Scope, Send
from oncegate.middleware.http.enter import Bypass
from oncegate.middleware.outcome.responses import Headers

Answering = Callable[[Awaitable[None], Scope, Send], Coroutine[Any, Any, None]]
"""Awaits an answer by the upstream, and answers with a problem where that fails (`oncegate.app.gateway.gateway`)."""


class Passing:
    """One request that passes through. ``bypass``: its route's method is under enforcement, but it has no key."""

    __slots__ = ("_answering", "_began", "_bypass", "_connection", "_forwarder", "_limit", "_request")

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
        loop = connection.loop
        self._connection = connection
        self._began = loop.time()
        self._limit = self._forwarder.watches(loop).set(self._leave)
        connection.then = self._hear
        if connection.has_failed:
            self._leave()
        return True

    def _hear(self) -> None:
        """The upstream's response has progressed, or failed."""
        connection, request = self._connection, self._request
        try:
            ended = self._forwarder.end(connection)
            if ended is not None:
                self._forwarder.watches(connection.loop).drop(self._limit)
                status, headers, body = ended
                if self._bypass is not None:
                    headers = self._bypass.headers(status, headers)
                request.respond(status, headers, body)
            elif not connection.is_soon_whole:
                self._leave()
        except Exception as error:  # noqa: BLE001 - logged there; who called has nothing to do with it
            self._forwarder.watches(connection.loop).drop(self._limit)
            connection.forget()
            request.end(error)

    def _leave(self) -> None:
        connection, request = self._connection, self._request
        self._forwarder.watches(connection.loop).drop(self._limit)
        connection.then = None
        send = request.send if self._bypass is None else self._bypass.send
        rest = self._forwarder.resume(connection, self._began, request.scope["method"], request.receive, send)
        request.start(self._answering(rest, request.scope, request.send))
