"""A WebSocket server of a library's: says which origin it was opened from, then echoes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from testing.own_loop import OwnLoop


class Talking(OwnLoop):
    """For the length of a ``with``, at ``url``. It has sub-protocols ``a`` and ``b``. ``paths`` are those it was opened by."""

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self.paths: list[str] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with serve(self._talk, "127.0.0.1", 0, subprotocols=[Subprotocol("a"), Subprotocol("b")]) as server:
            self.url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
            yield

    async def _talk(self, connection: ServerConnection) -> None:
        request = connection.request
        assert request is not None
        self.paths.append(request.path)
        await connection.send(request.headers.get("Origin", ""))
        async for message in connection:
            await connection.send(message)
        await asyncio.sleep(0)
