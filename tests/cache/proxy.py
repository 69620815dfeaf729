"""A TCP proxy that loses things between a client and a server, to make the moments that a network makes by chance."""

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards each connection to ``port`` on loopback. New connections are always forwarded; what `hold_requests` and
    `swallow_replies` do, they do to the connections that are open then.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._pairs: list[_Pair] = []
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    @property
    def connections(self) -> int:
        """How many connections were ever made."""
        return len(self._pairs)

    def hold_requests(self) -> None:
        """Keep back what clients send from now on."""
        for pair in self._pairs:
            pair.held = bytearray()

    def swallow_replies(self) -> None:
        """Lose what the server answers from now on."""
        for pair in self._pairs:
            pair.swallow = True

    def cut_clients(self) -> None:
        """Break the clients' side; the server's side stays open, as behind a network that lost the client."""
        for pair in self._pairs:
            pair.client.transport.abort()

    async def deliver_held(self) -> None:
        """Let what was held back reach the server after all, and wait until the server has closed or answered."""
        for pair in self._pairs:
            if pair.held:
                with contextlib.suppress(ConnectionError):
                    pair.server.write(bytes(pair.held))
                    await pair.server.drain()
                async with asyncio.timeout(60):
                    await pair.responded.wait()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:  # the server is stopped: so is who asked for it
            writer.transport.abort()
            return
        if self._server is None or not self._server.is_serving():  # closed while we connected
            writer.transport.abort()
            server_writer.transport.abort()
            return
        pair = _Pair(writer, server_writer)
        self._pairs.append(pair)
        await asyncio.gather(pair.carry_requests(reader), pair.carry_replies(server_reader), return_exceptions=True)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for pair in self._pairs:
            pair.client.transport.abort()
            pair.server.transport.abort()
        await self._server.wait_closed()


class _Pair:
    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.held: bytearray | None = None
        self.swallow = False
        self.responded = asyncio.Event()

    async def carry_requests(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if self.held is not None:
                    self.held += data
                else:
                    self.server.write(data)

    async def carry_replies(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if self.swallow or self.held is not None:
                    self.responded.set()
                else:
                    self.client.write(data)
        self.responded.set()
        self.client.close()
