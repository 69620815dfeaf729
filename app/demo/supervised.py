"""A process of the demo's: started, awaited, killed, and started again whenever it has ended unasked."""

import asyncio
import os
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

START_WITHIN = 60.0
"""Seconds for a process to be up; a busy machine takes some."""
STOP_WITHIN = 12.0
"""Seconds for one to end in its own way."""


class NotStarted(Exception):
    """A process of the demo's did not start; the text is one line that says which, and its last word."""


class Following(Protocol):
    """The follower of a process, called in the event loop."""

    def line(self, name: str, text: str) -> None:
        """The process has written this, once it was up."""

    def changed(self, name: str, what: str) -> None:
        """The process was killed, or is up again: ``what``, in words."""

    def failed(self, line: str) -> None:
        """It did not start again: `NotStarted`'s line."""


class Supervised:
    """The process ``name``. It is up once a line of its output has ``ready`` in it.

    ``command`` is called before each start. ``address`` is what the group ``url`` of ``ready`` has found.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        ready: "re.Pattern[str]",
        following: Following,
        environment: Mapping[str, str],
    ) -> None:
        self.name = name
        self.address = ""
        self.up, self.down = asyncio.Event(), asyncio.Event()
        self._command = command
        self._ready = ready
        self._following = following
        self._group = 0
        self._environment = environment
        self._may_start = asyncio.Event()
        self._may_start.set()
        self._process: Process | None = None
        self._last_line = ""
        self._output: asyncio.Task[None] | None = None
        self._supervision: asyncio.Task[None] | None = None

    async def start(self, group: int) -> None:
        """Returns once it is up, in the process group ``group``, as after its later starts. Raises `NotStarted`."""
        self._group = group
        await self._start()
        self._supervision = asyncio.create_task(self._supervise())

    def kill(self, *, hold: bool = False) -> None:
        """Have it end at once, by SIGKILL. It is started again; with ``hold`` not before `release`."""
        if hold:
            self._may_start.clear()
        if self._process is not None and self.up.is_set():
            self._following.changed(self.name, f"killed (SIGKILL, process {self._process.pid})")
            _send(self._process, signal.SIGKILL)

    def release(self) -> None:
        """Let it start again."""
        self._may_start.set()

    async def stop(self) -> None:
        """Have it end for good: by SIGTERM, or by SIGKILL where that takes too long."""
        if self._supervision is not None:
            self._supervision.cancel()
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            _send(self._process, number)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), STOP_WITHIN)
                break
        if self._output is not None:
            await self._output

    async def _supervise(self) -> None:
        while self._process is not None and self._output is not None:
            await self._process.wait()
            await self._output
            self.up.clear()
            self.down.set()
            await self._may_start.wait()
            try:
                await self._start()
            except NotStarted as error:
                self._following.failed(str(error))
                return

    async def _start(self) -> None:
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=STDOUT,
                process_group=self._group,
                env=self._environment,
            )
        except OSError as error:
            raise NotStarted(f"the {self.name} does not start: {error.strerror or error}") from None
        self._last_line = ""
        self._output = asyncio.create_task(self._read(process))
        is_up = asyncio.create_task(self.up.wait())
        await asyncio.wait({is_up, self._output}, timeout=START_WITHIN, return_when=asyncio.FIRST_COMPLETED)
        is_up.cancel()
        if not self.up.is_set():
            _send(process, signal.SIGKILL)
            await process.wait()
            why = (
                self._last_line.removeprefix("oncegate: ")
                or f"it is not up within {START_WITHIN:g} s, or ended without a word"
            )
            raise NotStarted(f"the {self.name} does not start: {why}")
        self.down.clear()
        self._following.changed(self.name, f"up (process {process.pid})")

    async def _read(self, process: Process) -> None:
        while process.stdout is not None:
            try:
                line = await process.stdout.readline()
            except ValueError:  # longer than what is read at a time: nothing of ours is
                continue
            if not line:
                return
            text = self._last_line = line.decode("utf-8", "replace").rstrip()
            if self.up.is_set():
                self._following.line(self.name, text)
            elif found := self._ready.search(text):
                self.address = found.groupdict().get("url") or self.address
                self.up.set()


def _send(process: Process, number: signal.Signals) -> None:
    """Not by the process's own methods: they reap one that has ended, which asyncio waits for in a thread and complains about."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
