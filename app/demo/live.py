"""``oncegate demo``: starts the processes, serves the page, and shows each request in the terminal, until it is stopped."""

import asyncio
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import orjson
import uvicorn
from rich.console import Console

from oncegate.app.demo.faults import Faults
from oncegate.app.demo.page.control import Control
from oncegate.app.demo.page.document import DemoPage
from oncegate.app.demo.paying import Paying
from oncegate.app.demo.readings import Readings
from oncegate.app.demo.service import ANSWERED, PROGRESS
from oncegate.app.demo.stack import GATEWAY, HOST, PORTS_TO_TRY, Stack, find_redis
from oncegate.app.demo.supervised import NotStarted
from oncegate.app.demo.terminal import TerminalView
from oncegate.app.demo.upstream import Progress, serving_config
from oncegate.app.telemetry import logs

FIRST_PAGE_PORT = 8180
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)  # unlike a server, it ends with its terminal
_REQUESTS = "oncegate.request"


def run(port: int | None = None) -> int:
    """Run the demo until it is stopped, its gateway on ``port`` (``None``: 8080, or the next free one); returns the exit code."""
    logs.configure("warning", "text")  # nothing of what ends with the demo, such as a button's request, is an error
    return asyncio.run(_Demo(port).run())


class _Demo:
    """The demo: its processes, and all that shows them."""

    def __init__(self, port: int | None) -> None:
        self._view = TerminalView(Console(highlight=False, soft_wrap=True))
        self._stack = Stack(port, find_redis(), self)
        self._listener = _page_listener(0 if port == 0 else FIRST_PAGE_PORT)
        self._readings = Readings(self._stack, self._page_changed)
        self._faults = Faults(self._readings.read)
        url = f"http://{HOST}:{self._listener.getsockname()[1]}"
        self._page = DemoPage(url, self._readings, Paying(self._readings, self._faults), self._faults)
        self._control = Control(self._page)
        self._stop = asyncio.Event()
        self._failure = ""

    async def run(self) -> int:
        for number in _STOPPING:
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        stopped = asyncio.create_task(self._stop.wait())
        starting = asyncio.create_task(self._stack.start())
        try:
            await asyncio.wait({stopped, starting}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await self._serve()
        except NotStarted as error:
            self._failure = str(error)
        finally:
            starting.cancel()
            await asyncio.wait({starting})
            await self._readings.read()
            await self._stack.stop()
            self._listener.close()
        if self._failure:
            sys.stderr.write(f"oncegate: {self._failure}\n")
            return 1
        self._view.farewell(self._readings.books["arrived"], self._readings.books["executed"])
        return 0

    async def _serve(self) -> None:
        self._faults.processes = {each.name: each for each in self._stack.processes}
        server = _PageServer(serving_config(self._control))
        serving = asyncio.create_task(server.serve([self._listener]))
        self._view.introduce(
            page=self._page.url,
            upstream=self._stack.payments.address,
            url=self._stack.gateway.address,
            records="a Redis of the demo's own" if self._stack.redis else "a file of SQLite",
        )
        await self._stop.wait()
        self._control.close()
        server.should_exit = server.force_exit = True
        await serving

    def line(self, name: str, text: str) -> None:
        """See `oncegate.app.demo.supervised.Following`."""
        if name == GATEWAY:
            self._gateway_line(text)
        elif text.startswith(PROGRESS):
            self._faults.progressed(cast(Progress, text.removeprefix(PROGRESS)))
        elif text.startswith(ANSWERED) and not text.startswith(f"{ANSWERED}GET /books"):
            self._view.process(name, text.removeprefix(ANSWERED))

    def changed(self, name: str, what: str) -> None:
        """See `oncegate.app.demo.supervised.Following`."""
        if name == GATEWAY and not what.startswith("up"):
            self._readings.gateway_ended()
        if self._readings.last is not None:
            self._readings.note("gateway" if name == GATEWAY else "process", f"the {name} is {what}")
        if self._faults.processes:
            self._view.process(name, what)

    def failed(self, line: str) -> None:
        """See `oncegate.app.demo.supervised.Following`."""
        self._failure = line
        self._stop.set()

    def _page_changed(self) -> None:
        self._control.changed()

    def _gateway_line(self, text: str) -> None:
        try:
            line: dict[str, Any] = orjson.loads(text)
        except orjson.JSONDecodeError:
            return self._view.process(GATEWAY, text)
        if line.get("logger") == _REQUESTS and "decision" in line:
            self._view.decision(line)
        elif line.get("level") in ("WARNING", "ERROR", "CRITICAL"):
            self._view.process(GATEWAY, str(line.get("message")))
        return None


class _PageServer(uvicorn.Server):
    """A server that leaves signals to the demo, whose processes end first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _page_listener(first: int) -> socket.socket:
    """A socket on ``first``, or on the next free port; 0: on any."""
    for port in range(first, first + PORTS_TO_TRY) if first else ():
        try:
            return socket.create_server((HOST, port))
        except OSError:
            continue
    return socket.create_server((HOST, 0))
