"""uvicorn's server in the test's own event loop. It begins and ends at once, since that is most of what a short test does."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn


class PromptServer(uvicorn.Server):
    """uvicorn's looks ten times a second whether it should end, and then pauses for another tenth."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ended = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.ended.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 - uvicorn tells nobody
            await asyncio.sleep(0.001)
        for server in self.servers:
            await server.wait_closed()
        await self.lifespan.shutdown()


@asynccontextmanager
async def running(config: uvicorn.Config, sockets: list[socket.socket]) -> AsyncIterator[None]:
    """Serves on ``sockets`` for the length of the context, and closes them."""
    server = PromptServer(config)
    serving = asyncio.create_task(server._serve(sockets))  # not `serve`, which takes the test runner's signals
    while not server.started:
        assert not serving.done(), serving.exception()
        await asyncio.sleep(0)
    try:
        yield
    finally:
        server.ended.set()
        await serving
