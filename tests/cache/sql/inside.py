"""A look inside a `SqlCache`, in one place: for tests that meddle with its rows, or wait for what goes on behind a call."""

import sqlite3
from pathlib import Path

from oncegate.cache.sql.line import Line
from oncegate.cache.sql.sqlite import file as module
from oncegate.cache.sql.sqlite.file import SqliteFile
from oncegate.cache.sql.store import SqlCache


def line_of(cache: SqlCache) -> Line:
    """The line of the one event loop that uses the cache."""
    (line,) = cache._lines.values()
    return line


def is_quiet(line: Line) -> bool:
    """Whether nothing is under way, withdrawals included."""
    return not line.withdrawals and not line._busy


def set_timeout(line: Line, seconds: float) -> None:
    """The time that its calls take at most, from now on."""
    line._timeout = seconds


def file_in(folder: Path) -> SqliteFile:
    """The one file of this process in ``folder``."""
    (file,) = [each for each in module._files if each.address.path.parent == folder]
    return file


def connection_of(file: SqliteFile) -> sqlite3.Connection:
    """What it is written by."""
    assert file._connection is not None
    return file._connection


def has_room_until(file: SqliteFile, instant: float) -> None:
    """When it looks at the disk's free room again."""
    file._room_until = instant
