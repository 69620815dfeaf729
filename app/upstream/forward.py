"""The forwarder: a reverse proxy as an ASGI app, which sends each request to the upstream and passes its response back.

What matters most is to know whether the upstream can have acted. Until the first byte is handed to the transport an error is a
`NotProcessed`; from then until the response is complete it is an `OutcomeUnknown`.

An upstream may close an idle connection while a request is on its way there. Such a request is sent once more, on a new
connection, if acting twice does no harm: an idempotent method that passes through (docs/decisions/0013-sent-again.md). Nothing
else is ever sent twice from here.

The usual exchange costs one write, one future and no task: a small request goes out whole, and a response whose head and body
arrived together comes back as two messages. Only an exchange that lasts (an upload, a stream, a slow upstream) gets a task
of its own, which sends the rest of the body and notices a client that leaves.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

from oncegate.app.http1 import VIA, RequestRefused, RequestWriter, TrustedPeers
from oncegate.app.last_head import LastHead
from oncegate.app.settings.certificates import Certificate
from oncegate.app.upstream.connection import UpstreamConnection
from oncegate.app.upstream.lasting import LastingExchanges
from oncegate.app.upstream.outgoing import ClientLeft, Outgoing, lasts_after, watches
from oncegate.app.upstream.pool import Upstream
from oncegate.app.upstream.response import ResponseReader
from oncegate.app.upstream.response_head import NO_LENGTH
from oncegate.app.upstream.upgrade import UPGRADE, AnswerToUpgrade, Switched, SwitchedAway
from oncegate.cache.errors import OncegateError
from oncegate.middleware.admission.limits.deadlines import Deadlines
from oncegate.middleware.http.asgi import OBSERVED, SCOPE_EXTENSION, AttemptView, Message, Receive, Scope, Send, respond
from oncegate.middleware.outcome.errors import GatewayFailed, NotProcessed, OutcomeUnknown
from oncegate.middleware.outcome.responses import Headers, date
from oncegate.middleware.rules.headers.request_id import ids

log = logging.getLogger("oncegate.forward")

IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Methods that may be sent again unchanged (RFC 9110 section 9.2.2)."""


class Forwarder:
    """A forwarder of HTTP requests to ``upstream`` (``http://host[:port][/base]``, ``https://...``, ``unix:///path/to/socket``).

    Times are in seconds: ``connect_timeout`` until a connection is open (names and TLS included); ``response_timeout`` until
    the response's head, for requests that pass through (an enforced attempt's time limits are its owner's, one
    that is observed has none);
    ``keepalive`` for idle connections. ``ca_file``: a PEM file instead of the system's authorities. ``certificate``: what
    an https upstream is shown of us. ``trusted_proxies``: addresses or networks whose ``X-Forwarded-*`` are believed.
    ``end_to_end``: request fields that ``Connection`` can't have removed, besides the usual ones. ``via``: requests and
    responses that pass get a ``Via`` of ours. ``unshown``: `oncegate.middleware.rules.policies.Policies.unshown`. Raises
    `ValueError` for a malformed URL or network, `OSError` for an unreadable CA file, `ConfigurationError` for a certificate that
    can't be used.
    """

    def __init__(
        self,
        upstream: str,
        *,
        connect_timeout: float = 5.0,
        response_timeout: float = 30.0,
        keepalive: float = 1.5,
        max_idle: int = 1024,
        ca_file: str | None = None,
        certificate: Certificate | None = None,
        trusted_proxies: Sequence[str] = (),
        end_to_end: Collection[str] = (),
        via: bool = True,
        unshown: frozenset[bytes] = frozenset(),
    ) -> None:
        self._unshown = unshown
        self.upstream = Upstream(
            upstream,
            connect_timeout=connect_timeout,
            keepalive=keepalive,
            ca_file=ca_file,
            certificate=certificate,
            max_idle=max_idle,
        )
        address = self.upstream.address
        self._writer = RequestWriter(
            address.base, address.authority, TrustedPeers(trusted_proxies), end_to_end, via=via
        )
        self._via = via
        self._via_line = b"\r\n%b: %b" % VIA if via else b""
        self._response_timeout = response_timeout
        self._watches: Deadlines | None = None
        self._lasting: LastingExchanges | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards one request. Raises `NotProcessed`, `OutcomeUnknown` or `NoAnswerInTime`; answers a malformed one itself.

        Returns without an answer where a client that passes through has left.
        """
        if scope["type"] != "http":
            raise TypeError(f"the forwarder takes http scopes, not {scope['type']}")
        view: AttemptView | None = (scope.get("extensions") or {}).get(SCOPE_EXTENSION)
        refusal: RequestRefused | None = None
        try:
            request = self._writer.head(scope)
            first = await receive()
            if first["type"] != "http.request":
                return
            head = request.framed(first.get("body", b""), first.get("more_body", False))
            connection = await self.upstream.ready(view.confirm if view is not None else None)
        except RequestRefused as error:
            refusal = error
        except OncegateError:
            raise
        except Exception as fault:  # no failure of the attempt, which would be kept
            raise GatewayFailed.by(fault) from fault
        if refusal is not None:
            await _refuse(send, refusal)
            return
        timeout = None if view is not None or OBSERVED in scope else self._response_timeout
        outgoing = Outgoing(connection, receive, timeout, self.watches(connection.loop))
        begin = partial(outgoing.begin, request, head, first)
        await self._finish(connection, outgoing, begin, send, scope, view)

    async def upgrade(self, scope: Scope, receive: Receive, send: Send, join: Callable[[Switched], None]) -> None:
        """Forwards a request for a WebSocket, without a body. Where the upstream agrees, ``join`` is called, and nothing sent.

        Else as an app; ``receive`` gives nothing but the client's leaving. Raises as an app does.
        """
        refusal: RequestRefused | None = None
        try:
            head = self._writer.head(scope).lines + UPGRADE
            connection = await self.upstream.ready(new=True)
        except RequestRefused as error:
            refusal = error
        if refusal is not None:
            await _refuse(send, refusal)
            return
        AnswerToUpgrade(connection, scope, via=self._via, join=join)
        outgoing = Outgoing(connection, receive, self._response_timeout, self.watches(connection.loop))
        begin = partial(outgoing.begin_again, connection, (head, b""), is_head=False)
        await self._finish(connection, outgoing, begin, send, scope, None)
        connection.error = None  # its traceback leads back to it, and a tunnel's connection lasts

    def begin(
        self, scope: dict[str, Any], headers: Headers, body: bytes, last: LastHead | None = None
    ) -> UpstreamConnection | None:
        """Sends a request whose body is whole, with ``headers``, over an idle connection, without waiting.

        ``last`` is the head before it of its client's connection.

        ``None``: that can't be done, and nothing was sent; called as an app, the forwarder does it, or says why it can't.
        Set the connection's ``then`` to be called as its response arrives; then call `take`, or `resume`.
        """
        try:
            head = self._writer.whole(scope, headers, body, last)
        except RequestRefused:
            return None
        connection = self.upstream.take()
        if connection is not None:
            connection.send(head, body, scope["method"] == "HEAD")
        return connection

    def take(self, connection: UpstreamConnection) -> bytes | None:
        """The body of the response to what `begin` sent, if that is whole and all is well; the connection is free again then.

        Its status, `lines` and `headers` are there until the connection's next exchange begins.
        """
        response = connection.response
        if not response.complete or response.surplus or connection.error is not None:
            return None
        body = response.take()
        connection.leave_callbacks()  # it is another exchange's from here on
        self.upstream.give_back(connection)
        return body

    def lines(self, response: ResponseReader) -> bytes:
        """The fields of a response that can go on as it came, as lines, each behind a CRLF.

        Empty for one that doesn't say how long its body is, which is framed anew.
        """
        head = response.head
        if head.length == NO_LENGTH and not response.is_bodiless:
            return b""
        lines = head.sent
        if not head.has_date:
            lines += b"\r\n%b: %b" % date()
        return lines + self._via_line

    async def resume(
        self,
        connection: UpstreamConnection,
        began: float,
        scope: Scope,
        receive: Receive,
        send: Send,
        view: AttemptView | None = None,
    ) -> None:
        """Goes on, as an app does, with what `begin` sent at ``began`` (the loop's clock) and what lasts."""
        connection.leave_callbacks()
        timeout = None if view is not None else self._response_timeout
        outgoing = Outgoing(connection, receive, timeout, self.watches(connection.loop))
        await self._finish(connection, outgoing, partial(outgoing.resume, began), send, scope, view)

    async def _finish(
        self,
        connection: UpstreamConnection,
        outgoing: Outgoing,
        begin: Callable[[], None],
        send: Send,
        scope: Scope,
        view: AttemptView | None,
    ) -> None:
        start: Message | None = None
        broken: OutcomeUnknown | None = None
        try:
            begin()
            try:
                await connection.head()
            except OutcomeUnknown as reason:
                if not connection.broke_unanswered:
                    raise
                broken = reason
            if broken is not None:
                connection = await self._send_again(connection, outgoing, broken, scope, view)
                await connection.head()
            connection.whole = None  # as long as a response may last
            response = connection.response
            outgoing.answered()
            start = {"type": "http.response.start", "status": response.status, "headers": self.headers(response)}
            if response.complete:
                body = response.take()
            else:
                await send(start)
                start = None
                body = await _stream(connection, send)
        except (ClientLeft, SwitchedAway):
            return
        except (OutcomeUnknown, NotProcessed, asyncio.CancelledError):
            connection.abort()  # its exchange has no owner any more
            raise
        except Exception as error:  # a fault of ours, or of the response's receiver: not the upstream's
            connection.abort()
            raise GatewayFailed.by(error) from error
        finally:
            outgoing.close()
        if outgoing.sent_all:
            self.upstream.give_back(connection)
        else:
            connection.abort()
        if start is not None:
            await send(start)
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _send_again(
        self,
        broken: UpstreamConnection,
        outgoing: Outgoing,
        reason: OutcomeUnknown,
        scope: Scope,
        view: AttemptView | None,
    ) -> UpstreamConnection:
        """Sends the request of a connection that broke unanswered over a new one, where that is safe; else raises ``reason``."""
        outgoing.stop()
        whole, method = broken.whole, scope["method"]
        broken.abort()
        if whole is None or view is not None or method not in IDEMPOTENT:  # under enforcement an attempt is sent once
            raise reason
        try:
            connection = await self.upstream.ready(new=True)
        except NotProcessed:
            raise reason from None  # the first one's outcome is unknown
        log.info("%s: sent again on a new connection", reason, extra=ids(scope, self._unshown))
        outgoing.begin_again(connection, whole, is_head=method == "HEAD")
        return connection

    def headers(self, response: ResponseReader) -> Headers:
        """The fields of a response as they go on."""
        headers = response.headers
        if not response.head.has_date:  # RFC 9110 section 6.6.1: whoever forwards a response without one adds it
            headers.append(date())
        if self._via:
            headers.append(VIA)
        return headers

    def watches(self, loop: asyncio.AbstractEventLoop) -> Deadlines:
        """The watch over exchanges that last."""
        if self._watches is None or self._watches.loop is not loop:
            self._watches = watches(loop, self._response_timeout)
        return self._watches

    def watch(self, connection: UpstreamConnection, began: float) -> None:
        """Have who awaits its response by callback notice that it lasts; it was sent at ``began`` (the loop's clock)."""
        lasting = self._lasting
        if lasting is None or lasting.loop is not connection.loop:
            seconds = lasts_after(self._response_timeout)
            self._lasting = lasting = LastingExchanges(connection.loop, seconds, self.upstream.connections)
        lasting.watch(connection, began)

    async def probe(self) -> None:
        """Opens a connection to the upstream and closes it. Raises `NotProcessed`, with a reason in one line, where it can't."""
        await self.upstream.probe()

    async def close(self) -> None:
        """Closes the idle connections; those in use are closed when their exchange ends."""
        await self.upstream.close()
        if self._lasting is not None and not self.upstream.connections:
            self._lasting.close()


async def _stream(connection: UpstreamConnection, send: Send) -> bytes:
    """Passes the body on as it comes, at the client's pace. What it returns is the last of it."""
    response = connection.response
    body = await connection.read()
    while not response.complete or response.buffered:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        body = await connection.read()
    return body


async def _refuse(send: Send, refusal: RequestRefused) -> None:
    """Answers a request that can't be forwarded. Its connection is closed: where its body ends is what is in doubt."""
    body = f"{refusal}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        date(),
    ]
    await respond(send, refusal.status, headers, body)
