"""WebSocket in every framework: no key makes a record of it, and nothing of it is changed. A real client, a real server.

Rules of docs/contract.md: R2.21.
"""

import asyncio
import socket
from typing import Any
from uuid import uuid4

import pytest
import uvicorn
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Event, Request, TextMessage

from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import State
from oncegate.middleware.rules.settings import Route
from testing.running import running
from tests.middleware.door import PATIENCE, Door
from tests.middleware.framework_apps import FRAMEWORKS, Calls


class Noting:
    """An app that notes what it is called with."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.called: list[tuple[Any, Any, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            self.called.append((scope, receive, send))
        await self.app(scope, receive, send)


async def talk(port: int, text: str, headers: list[tuple[bytes, bytes]]) -> str:
    """What is answered to ``text`` on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = WSConnection(ConnectionType.CLIENT)
    writer.write(client.send(Request("api.example", "/talk", extra_headers=headers)))

    async def wanted(kind: type[Event]) -> Any:
        while True:
            for event in client.events():
                if isinstance(event, kind):
                    return event
                assert isinstance(event, AcceptConnection | TextMessage), event
            client.receive_data(await reader.read(65_536) or None)

    try:
        async with asyncio.timeout(PATIENCE):
            await wanted(AcceptConnection)
            writer.write(client.send(TextMessage(text)))
            answer = await wanted(TextMessage)
            closed = await wanted(CloseConnection)
            writer.write(client.send(closed.response()))
            return str(answer.data)
    finally:
        writer.close()


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_websocket_passes_untouched_with_a_key_and_without_one(framework: str) -> None:
    calls = Calls()
    inside = Noting(await FRAMEWORKS[framework](calls))
    there = Door(
        inside, MemoryCache(), uuid4().hex, on_missing_key="reject", require_scope=True, routes=[Route(path="/talk")]
    )
    outside = Noting(there.middleware)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        config = uvicorn.Config(outside, ws="wsproto", lifespan="off", log_config=None)
        async with running(config, [listener]):
            assert await talk(port, "hello", []) == "hello, None"
            for _ in range(2):  # the second is no replay of the first
                assert await talk(port, "hello", [(b"Idempotency-Key", b"k-1")]) == "hello, k-1"
    assert calls.count == 3
    assert len(inside.called) == 3
    for given, got in zip(outside.called, inside.called, strict=True):
        assert all(one is other for one, other in zip(given, got, strict=True))
    assert await there.state() is State.ABSENT
    assert there.slots == 0
