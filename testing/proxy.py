"""A TCP proxy that breaks a connection where a client sends something: before the server has it, or after it has answered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal

from testing.own_loop import OwnLoop

Then = Literal["drop", "cut", "stall"]
"""The server never gets it; or it does, and its answer is lost, the connection broken or left open and silent."""


class BreakingProxy(OwnLoop):
    """For the length of a ``with``: at ``port``, in front of the server at another one.

    `watch` names bytes. What comes back over the connection that has sent them is swallowed (``lost``).
    """

    def __init__(self, server_port: int) -> None:
        super().__init__()
        self.lost = b""
        self._server_port = server_port
        self._watched: tuple[bytes, Then] | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    def watch(self, sent: bytes, then: Then) -> None:
        """Break the next connection that sends ``sent``."""
        self.lost = b""
        self._watched = sent, then

    @property
    def is_watching(self) -> bool:
        """Whether nobody has sent it yet."""
        return self._watched is not None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = server.sockets[0].getsockname()[1]
        yield
        server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.transport.abort()
            return
        fate: list[Then] = []
        back = asyncio.create_task(self._back(far_reader, writer, fate))
        self._pumps.add(back)
        try:
            # A task of start_server's that ends as cancelled is reported as an error of the loop.
            with suppress(ConnectionError, asyncio.CancelledError):
                while data := await reader.read(65536):
                    if self._watched is not None and self._watched[0] in data:
                        fate.append(self._watched[1])
                        self._watched = None
                        if fate == ["drop"]:
                            break
                    far_writer.write(data)
                    await far_writer.drain()
        finally:
            back.cancel()
            writer.transport.abort()
            far_writer.transport.abort()

    async def _back(self, far_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fate: list[Then]) -> None:
        with suppress(ConnectionError):
            while data := await far_reader.read(65536):
                if not fate:
                    writer.write(data)
                    continue
                self.lost += data
                if fate == ["cut"]:
                    break
            if not fate:  # the server may have closed its side alone, to answer a body that it refuses
                writer.write_eof()
                return
        writer.transport.abort()
