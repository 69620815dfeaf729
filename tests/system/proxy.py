"""Between a gateway and Redis: a TCP proxy that can lose the reply to one command after Redis has executed it."""

import asyncio
import hashlib
import threading
from contextlib import suppress
from importlib import resources
from typing import Literal, Self

Then = Literal["cut", "stall"]


class LossyProxy:
    """For the length of a ``with``, in a thread of its own. ``url`` is Redis by way of it.

    `lose_reply_to` names a script. The next call of it is passed on; what comes back over its connection is swallowed,
    that reply (``lost``) and all behind it. Then that connection is ``cut``, or left open, and silent, as a ``stall``.
    """

    def __init__(self, port: int) -> None:
        self.lost = b""
        self._port = port
        self._watched: tuple[bytes, Then] | None = None
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._pumps: set[asyncio.Task[None]] = set()

    def lose_reply_to(self, script: str, then: Then) -> None:
        source = resources.files("oncegate.cache").joinpath(f"{script}.lua").read_bytes()
        self.lost = b""
        self._watched = hashlib.sha1(source).hexdigest().encode(), then

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._running.wait(30)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(30)
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._main())

    async def _main(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        self._running.set()
        await self._stopped.wait()
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
