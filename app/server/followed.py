"""Requests that are followed: each has an id, which goes up and back, and a line in the access log when it is over.

The server makes these in the place of its usual ones where there is an access log; without one, nothing here is met.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
from time import monotonic
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from oncegate.app.server.channel import UPGRADING, Channel
from oncegate.app.server.connection import InboundConnection
from oncegate.app.server.request import Headers, InboundRequest
from oncegate.app.telemetry.access_log import BROKEN_OFF, CLIENT_LEFT, LINE, WHOLE, AccessLog, Line
from oncegate.cache.fields import BODILESS, fields_of
from oncegate.middleware.http.asgi import Message
from oncegate.middleware.rules.headers.request_id import HEADER, REQUEST_ID, made, request_id
from oncegate.middleware.rules.headers.trace_context import TRACEPARENT

_ID_LINE: Final = b"\r\n%b: " % HEADER


class FollowedConnection(InboundConnection):
    """A connection of a client to an app that has an ``access_log``."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.access_log: AccessLog = config.loaded_app.access_log

    def head_is_complete(self, request: InboundRequest, ends: bool) -> None:
        """See `InboundConnection`."""
        super().head_is_complete(FollowedRequest(self, request), ends)

    def answer_plainly(self, answer: bytes) -> None:
        """See `InboundConnection`."""
        super().answer_plainly(answer)
        status, request = int(answer[9:12]), self._reading
        if isinstance(request, FollowedRequest):
            request.line.status = status  # its line comes when it is over
        else:
            peer = self._parser.shared.get("client")
            self.access_log.refuse(status, str(peer[0]) if peer else "")

    def _begin_waiting(self) -> None:
        request = self._answering
        if self._to_begin and isinstance(request, FollowedRequest) and not self.transport.is_closing():
            request.line.handed_on = monotonic()
        super()._begin_waiting()

    def _leave(self) -> None:
        self._leave_waiting()
        super()._leave()

    def shutdown(self) -> None:
        """See `InboundConnection`."""
        self._leave_waiting()
        super().shutdown()

    def _leave_waiting(self) -> None:
        """Those that wait for their turn will have none."""
        for request in self._pipelined:
            request.leave()


class FollowedRequest(InboundRequest):
    """``usual``, the request as it was read, with an id and a line."""

    __slots__ = ("_access_log", "_id", "line", "request_id")

    def __init__(self, connection: FollowedConnection, usual: InboundRequest) -> None:
        scope, fields = usual.scope, usual.fields
        super().__init__(connection, scope, fields, usual.keep_alive, usual.expects_go_ahead, usual.upgrades)
        self._access_log = connection.access_log
        self.line = scope[LINE] = Line()
        if UPGRADING in scope:
            scope[UPGRADING] = self
        came = fields.get(HEADER)
        if came is None:  # as a rule
            self.request_id = scope[REQUEST_ID] = made()
        else:
            self.request_id = request_id(scope, connection.access_log.unshown)
        self._id = self.request_id.encode("ascii")
        if came != self._id:
            headers = scope["headers"]
            if came is not None:  # it is not well-formed, or a secret
                headers[:] = [field for field in headers if field[0] != HEADER]
            headers.append((HEADER, self._id))
            fields[HEADER] = self._id

    def feed(self, body: bytes) -> int:
        """See `InboundRequest`."""
        self.line.bytes_in += len(body)
        return super().feed(body)

    def leave(self) -> None:
        """See `InboundRequest`."""
        super().leave()
        if not self.line.handed_on:  # nobody answers it, or tells that it is over
            self._end()

    def finish(self, error: Exception | None = None) -> None:
        """See `InboundRequest`."""
        super().finish(error)
        self._end()

    async def send(self, message: Message) -> None:
        """See `InboundRequest`."""
        self.line.last = monotonic()
        await InboundRequest.send(self, message)
        if self._complete:
            self._end()

    def respond(self, status: int, headers: Headers, body: bytes, ready: bytes = b"") -> None:
        """See `InboundRequest`."""
        line = self.line
        line.last = monotonic()
        if ready.find(_ID_LINE) >= 0:
            headers, ready = [*fields_of(ready), *headers], b""
        super().respond(status, headers, body, ready)
        if self._complete:
            line.bytes_out = 0 if self._is_head or status in BODILESS else len(body)
            self._end()
        elif self.gone:
            self._end()

    def switch(self) -> Channel | None:
        """See `InboundRequest`. Its line comes now: what is said from here on is no answer of HTTP's."""
        channel = super().switch()
        if channel is not None:
            self.line.status = 101
        return channel

    def _head_lines(self, status: int, headers: Headers) -> list[bytes]:
        self.line.status = status
        ours = [field for field in headers if field[0] != HEADER]
        ours.append((HEADER, self._id))
        return super()._head_lines(status, ours)

    def _framed(self, body: bytes, more: bool) -> bytes:
        if not self._is_head:
            self.line.bytes_out += len(body)
        return super()._framed(body, more)

    def _failure(self) -> bytes:
        failure = super()._failure()
        self._complete = True
        self.line.bytes_out = len(failure.partition(b"\r\n\r\n")[2])
        return failure

    def _end(self) -> None:
        ended = WHOLE if self._complete else CLIENT_LEFT if self.gone else BROKEN_OFF
        self._access_log.end(self.line, self.scope, self.request_id, traced=TRACEPARENT in self.fields, ended=ended)
