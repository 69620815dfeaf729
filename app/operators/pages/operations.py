"""The operations under the prefix as one ASGI app, which loads the FastAPI app that answers, and hands requests to it.

Loading takes some tenths of a second, in a thread. ``healthz`` and ``readyz``, by which others know that a process has started,
are answered before it is done.
"""

import asyncio
from collections.abc import Callable, Collection

import orjson

from oncegate.app.operators.readiness import Readiness
from oncegate.app.settings.gateway import PublicPage
from oncegate.middleware.http.asgi import App, Message, Receive, Scope, Send, respond
from oncegate.middleware.outcome.responses import date

OF_DATABASE = ("database", "inbox", "outbox", "projections")
"""The paths about the consumers' database, which exist where one is given."""
FOR_OPERATORS = (
    "records",
    "dead-letters",
    "streams",
    "audit",
    "decisions",
    "callers",
    "processes",
    "cache",
    "settings",
    "reload",
    *OF_DATABASE,
)
"""The paths that always need an operator's token. They end with a slash."""
CHOSEN: dict[PublicPage, tuple[str, ...]] = {
    "metrics": ("metrics",),
    "policy": ("policy",),
    "docs": ("docs", "openapi.json"),
}
"""The paths that are for operators unless they are opened, by the setting ``public``."""
PUBLIC = frozenset({"healthz", "readyz", "commands", "problems"})
"""The paths that everybody gets on the main port, whatever is set."""


def opened(public: Collection[PublicPage]) -> frozenset[str]:
    """The paths that everybody gets on the main port."""
    return PUBLIC.union(*(CHOSEN[name] for name in public))


def guarded(public: Collection[PublicPage], own_port: int) -> frozenset[str]:
    """The paths that need an operator's token. On a port of their own, what can be chosen doesn't: who reaches it, may read."""
    chosen = () if own_port else (path for paths in CHOSEN.values() for path in paths)
    return frozenset((*FOR_OPERATORS, *chosen)) - opened(public)


_NOWHERE = "/-"
"""Where nothing is."""
_NO_STORE = (b"cache-control", b"no-store")


class Operations:
    """An ASGI app: everything under ``prefix``. With ``own_port``, what is not `opened` exists on that port alone.

    ``create`` makes the app to whose paths the prefix doesn't belong; it is called in a thread.
    """

    def __init__(
        self,
        prefix: str,
        readiness: Readiness,
        create: Callable[[], App],
        *,
        own_port: int = 0,
        public: Collection[PublicPage] = (),
    ) -> None:
        self.app: App | None = None
        self._prefix = prefix
        self._readiness = readiness
        self._create = create
        self._own_port = own_port
        self._opened = opened(public)
        self._loading: asyncio.Task[App] | None = None

    async def load(self) -> App:
        """Make the app, unless it is there."""
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(self._create))
        self.app = await asyncio.shield(self._loading)
        return self.app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request under the prefix, or on the operators' own port. HEAD is answered wherever GET is."""
        method, path = scope["method"], self._path(scope)

        async def reply(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], _NO_STORE, date()]}
            elif method == "HEAD":
                message = {**message, "body": b""}
            await send(message)

        if self.app is None and path in ("/healthz", "/readyz") and method in ("GET", "HEAD"):
            await self._probe(path, reply)
            return
        app = self.app or await self.load()
        below = {"path": path, "root_path": "", "method": method.replace("HEAD", "GET")}
        await app({**scope, **below}, receive, reply)

    def _path(self, scope: Scope) -> str:
        """Below the prefix; slashes at its end don't count."""
        path: str = scope["path"]
        if not path.startswith(self._prefix):
            return "/" if path == "/" else _NOWHERE
        name = path.removeprefix(self._prefix).strip("/")
        private = not self._own_port or (scope["server"] and scope["server"][1] == self._own_port)
        if not private and name.partition("/")[0] not in self._opened:
            return _NOWHERE
        return f"/{name}/" if name in FOR_OPERATORS else f"/{name}"

    async def _probe(self, path: str, send: Send) -> None:
        status, members = self._readiness.health() if path == "/healthz" else await self._readiness.check()
        body = orjson.dumps(members)
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
        await respond(send, status, headers, body)
