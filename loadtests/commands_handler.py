"""The handler of `loadtests.commands_run`: it books a key once, and now and then it dies right after that.

Check, then act, in one transaction of its own store (SQLite): that closes the window between an effect and its record. How often
it was entered for a key is written in the same transaction, so that what was executed again can be counted.
"""

import gzip
import json
import os
import signal
import sqlite3
import threading
import time
import zlib
from typing import Any

from oncegate.middleware.consumers.command_context import CommandContext

BOOKS = "BOOKS"
"""The variable that names the file."""
DIES = "DIES_ONE_IN"
"""The variable that says in how many executions it dies once; 0: never. Which ones follows from the key and the attempt."""

FAILS = "FAILS_ONE_IN"
"""The same of executions that fail without an effect; 0: never."""

_threads = threading.local()


def open_books(path: str) -> sqlite3.Connection:
    """A connection to the books. A process that is killed loses nothing that it has committed: the kernel has it by then."""
    books = sqlite3.connect(path, timeout=60, isolation_level=None)
    books.execute("PRAGMA journal_mode = WAL")
    books.execute("PRAGMA synchronous = OFF")
    books.execute("CREATE TABLE IF NOT EXISTS booked (key TEXT PRIMARY KEY) WITHOUT ROWID")
    books.execute("CREATE TABLE IF NOT EXISTS entered (key TEXT, attempt INTEGER)")
    return books


class Panic(BaseException):
    """What is no ``Exception``: a library's time-out, a panic in an extension."""


def _fail(context: CommandContext) -> None:
    """Fail now and then in the ways that have ended workers, before there is an effect. Which: by the key and the attempt."""
    one_in = int(os.environ.get(FAILS, "0"))
    fate = zlib.crc32(f"{context.attempt} {context.key}".encode())
    if not one_in or fate % one_in:
        return
    kind = fate // one_in % 8
    if kind == 0:
        raise SystemExit
    if kind == 1:
        time.sleep(2)  # as one that hangs: its lease is renewed meanwhile
    raise Panic("out of our hands")


def book(body: bytes, context: CommandContext) -> dict[str, Any]:
    """Book the command's key, unless it is booked."""
    if context.request_header("content-encoding") == "gzip":
        body = gzip.decompress(body)
    payload = json.loads(body)
    _fail(context)
    books: sqlite3.Connection | None = getattr(_threads, "books", None)
    if books is None:
        books = _threads.books = open_books(os.environ[BOOKS])
    books.execute("BEGIN IMMEDIATE")
    new = books.execute("INSERT OR IGNORE INTO booked VALUES (?)", (context.key,)).rowcount
    books.execute("INSERT INTO entered VALUES (?, ?)", (context.key, context.attempt))
    books.execute("COMMIT")
    one_in = int(os.environ.get(DIES, "0"))
    if one_in and zlib.crc32(f"{context.key} {context.attempt}".encode()) % one_in == 0:
        os.kill(os.getpid(), signal.SIGKILL)  # in the window: the effect is there, its record is not
    return {"booked": bool(new), "number": payload["number"]}
