"""One process's hold on a file of records: a thread that writes, and what its event loops read by.

Strategy. SQLite lets one transaction write at a time, and a commit waits for the disk. So one thread of a process writes, on its
own connection: all swaps that wait when it comes round are one transaction, one commit, and one wake-up of each event loop. Other
processes of the machine take turns by the file's lock. SQLite's own waiting for it grows to pauses of 100 ms, and whoever pauses
is passed by: so the lock is tried each half millisecond, which keeps the turns short and even.

No connection crosses a fork: SQLite's locks are a process's own, and closing an inherited connection would drop its parent's.
"""

import asyncio
import logging
import os
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Any, Final

from oncegate.cache.errors import CacheError, CacheFull, CacheRefused, CacheUnavailable
from oncegate.cache.sql.rows import Expected, Found, Read, Reply, Step, Swap
from oncegate.cache.sql.sqlite.clock import SteadyClock
from oncegate.cache.sql.sqlite.failures import cache_error, for_a_call
from oncegate.cache.sql.sqlite.jobs import Job, Look, deliver
from oncegate.cache.sql.sqlite.schema import (
    WHAT_IS_THERE,
    SqliteAddress,
    create,
    has_tables,
    prepare,
    remote_file_system,
)
from oncegate.cache.sql.sqlite.statements import SWEEP, committed, find, instant, is_busy, swapped

log = logging.getLogger("oncegate.cache")

LEAST_FREE_BYTES: Final = 64 * 1024 * 1024
"""Free space below which no new key is taken, so that outcomes still have room."""
MOST_WAITING: Final = 10_000
"""Steps that wait for the thread. More of them come only while the lock is not to be had; those callers have left by then."""
_LOCK_PAUSE: Final = 0.0005
_IDLE: Final = 1.0
"""Seconds after which a thread with nothing to do sweeps, and looks whether the file is still the same one."""
_STEP: Final = 32
"""Rows that are over, and that one commit removes at most besides: a burst of them is not paid for by one caller."""
IDLE_STEP: Final = 500
"""Rows that are over, and that a thread with nothing to do removes with one commit."""
_MOST_SWAPS: Final = 512

_files: "weakref.WeakSet[SqliteFile]" = weakref.WeakSet()
_left: list[Any] = []
"""Connections of the process that this one was forked from: kept, since to let go of them would close them."""


class SqliteFile:
    """The file at ``address``, for one process. It is opened when it is first used."""

    def __init__(self, address: SqliteAddress, timeout: float, clock: SteadyClock) -> None:
        self.address = address
        self.clock = clock
        self.generation = 0
        """Changes with each connection that is opened or closed: what a loop reads by must be of the same one."""
        self.readers: list[sqlite3.Connection] = []
        """The connections that the event loops read by."""
        self._timeout = timeout
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] = (0, 0)
        self._had_room = True
        self._room_until = 0.0
        self._begin()
        _files.add(self)

    def _begin(self) -> None:
        self._waiting: deque[Job] = deque()
        self._wake = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closing = False

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, so that the file has its tables."""
        return self._connection is not None

    def put(self, step: "Step | Look", then: Callable[[Any], None], loop: asyncio.AbstractEventLoop) -> None:
        """Carry out ``step`` in the thread; ``then`` is called in ``loop``."""
        if len(self._waiting) >= MOST_WAITING:
            loop.call_soon(then, CacheUnavailable("too much waits for the file of records"))
            return
        self._waiting.append(Job(step, then, loop))
        if self._thread is None or self._is_closing:
            self._start()
        self._wake.set()

    def _start(self) -> None:
        with self._starting:
            self._is_closing = False
            if self._thread is None:
                self._thread = threading.Thread(target=_work, args=(weakref.ref(self), self._wake), daemon=True)
                self._thread.name = "oncegate-sqlite"
                self._thread.start()

    def close(self) -> None:
        """End the thread, and with it the connection; what comes after it begins anew. It waits for the thread for a time-out."""
        thread = self._thread
        self._is_closing = True
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._timeout)

    def forget(self) -> None:
        """This process was forked: nothing of its parent's is used, and nothing of it closed."""
        _left.append((self._connection, self.readers, self._waiting, self._thread))
        self._connection, self.readers = None, []
        self.generation += 1
        self._begin()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def serve(self) -> bool:
        """Carry out what waits. False: the thread is to end."""
        if self._is_closing and self._ends():
            return False
        jobs = self._take()
        if not jobs:
            self._idle()
            return True
        swaps = [job for job in jobs if isinstance(job.step, Swap)]
        self._read([job for job in jobs if not isinstance(job.step, Swap)])
        if swaps:
            self._write(swaps)
        if self._waiting:  # more than go at once
            self._wake.set()
        return True

    def _ends(self) -> bool:
        with (
            self._starting
        ):  # so that a job put meanwhile finds this thread or starts another one, and there are never two
            if not self._is_closing or self._waiting:
                return False
            self._disconnect()
            self._thread = None
            return True

    def _take(self) -> list[Job]:
        waiting = self._waiting
        return [waiting.popleft() for _ in range(min(len(waiting), _MOST_SWAPS))]

    def _idle(self) -> None:
        try:
            connection = self._connection
            if connection is None:
                return
            if not self._is_same_file():
                log.error("the file of records was removed or replaced while it was in use: %s", self.address.path)
                self._disconnect()
                return
            now_ms = self.clock.now_ms()
            if connection.execute("SELECT 1 FROM records WHERE ends_ms <= ? LIMIT 1", (now_ms,)).fetchone():
                connection.execute("BEGIN IMMEDIATE")
                with committed(connection):
                    connection.execute(SWEEP, (now_ms, IDLE_STEP))
                self._wake.set()  # there may be more
        except (sqlite3.Error, OSError) as error:
            self._failed(error)

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._is_same_file():
            return self._connection
        self._disconnect()
        prepare(self.address)
        connection = self._connect()
        try:
            ends = monotonic() + self._timeout
            (mode,) = self._locked(connection, "PRAGMA journal_mode = WAL", ends).fetchone()
            if mode != "wal":
                raise CacheRefused("SQLite keeps no write-ahead log there: put the file on a local disk")
            connection.execute(f"PRAGMA synchronous = {self.address.synchronous}")
            # Tables that are there need no lock: whoever holds it, replays are read.
            if not has_tables(self._locked(connection, WHAT_IS_THERE, ends).fetchone(), self.address):
                self._locked(connection, "BEGIN IMMEDIATE", ends)
                create(connection, self.address)
                connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        self._inode = _inode(self.address)
        self._connection = connection
        self.generation += 1
        return connection

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.address.path, timeout=0, isolation_level=None, check_same_thread=False)

    def _is_same_file(self) -> bool:
        try:
            return _inode(self.address) == self._inode
        except FileNotFoundError:
            return False

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self.generation += 1
            connection.close()

    def _locked(self, connection: sqlite3.Connection, statement: str, ends: float) -> sqlite3.Cursor:
        """The statement's result, once the lock that it takes is free."""
        while True:
            try:
                return connection.execute(statement)
            except sqlite3.OperationalError as error:
                if not is_busy(error) or monotonic() >= ends:
                    raise
            if any(not isinstance(job.step, Swap) for job in self._waiting) and self._connection is not None:
                self._read_beside()
            sleep(_LOCK_PAUSE)

    def _read_beside(self) -> None:
        """Do what only reads: it needs no lock, and doesn't wait behind what does."""
        jobs = self._take()
        self._read([job for job in jobs if not isinstance(job.step, Swap)])
        self._waiting.extendleft(reversed([job for job in jobs if isinstance(job.step, Swap)]))

    def _read(self, jobs: Sequence[Job]) -> None:
        if jobs:
            replies: list[Any] = []
            for job in jobs:
                try:
                    replies.append(self._looked(job.step))
                except Exception as error:  # noqa: BLE001 - whatever it is: who waits would wait for ever
                    failed = self._failed(error)
                    replies.append(for_a_call(failed) if isinstance(job.step, Read) else failed)
            deliver(jobs, replies)

    def _looked(self, step: "Step | Look") -> Any:
        connection = self._open()
        now_ms = self.clock.now_after(instant(connection))
        if isinstance(step, Read | Swap):
            return find(connection, step.key, now_ms)
        return step(connection, now_ms)

    def _write(self, jobs: Sequence[Job]) -> None:
        replies: Sequence[Reply]
        try:
            connection = self._open()
            self._locked(connection, "BEGIN IMMEDIATE", monotonic() + self._timeout)
            with committed(connection):
                replies = self._swap_all(connection, [job.step for job in jobs if isinstance(job.step, Swap)])
        except Exception as error:  # noqa: BLE001 - whatever it is: who waits would wait for ever
            replies = [for_a_call(self._failed(error))] * len(jobs)
        deliver(jobs, replies)

    def _swap_all(self, connection: sqlite3.Connection, swaps: Sequence[Swap]) -> list[Reply]:
        known_ms = instant(connection)
        now_ms = self.clock.now_after(known_ms)
        replies: list[Reply] = []
        for swap in swaps:
            # Only a claim has an instant.
            if swap.until_ms and now_ms > swap.until_ms:
                replies.append(find(connection, swap.key, now_ms))
            elif swap.until_ms and swap.expected is not Expected.WHOLE and not self._has_room():
                row = find(connection, swap.key, now_ms)
                full = CacheFull(f"less than {LEAST_FREE_BYTES >> 20} MiB are free for the file of records")
                replies.append(row if row.row is not None and row.row.remaining_ms > 0 else full)
            elif swapped(connection, swap, now_ms):
                replies.append(Found(True, None, now_ms))
            else:
                replies.append(find(connection, swap.key, now_ms))
        if now_ms > known_ms:
            connection.execute("UPDATE clock SET instant_ms = ?", (now_ms,))
        connection.execute(SWEEP, (now_ms, _STEP))
        return replies

    def _has_room(self) -> bool:
        now = monotonic()
        if now >= self._room_until:
            free = os.statvfs(self.address.path.parent)
            self._had_room = free.f_bavail * free.f_frsize >= LEAST_FREE_BYTES
            self._room_until = now + _IDLE / 2
        return self._had_room

    def _failed(self, error: Exception) -> CacheError:
        """The cache's error for ``error``: nothing was made."""
        stands, is_connections = cache_error(error)
        if is_connections:  # the next call opens another one
            self._disconnect()
        return stands

    def check(self, connection: sqlite3.Connection, now_ms: int) -> list[str]:  # noqa: ARG002 - it is a `Look`
        """Advice to the operator about the file."""
        advice = []
        kind = remote_file_system(self.address.path)
        if kind:
            advice.append(
                f"the file of records is on a network file system ({kind}), whose locks may not hold: use a local disk"
            )
        if not self._has_room():
            advice.append(
                f"less than {LEAST_FREE_BYTES >> 20} MiB are free for the file of records: new keys are refused"
            )
        return advice


def _work(file: "weakref.ref[SqliteFile]", wake: threading.Event) -> None:
    goes_on = True
    while goes_on:
        wake.wait(_IDLE)
        wake.clear()
        held = file()
        if held is None:
            return
        try:
            goes_on = held.serve()
        except Exception:
            log.exception("the thread that writes records goes on")
        del held  # the file may be let go of while this waits


def _inode(address: SqliteAddress) -> tuple[int, int]:
    found = os.stat(address.path)  # noqa: PTH116 - one system call, for each commit
    return found.st_dev, found.st_ino


def _leave_connections() -> None:
    for file in list(_files):
        file.forget()


if hasattr(os, "register_at_fork"):  # Windows has none, and never forks
    os.register_at_fork(after_in_child=_leave_connections)
