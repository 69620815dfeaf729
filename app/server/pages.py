"""The pages of a worker or a relay, ``/metrics`` and ``/healthz``, answered in the event loop that its work is in."""

import asyncio

import uvicorn
from prometheus_client import CollectorRegistry
from uvicorn.server import ServerState

from oncegate import __version__
from oncegate.app.server.accept import bind
from oncegate.app.server.connection import InboundConnection
from oncegate.app.telemetry.exposition import page_of
from oncegate.middleware.http.asgi import Receive, Scope, Send, respond
from oncegate.prometheus.attempts import Families

_TEXT = "text/plain; charset=utf-8"


class Pages:
    """A server of the metrics of ``registry`` on ``host`` and ``port``, which are bound at once.

    Raises `OSError` as `bind` does, to which ``setting`` goes.
    """

    def __init__(self, host: str, port: int, setting: str) -> None:
        self._sockets = bind(host, port, setting)
        self.registry = CollectorRegistry()
        Families(self.registry).gauge("build_info").labels(__version__).set(1)
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Listen, and answer from now on."""
        config = uvicorn.Config(
            self, interface="asgi3", http=InboundConnection, ws="none", lifespan="off", log_config=None
        )
        config.load()
        loop = asyncio.get_running_loop()
        for bound in self._sockets:
            made = loop.create_server(lambda: InboundConnection(config, self._state, {}), sock=bound)
            self._servers.append(await made)

    def close(self) -> None:
        """Listen no more; connections end with the process."""
        for server in self._servers:
            server.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's signature
        """ASGI 3."""
        status, body, kind = self._answer(scope)
        headers = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))]
        await respond(send, status, headers, b"" if scope["method"] == "HEAD" else body)

    def _answer(self, scope: Scope) -> tuple[int, bytes, str]:
        if scope["path"] not in ("/metrics", "/healthz"):
            return 404, b"Here are /metrics and /healthz.\n", _TEXT
        if scope["method"] not in ("GET", "HEAD"):
            return 405, b"GET or HEAD.\n", _TEXT
        if scope["path"] == "/healthz":
            return 200, b'{"status":"up"}', "application/json"
        accept = b",".join(value for name, value in scope["headers"] if name == b"accept")
        return 200, *page_of(self.registry, accept.decode("latin-1"))
