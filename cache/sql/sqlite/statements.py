"""The SQL of a file of records: rows are found, swapped where they are as expected, and swept, on a connection that is given."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from oncegate.cache.sql.rows import HEAD_BYTES, Expected, Found, Row, Swap

_FIND: Final = "SELECT data, ends_ms FROM records WHERE key = ?"
_PUT: Final = (
    "INSERT INTO records VALUES (?, ?, ?)"
    " ON CONFLICT (key) DO UPDATE SET data = excluded.data, ends_ms = excluded.ends_ms WHERE records.ends_ms <= ?"
)
_HEAD: Final = f"key = ? AND ends_ms > ? AND substr(data, 1, {HEAD_BYTES}) = ?"
_WHOLE: Final = "key = ? AND ends_ms > ? AND data = ? AND ends_ms = ?"
SWEEP: Final = "DELETE FROM records WHERE key IN (SELECT key FROM records WHERE ends_ms <= ? LIMIT ?)"
"""Removes a number of rows that are over at an instant."""


@contextmanager
def committed(connection: sqlite3.Connection) -> Iterator[None]:
    """Ends a transaction that is under way."""
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def swapped(connection: sqlite3.Connection, swap: Swap, now_ms: int) -> bool:
    """Carry out ``swap``. False: the row is not as it expects."""
    key, ends_ms = swap.key, now_ms + swap.ttl_ms
    if swap.expected in (Expected.NOTHING, Expected.GONE):
        return connection.execute(_PUT, (key, swap.data, ends_ms, now_ms)).rowcount == 1
    is_whole = swap.expected is Expected.WHOLE
    where = _WHOLE if is_whole else _HEAD
    held = (key, now_ms, swap.held, swap.ends_ms) if is_whole else (key, now_ms, swap.held)
    if not swap.ttl_ms:
        cursor = connection.execute(f"DELETE FROM records WHERE {where}", held)  # noqa: S608 - a constant
    elif swap.data is None:
        cursor = connection.execute(f"UPDATE records SET ends_ms = ? WHERE {where}", (ends_ms, *held))  # noqa: S608 - as above
    else:
        values = (swap.data, ends_ms, *held)
        cursor = connection.execute(f"UPDATE records SET data = ?, ends_ms = ? WHERE {where}", values)  # noqa: S608 - as above
    return cursor.rowcount == 1


def find(connection: sqlite3.Connection, key: str, now_ms: int) -> Found:
    """The row of ``key``, over or not."""
    found = connection.execute(_FIND, (key,)).fetchone()
    return Found(False, None if found is None else Row(found[0], found[1], now_ms), now_ms)


def instant(connection: sqlite3.Connection) -> int:
    """The last instant that a commit was made at, in Unix ms; 0 before the first one."""
    found = connection.execute("SELECT instant_ms FROM clock").fetchone()
    return int(found[0]) if found else 0


def is_busy(error: Exception) -> bool:
    """Whether another connection holds the lock."""
    name = getattr(error, "sqlite_errorname", "") or ""
    return name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
