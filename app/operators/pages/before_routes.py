"""The steps before a route under the prefix: who may have it, a body that is there as a whole, scripts of other origins."""

from fastapi import Response

from oncegate.app.operators.audit import OPERATOR
from oncegate.app.operators.pages.bearer import Bearer
from oncegate.app.operators.pages.for_callers.commands import CommandStatuses
from oncegate.app.operators.pages.operations import FOR_OPERATORS
from oncegate.app.operators.pages.reply import REALM, problem
from oncegate.middleware.http.asgi import App, BodyAgain, Message, Receive, Scope, Send, read_body
from oncegate.middleware.http.cors import CrossOrigin
from oncegate.middleware.rules.errors import PayloadTooLarge, RequestTimeout

MOST_BYTES = 8 * 1024 * 1024
"""The most bytes of a request: a resolution may bring a response's body."""
BODY_SECONDS = 30.0
_NOBODY = (
    "This needs an operator's bearer token, and the gateway knows none. Give it one (ONCEGATE_ADMIN_TOKEN, or admin_tokens: see "
    "oncegate token), or the operators a port of their own (ops_port), or open it to everybody who reaches the gateway: "
    'public = ["metrics", "policy", "docs"].'
)
_READ_BY_POST = ("/records/find", "/inbox/find", "/outbox/find")
"""They change nothing: a POST, since a key is in it, or an aggregate's id."""


class BeforeRoutes:
    """An ASGI app around the routes: the operators' token, the body as a whole, and the rules for scripts of other origins."""

    def __init__(
        self,
        app: App,
        operators: Bearer | None,
        statuses: CommandStatuses | None,
        cors: CrossOrigin | None,
        guarded: frozenset[str],
        console: App | None,
    ) -> None:
        self._app = app
        self._operators = operators
        self._statuses = statuses
        self._cors = cors
        self._guarded = guarded
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or hand it on to the routes or the console."""
        name = scope["path"].split("/")[1]
        if name in self._guarded and self._operators is not None:
            await self._for_operators(self._operators, scope, receive, send)
        elif name in self._guarded and name not in FOR_OPERATORS:  # those don't exist without operators
            await problem(401, _NOBODY, headers={"www-authenticate": REALM})(scope, receive, send)
        elif name == "commands" and self._statuses is not None and self._cors is not None:
            await self._for_scripts(self._cors, self._statuses, scope, receive, send)
        elif self._console is not None and (name == "console" or (not name and _wants_page(scope))):
            await self._console(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _for_operators(self, operators: Bearer, scope: Scope, receive: Receive, send: Send) -> None:
        token = operators.brought(scope)
        if token is None:
            operators.refuse(scope)
            refusal = problem(401, "This needs the operators' bearer token.", headers={"www-authenticate": REALM})
            await refusal(scope, receive, send)
            return
        if not token.writes and scope["method"] != "GET" and scope["path"] not in _READ_BY_POST:
            await problem(403, f"The token of {token.name} is for reading.")(scope, receive, send)
            return
        scope = {**scope, OPERATOR: token.name}
        if scope["method"] == "POST":
            try:
                body = await read_body(receive, {}, MOST_BYTES, BODY_SECONDS) or b""
            except (PayloadTooLarge, RequestTimeout) as error:
                await problem(413 if isinstance(error, PayloadTooLarge) else 408, str(error))(scope, receive, send)
                return
            # It is JSON, whatever Content-Type says.
            others = [line for line in scope["headers"] if line[0] != b"content-type"]
            scope = {**scope, "headers": [*others, (b"content-type", b"application/json")]}
            receive = BodyAgain(body, receive).receive
        await self._app(scope, receive, send)

    async def _for_scripts(
        self, cors: CrossOrigin, statuses: CommandStatuses, scope: Scope, receive: Receive, send: Send
    ) -> None:
        own = cors.headers(scope["headers"])
        if scope["method"] == "OPTIONS":  # below the prefix, nothing else answers it
            allowed = [*statuses.caller_headers, "prefer"]
            preflight = Response(b"", media_type="application/json")
            preflight.raw_headers += cors.preflight(scope["headers"], methods="GET, HEAD", allowed=allowed)
            await preflight(scope, receive, send)
            return

        async def reply(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        await self._app(scope, receive, reply)


def _wants_page(scope: Scope) -> bool:
    """Whether a request is a browser's for a page: its Accept names HTML."""
    return any(name == b"accept" and b"text/html" in value.lower() for name, value in scope["headers"])
