"""`Rows` in a file of SQLite's, for one event loop: replays are read on the loop, all else goes to the file's thread."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

from oncegate.cache.callbacks import set_reply
from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.sql.rows import Found, Reply, Row, Step
from oncegate.cache.sql.sqlite.file import SqliteFile

Made = TypeVar("Made")

_ON_LOOP_BYTES: Final = 262144
"""A larger record is read in the thread: reading it would hold up the loop."""
_GLANCE: Final = (
    f"SELECT c.instant_ms, r.data IS NULL, CASE WHEN length(r.data) <= {_ON_LOOP_BYTES} THEN r.data END, r.ends_ms"  # noqa: S608 - constants
    " FROM clock c LEFT JOIN records r ON r.key = ?"
)

# SQLite takes a part of an empty value, which only a damaged record has, for NULL.
_PART: Final = "SELECT coalesce(substr(data, 1, ?), x''), length(data), ends_ms FROM records WHERE key = ?"
_MOST_BYTES: Final = 2**31 - 1
"""SQLite keeps no larger value."""


class SqliteRows:
    """See `oncegate.cache.sql.rows.Rows`."""

    def __init__(self, file: SqliteFile, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self._file = file
        self._loop = loop
        self._timeout = timeout
        self._reader: sqlite3.Connection | None = None
        self._generation = 0

    def glance(self, key: str) -> Found | None:
        """See `Rows`. It never waits: a file that is busy, as in a recovery, is read in the thread."""
        file = self._file
        if self._generation != file.generation or self._reader is None:
            self._connect()
            if self._reader is None:
                return None
        try:
            found = self._reader.execute(_GLANCE, (key,)).fetchone()
        except sqlite3.Error:
            self._generation = 0
            return None
        if found is None:
            return None
        instant_ms, is_nothing, data, ends_ms = found
        now_ms = file.clock.now_after(instant_ms)
        if is_nothing:
            return Found(False, None, now_ms)
        return None if data is None else Found(False, Row(data, ends_ms, now_ms), now_ms)

    def _connect(self) -> None:
        self._disconnect()
        generation = self._file.generation
        if self._file.is_open:
            path = quote(str(self._file.address.path))
            try:
                reader = sqlite3.connect(
                    f"file:{path}?mode=ro", uri=True, timeout=0, isolation_level=None, check_same_thread=False
                )
            except sqlite3.Error:
                return
            self._file.readers.append(reader)
            self._reader, self._generation = reader, generation

    def _disconnect(self) -> None:
        reader, self._reader = self._reader, None
        if (
            reader is not None and reader in self._file.readers
        ):  # else it is of the process that this one was forked from
            self._file.readers.remove(reader)
            reader.close()

    def now_ms(self) -> int:
        """See `Rows`. Not known before the file's own instant is."""
        return self._file.clock.now_ms() if self._file.is_open else 0

    def put(self, step: Step, then: Callable[[Reply], None]) -> None:
        """See `Rows`."""
        self._file.put(step, then, self._loop)

    async def read(self, key: str, most: int = 0) -> tuple[Row, int] | None:
        """See `Rows`."""

        def look(connection: sqlite3.Connection, now_ms: int) -> tuple[Row, int] | None:
            found = connection.execute(_PART, (most or _MOST_BYTES, key)).fetchone()
            if found is None or found[2] <= now_ms:
                return None
            return Row(found[0], found[2], now_ms), found[1]

        return await self._look(look)

    async def read_all(self, keys: Sequence[str], most: int) -> dict[str, tuple[Row, int]]:
        """See `Rows`."""

        def look(connection: sqlite3.Connection, now_ms: int) -> dict[str, tuple[Row, int]]:
            found = [(key, connection.execute(_PART, (most or _MOST_BYTES, key)).fetchone()) for key in keys]
            return {key: (Row(row[0], row[2], now_ms), row[1]) for key, row in found if row and row[2] > now_ms}

        return await self._look(look)

    async def scan(self, after: str, prefix: str, limit: int) -> tuple[list[str], str]:
        """See `Rows`."""

        def look(connection: sqlite3.Connection, now_ms: int) -> tuple[list[str], str]:
            rows = connection.execute(
                "SELECT key, ends_ms FROM records WHERE key > ? AND key >= ? AND key < ? ORDER BY key LIMIT ?",
                (after, prefix, prefix + "\U0010ffff", limit),
            ).fetchall()
            return [key for key, ends_ms in rows if ends_ms > now_ms], rows[-1][0] if len(rows) == limit else ""

        return await self._look(look)

    async def check(self) -> list[str]:
        """See `Rows`."""
        return await self._look(self._file.check)

    async def describe(self) -> dict[str, str | int]:
        """See `Rows`."""
        return await asyncio.to_thread(self._file.address.describe)

    async def _look(self, look: Callable[[sqlite3.Connection, int], Made]) -> Made:
        reply: asyncio.Future[Any] = self._loop.create_future()
        self._file.put(look, lambda answer: set_reply(reply, answer), self._loop)
        try:
            async with asyncio.timeout(self._timeout):
                answer = await reply
        except TimeoutError:
            raise CacheUnavailable("the file of records is busy") from None
        if isinstance(answer, Exception):
            raise answer
        made: Made = answer
        return made

    async def close(self) -> None:
        """See `Rows`."""
        self._disconnect()
