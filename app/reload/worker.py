"""The parts of a reload in a process that serves: of a worker, which does what its parent sends; of a process that is alone."""

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from contextlib import suppress
from itertools import count
from typing import Any, Final

from oncegate.app.operators.reloading import Reloaded
from oncegate.app.reload.link import Answered, DropNew, Installed, InstallNew, Link, Prepared, PrepareNew, Requested
from oncegate.app.reload.running import Candidate, Running
from oncegate.app.settings.loading.sources import ConfigurationError
from oncegate.app.settings.shown.digest import settings_digest

log = logging.getLogger("oncegate.reload")

ANSWER_SECONDS: Final = 90.0
"""For an operator's reload: longer than two take, of which one was under way."""


class _Tasks:
    """Tasks that a reload leaves behind, held until they are done."""

    def __init__(self) -> None:
        self._held: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._held.add(task)
        task.add_done_callback(self._held.discard)
        return task


class WorkerReload:
    """A worker's part: it does what the parent sends over ``link``, and requests a reload there where an operator wants one."""

    def __init__(self, running: Running, link: Link) -> None:
        self._running = running
        self._link = link
        self._parent = os.getppid()
        self._tasks = _Tasks()
        self._preparing: asyncio.Task[Any] | None = None
        self._ready: tuple[int, Candidate] | None = None
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Reloaded]] = {}

    def start(self) -> None:
        """Receive messages from now on, in the running loop."""
        asyncio.get_running_loop().add_reader(self._link.channel, self._on_messages)
        self._running.by = self.reload

    async def reload(self) -> Reloaded:
        """Have the parent read the configuration anew; what came of it."""
        number = next(self._numbers)
        self._waiting[number] = reply = asyncio.get_running_loop().create_future()
        try:
            self._link.send(Requested(number))
            os.kill(self._parent, signal.SIGHUP)
            return await asyncio.wait_for(reply, ANSWER_SECONDS)
        except (OSError, TimeoutError):
            return Reloaded(self._running.digest, "the parent process does not answer: see the log")
        finally:
            del self._waiting[number]

    def _on_messages(self) -> None:
        try:
            messages = self._link.receive()
        except EOFError:
            asyncio.get_running_loop().remove_reader(self._link.channel)
            return
        for message in messages:
            self._on(message)

    def _on(self, message: object) -> None:
        match message:
            case PrepareNew():
                self._drop()
                self._preparing = self._tasks.start(self._prepare(message))
            case InstallNew(number):
                ready, self._ready = self._ready, None
                if ready is not None and ready[0] == number:
                    before = self._running.install(ready[1])
                    self._send(Installed(number))
                    self._tasks.start(self._running.settle(before))
            case DropNew():
                self._drop()
            case Answered(request, reloaded):
                reply = self._waiting.get(request)
                if reply is not None and not reply.done():
                    reply.set_result(reloaded)

    async def _prepare(self, message: PrepareNew) -> None:
        try:
            self._ready = message.number, await self._running.prepare(message.settings)
            log.debug("configuration %s is prepared", settings_digest(message.settings))
            refusal = ""
        except ConfigurationError as error:
            refusal = str(error)
        except Exception as error:
            log.exception("a replacement can't be made")
            refusal = f"a fault of the gateway's own: {type(error).__name__}"
        self._send(Prepared(message.number, refusal))

    def _drop(self) -> None:
        self._ready = None
        if self._preparing is not None:
            self._preparing.cancel()
            self._preparing = None

    def _send(self, message: object) -> None:
        with suppress(OSError):  # the parent is gone: so will this process be
            self._link.send(message)


class OwnReload:
    """The reload of a process that is alone."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._lock = asyncio.Lock()
        self._tasks = _Tasks()
        self._is_due = False

    def start(self) -> None:
        """Take requests for a reload from now on."""
        self._running.by = self.reload

    def on_signal(self) -> None:
        """Reload, once the one that is under way is done. One that has not begun is enough for any number of signals."""
        if not self._is_due:
            self._is_due = True
            self._tasks.start(self._by_signal())

    async def _by_signal(self) -> None:
        async with self._lock:
            self._is_due = False
            await self._reload()

    async def reload(self) -> Reloaded:
        """Read the configuration anew, and serve by it or as before."""
        async with self._lock:
            return await self._reload()

    async def _reload(self) -> Reloaded:
        running = self._running
        before = running.settings
        try:
            new = await asyncio.to_thread(running.read)
            replacement = await running.prepare(new.settings)
        except ConfigurationError as error:
            return running.refused(str(error))
        except Exception as error:
            log.exception("a reload failed")
            return running.refused(f"a fault of the gateway's own: {type(error).__name__}")
        self._tasks.start(running.settle(running.install(replacement)))
        return running.applied(before, new.wait)
