"""Between a gateway and Redis: a TCP proxy that can lose the reply to one command after Redis has executed it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import resources
from typing import Literal

from testing.own_loop import OwnLoop

Then = Literal["cut", "stall"]


class LossyProxy(OwnLoop):
    """For the length of a ``with``. ``url`` is Redis by way of it.

    `lose_reply_to` names a script. The next call of it is passed on; what comes back over its connection is swallowed,
    that reply (``lost``) and all behind it. Then that connection is ``cut``, or left open, and silent, as a ``stall``.
    """

    def __init__(self, port: int) -> None:
        super().__init__()
        self.lost = b""
        self._port = port
        self._watched: tuple[bytes, Then] | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    def lose_reply_to(self, script: str, then: Then) -> None:
        source = resources.files("oncegate.cache.redis").joinpath("lua", f"{script}.lua").read_bytes()
        self.lost = b""
        self._watched = hashlib.sha1(source).hexdigest().encode(), then

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
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
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
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
        writer.transport.abort()
