"""A client that calls an ASGI app by hand: its own scope, receive and send, so that a test decides about every message."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

App = Callable[[dict[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]
HOST = (b"host", b"api.example")


class Client:
    """One request and what comes back. ``status`` is 0 until a response starts; ``done`` says that it ended cleanly.

    ``pieces`` is the request's body as it arrives; a None in it means that the client leaves there, an `asyncio.Event` that
    nothing more comes before it is set. Clearing ``reads`` lets `send` block, as a server does whose client reads no more.
    """

    def __init__(
        self,
        method: str = "GET",
        path: bytes = b"/",
        headers: Iterable[tuple[bytes, bytes]] = (),
        pieces: Sequence[bytes | asyncio.Event | None] = (b"",),
        **scope: Any,
    ) -> None:
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path.decode("latin-1"),
            "raw_path": path,
            "query_string": b"",
            "root_path": "",
            "headers": [HOST, *headers],
            "client": ("192.0.2.7", 4711),
            "server": ("127.0.0.1", 80),
            **scope,
        }
        self.pieces = list(pieces)
        self.left = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.messages: list[dict[str, Any]] = []
        self.started = asyncio.Event()
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.done = False

    async def receive(self) -> dict[str, Any]:
        while self.pieces:
            piece = self.pieces.pop(0)
            if isinstance(piece, asyncio.Event):
                await piece.wait()
                continue
            if piece is None:
                self.left.set()
                break
            return {"type": "http.request", "body": piece, "more_body": bool(self.pieces)}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        assert not self.done, "a message behind the end of the response"
        await self.reads.wait()
        self.messages.append(message)
        if message["type"] == "http.response.start":
            assert not self.status, "the response started twice"
            self.status = message["status"]
            self.headers = message["headers"]
            self.started.set()
        else:
            assert self.status, "a body before its head"
            self.body += message.get("body", b"")
            self.done = not message.get("more_body", False)

    async def call(self, app: Any) -> "Client":
        await app(self.scope, self.receive, self.send)
        return self

    def values(self, name: bytes) -> list[bytes]:
        """What the response's field lines of that name say."""
        return [value for key, value in self.headers if key == name]
