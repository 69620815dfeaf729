"""An app behind our protocol in uvicorn's server, and a client's plain socket to it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn

from oncegate.app.server.connection import InboundConnection
from oncegate.middleware.http.asgi import App, Message, Receive, Scope, Send
from testing.running import running
from testing.upstreams import PATIENCE


@asynccontextmanager
async def listening(app: App) -> AsyncIterator[tuple[str, int]]:
    """A server of ``app``: its host and port."""
    config = uvicorn.Config(app, lifespan="off", log_config=None, http=InboundConnection, server_header=False)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        async with running(config, [listener]):
            yield listener.getsockname()


@asynccontextmanager
async def serving(app: App) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client's connection to a server of ``app``."""
    async with listening(app) as address:
        client = socket.create_connection(address)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        reader, writer = await asyncio.open_connection(sock=client, limit=65536)
        try:
            async with asyncio.timeout(PATIENCE):
                yield reader, writer
        finally:
            writer.close()


class Heeding:
    """An app that takes what comes until its client is gone: ``received`` are the types of its messages."""

    def __init__(self) -> None:
        self.received: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while "http.disconnect" not in self.received:
            self.received.append((await receive())["type"])


def head(status: int = 200, **headers: object) -> Message:
    fields = [(name.replace("_", "-").encode(), str(value).encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": fields}


def piece(body: bytes = b"", *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    body = scope["path"].encode() + b" " + body
    await send(head(content_length=len(body)))
    await send(piece(body))


GET = b"GET /%b HTTP/1.1\r\nhost: a\r\n\r\n"
CLOSE = b"GET /last HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
