"""Writes lines to a file, a pipe or standard output, many at once, in a thread: the event loop waits for none of them.

Strategy. The loop collects lines, and hands them over together a moment later. The thread writes them: to a file all of them by
one write, which ``O_APPEND`` puts behind those of other processes; to anything else in pieces of whole lines, short enough for
the kernel not to mix them with others' (``PIPE_BUF``). What waits is bounded: beyond, or where a write fails, lines are
dropped and counted, and the log says so once until they are written again.
"""

import asyncio
import logging
import os
import queue
import select
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from oncegate.app.settings.loading.sources import ConfigurationError

log = logging.getLogger("oncegate.access")

PAUSE: Final = 0.1
"""Seconds for which lines are collected."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Of lines that wait to be written."""
LAST_SECONDS: Final = 2.0
"""For the rest to be written at the end."""
_MODE: Final = 0o640
_STANDARD_OUTPUT: Final = 1

Batch = list[bytes]


class LineWriter:
    """A writer to the file ``path``, opened at once, or to standard output, where that is empty.

    To be made before workers are forked; each calls `start`, in its event loop. ``dropped`` is called with how many lines were
    dropped, in the loop, too. Raises ``OSError``.
    """

    def __init__(self, path: str, dropped: Callable[[int], None]) -> None:
        self._path = path
        self._descriptor = _opened(path) if path else _STANDARD_OUTPUT
        self._dropped = dropped
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._handed_over: queue.SimpleQueue[Batch | int | None] = queue.SimpleQueue()
        """Lines; the descriptor to be written to from here on; ``None`` for the end."""
        self._lines: Batch = []
        self._taken = 0
        """Bytes of all lines that were taken; the loop's alone."""
        self._done = 0
        """Of these, what waits no more; the thread's alone."""
        self._is_losing = False
        self._is_torn = False
        """The last write has left a line unfinished."""

    def start(self) -> None:
        """Begin to write, in this process."""
        if self._path:  # what is inherited may have been rotated away since
            with suppress(OSError):
                descriptor = _opened(self._path)
                os.close(self._descriptor)
                self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="access log", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Have ``line``, which ends with a line feed, written soon."""
        if self._taken - self._done > MOST_BYTES:
            self._lose(1, "it is written too slowly")
            return
        if not self._lines and self._loop is not None:
            self._loop.call_later(PAUSE, self._hand_over)
        self._taken += len(line)
        self._lines.append(line)

    def prepare(self, _: object) -> Callable[[], None]:
        """Look whether the file that has the path now can be written to; returns `reopen`, which a reload has done then.

        Raises `ConfigurationError`.
        """
        try:
            if self._path:
                os.close(_opened(self._path))
        except OSError as error:
            raise ConfigurationError(f"access_log_file: can't be opened: {error.strerror}") from None
        return self.reopen

    def reopen(self) -> None:
        """Write to the file that has the path now, as after a rotation: what comes from here on. It stays with the former one
        where that can't be opened any more.
        """
        if self._path and self._thread is not None:
            try:
                descriptor = _opened(self._path)
            except OSError as error:
                log.warning("the access log is not opened anew: %s", error.strerror)
                return
            self._hand_over()
            self._handed_over.put(descriptor)

    def close(self) -> None:
        """Write what is left, within `LAST_SECONDS`. What comes after it is written by another call, once the loop has ended."""
        thread, self._thread, self._loop = self._thread, None, None
        if thread is None:
            lines, self._lines = self._lines, []
            if lines:
                self._write_all(lines)
            return
        self._hand_over()
        self._handed_over.put(None)
        thread.join(LAST_SECONDS)
        if thread.is_alive():
            log.warning("the end of the access log was not written in %g s: lines are lost", LAST_SECONDS)

    def _hand_over(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            self._handed_over.put(lines)

    def _lose(self, lines: int, reason: str) -> None:
        self._dropped(lines)
        if not self._is_losing:
            self._is_losing = True
            log.warning("lines of the access log are dropped: %s", reason)

    def _is_written(self) -> None:
        if self._is_losing and self._taken - self._done < MOST_BYTES // 2:
            self._is_losing = False
            log.warning("the access log is written again")

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (given := self._handed_over.get()) is not None:
            if isinstance(given, int):
                os.close(self._descriptor)
                self._descriptor, self._is_torn = given, False
            else:
                self._write_all(given)

    def _write_all(self, lines: Batch) -> None:
        lost, reason = 0, ""
        for piece in self._pieces(lines):
            data = b"\n" + piece if self._is_torn else piece
            written, failure = self._written_of(data)
            if written:
                self._is_torn = data[written - 1 : written] != b"\n"
            if failure:
                lost, reason = lost + data.count(b"\n", written), failure
        self._done += sum(map(len, lines))
        loop = self._loop
        if loop is None:
            if lost:
                log.warning("the last %d lines of the access log are lost: %s", lost, reason)
            return
        with suppress(RuntimeError):  # the loop is closed: nobody counts any more
            if lost:
                loop.call_soon_threadsafe(self._lose, lost, reason)
            elif self._is_losing:
                loop.call_soon_threadsafe(self._is_written)

    def _pieces(self, lines: Batch) -> Iterator[bytes]:
        if self._is_file():
            yield b"".join(lines)
            return
        piece = b""
        for line in lines:
            if piece and len(piece) + len(line) > select.PIPE_BUF:
                yield piece
                piece = b""
            piece += line
        yield piece

    def _is_file(self) -> bool:
        try:
            return stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        except OSError:  # closed by who started us
            return False

    def _written_of(self, data: bytes) -> tuple[int, str]:
        """How many bytes of ``data`` were written, and what kept the rest from it."""
        at = 0
        while at < len(data):
            try:
                at += os.write(self._descriptor, data[at:] if at else data)
            except BlockingIOError:  # standard output may be shared with who has it so
                select.select([], [self._descriptor], [])
            except OSError as error:
                return at, error.strerror or type(error).__name__
        return at, ""


def _opened(path: str) -> int:
    """A descriptor to append to the file. A pipe without a reader is refused, which would be waited for otherwise."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, _MODE)
    os.set_blocking(descriptor, True)
    return descriptor
