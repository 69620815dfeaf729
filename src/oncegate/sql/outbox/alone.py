"""One relay at a time on a database of SQLite."""

import sqlite3
from contextlib import suppress


class Alone:
    """That one relay is at work on a database of SQLite: a lock on a file beside it, which ends with the process."""

    def __init__(self, database: str | None) -> None:
        in_memory = not database or database == ":memory:" or database.startswith("file:")
        self._file = "" if in_memory else f"{database}-relay"
        self._lock: sqlite3.Connection | None = None

    def got(self) -> bool:
        """Whether it is this one."""
        if not self._file or self._lock is not None:
            return True
        lock = sqlite3.connect(self._file, isolation_level=None, timeout=0, check_same_thread=False)
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            lock.close()
            return False
        self._lock = lock
        return True

    def close(self) -> None:
        """Another one may go on."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with suppress(sqlite3.Error):
                lock.close()
