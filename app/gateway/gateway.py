"""The gateway as one ASGI app: operations under the prefix, everything else to the upstream by way of the middleware.

It is thin on purpose: of a request that passes through it checks the path and the header names, and its response isn't
touched. Errors arrive as exceptions, and are answered at the end of `Gateway.__call__`.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from oncegate.app.gateway.fast_path import FastPath, came_in_on
from oncegate.app.gateway.lasting import Lasting
from oncegate.app.gateway.lifespan import Lifespan
from oncegate.app.gateway.tunnel import Tunnels
from oncegate.app.operators.pages.operations import Operations
from oncegate.app.server.head import requests_websocket
from oncegate.app.server.request import InboundRequest
from oncegate.app.telemetry.access_log import AccessLog, note_problem
from oncegate.app.upstream.forward import IDEMPOTENT
from oncegate.middleware.admission.buffers import Unread
from oncegate.middleware.http.asgi import App, Receive, Scope, Send, respond
from oncegate.middleware.http.cors import CrossOrigin
from oncegate.middleware.outcome.errors import GatewayFailed, NoAnswerInTime, NotProcessed, OutcomeUnknown
from oncegate.middleware.outcome.problem_kinds import KINDS
from oncegate.middleware.outcome.problems import Answer, problem
from oncegate.middleware.outcome.responses import date
from oncegate.middleware.rules.headers.request_id import ids, request_id
from oncegate.middleware.tokens.verifier import Tokens

log = logging.getLogger("oncegate.gateway")


class Gateway:
    """``forward`` is the way to the upstream, with the middleware in front of it.

    ``lasting`` is what this gateway shares with those before and after it; ``install`` has that go by this one's settings.
    ``lifespan`` is for a process that starts with this one. ``check_addresses`` notes by which rules records are addressed;
    what it returns is for the log. ``begun`` is called with each request when its turn has come.
    """

    def __init__(
        self,
        forward: App,
        *,
        lasting: Lasting,
        lifespan: Lifespan,
        install: Callable[[], None],
        operations: Operations,
        prefix: str,
        docs_url: str,
        check_addresses: Callable[[], Awaitable[list[str]]],
        tokens: Tokens | None = None,
        fast_path: FastPath | None = None,
        tunnels: Tunnels | None = None,
        cors: CrossOrigin | None = None,
        ops_port: int = 0,
        unshown: frozenset[bytes] = frozenset(),
        begun: Callable[[InboundRequest], None] | None = None,
    ) -> None:
        self.lasting = lasting
        self.lifespan = lifespan
        self.install = install
        self.unshown = unshown
        """The headers whose values are nobody's request id, so that the log shows none of them."""
        self.begun = begun
        self.operations = operations
        self._forward = forward
        self._prefix = prefix
        self._ops_port = ops_port
        self._docs_url = docs_url
        self.tokens = tokens
        self.check_addresses = check_addresses
        self._fast_path = fast_path
        self._tunnels = tunnels
        self._cors = cors
        if fast_path is not None:
            fast_path.answering = self.answer

    @property
    def access_log(self) -> AccessLog | None:
        """Gets a line for each request, where there is one."""
        return self.lasting.access_log

    @property
    def unread(self) -> Unread:
        """The count of what waits for clients, kept by connections."""
        return self.lasting.middleware.door.unread

    @property
    def direct(self) -> Callable[[InboundRequest], bool] | None:
        """Takes a whole request that can be answered without a task. ``False``: nothing was done, call the app.

        Requests for a WebSocket don't go there.
        """
        return None if self._fast_path is None else self._fast_path.take

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI 3."""
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        path: str = scope["path"]
        below = path.startswith(self._prefix) and path[len(self._prefix) :][:1] in ("", "/")
        if below or came_in_on(self._ops_port, scope):
            await self.operations(scope, receive, send)
            return
        if requests_websocket(scope["headers"]) and scope["http_version"] == "1.1":
            await self._upgrade(scope, send)
            return
        await self.answer(self._forward(scope, receive, send), scope, send)

    async def _upgrade(self, scope: Scope, send: Send) -> None:
        request = None if self._tunnels is None else self._tunnels.take(scope)
        if request is None or self._tunnels is None:
            await self._fail(scope, send, "upgrade-unsupported")
        else:
            await self.answer(self._tunnels.answer(request, send), scope, send)

    async def answer(self, work: Awaitable[None], scope: Scope, send: Send) -> None:
        """Await ``work``, which answers a request by the upstream; where it can't, answer with the problem that says why."""
        try:
            await work
        except NotProcessed as error:
            log.warning("upstream-unreachable: %s", error, extra=ids(scope, self.unshown))
            await self._fail(scope, send, "upstream-unreachable")
        except NoAnswerInTime as error:
            log.warning("upstream-timeout: %s", error, extra=ids(scope, self.unshown))
            # Nobody keeps the result of what isn't enforced: only an idempotent method may simply be sent again.
            await self._fail(scope, send, "upstream-timeout", retryable=scope["method"] in IDEMPOTENT)
        except GatewayFailed as error:
            log.error("a request failed", exc_info=error, extra=ids(scope, self.unshown))
            await self._send(self.failure(scope), send)
        except OutcomeUnknown as error:
            log.warning("upstream-failed: %s", error, extra=ids(scope, self.unshown))
            await self._fail(scope, send, "upstream-failed", retryable=scope["method"] in IDEMPOTENT)

    def failure(self, scope: Scope) -> Answer:
        """The answer to a request that a fault of ours ended, without a record that says more of it."""
        return self._problem(scope, "gateway-failed", retryable=scope["method"] in IDEMPOTENT)

    def _problem(self, scope: Scope, slug: str, *, retryable: bool | None = None) -> Answer:
        note_problem(scope, slug)
        followed = request_id(scope, self.unshown)
        answer = problem(slug, KINDS[slug].passing, docs_url=self._docs_url, request_id=followed, retryable=retryable)
        if self._cors is not None:
            answer.headers += self._cors.headers(scope["headers"])
        answer.headers.append(date())
        return answer

    async def _fail(self, scope: Scope, send: Send, slug: str, *, retryable: bool | None = None) -> None:
        await self._send(self._problem(scope, slug, retryable=retryable), send)

    async def _send(self, answer: Answer, send: Send) -> None:
        # Where the response has begun there is nothing to say any more: returning without its end makes the server close the
        # connection, by which the client can tell.
        with suppress(RuntimeError):
            await respond(send, answer.status, answer.headers, answer.body)

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.lifespan(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003})
        else:
            raise RuntimeError(f"no such ASGI scope here: {scope['type']}")
