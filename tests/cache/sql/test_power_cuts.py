"""A power cut after any commit: a file system that forgets what was not synced, by apsw. What was answered is there after it.

Rules of docs/contract.md: R12.61.
"""

import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

from oncegate.cache.record import ClaimRequest, Record, State
from oncegate.cache.sql.sqlite.clock import SteadyClock
from oncegate.cache.sql.sqlite.file import SqliteFile
from oncegate.cache.sql.sqlite.rows import SqliteRows
from oncegate.cache.sql.sqlite.schema import SqliteAddress
from oncegate.cache.sql.store import SqlCache

PRINT = b"p" * 16
_names = count(1)


class ForgetfulDisk(apsw.VFS):
    """Knows of each file what a power cut would leave of it: its content when it was last synced."""

    def __init__(self) -> None:
        self.durable: dict[str, bytes] = {}
        self.name = f"forgetful{next(_names)}"
        super().__init__(self.name, "")

    def xOpen(self, name: Any, flags: list[int]) -> "ForgetfulFile":  # noqa: N802 - apsw's
        return ForgetfulFile(self, name, flags)

    def xDelete(self, name: str, syncdir: bool) -> None:  # noqa: N802 - apsw's
        super().xDelete(name, syncdir)
        self.durable.pop(name, None)

    def after_a_cut(self, folder: Path) -> None:
        """What is left, as files."""
        for path, content in self.durable.items():
            (folder / Path(path).name).write_bytes(content)


class ForgetfulFile(apsw.VFSFile):
    def __init__(self, disk: ForgetfulDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else name
        super().__init__("", name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802 - apsw's
        super().xSync(flags)
        if self._path:
            self._disk.durable[self._path] = Path(self._path).read_bytes()


class Cursor:
    """A statement's result, as sqlite3 has it."""

    def __init__(self, rows: list[Any], rowcount: int) -> None:
        self._rows = rows
        self.rowcount = rowcount

    def fetchone(self) -> Any:
        return self._rows[0] if self._rows else None


class Connection:
    """A connection of apsw's, as far as the file uses one of sqlite3's."""

    def __init__(self, path: Path, disk: ForgetfulDisk) -> None:
        self._connection = apsw.Connection(str(path), vfs=disk.name)

    def execute(self, statement: str, arguments: tuple[Any, ...] = ()) -> Cursor:
        rows = list(self._connection.execute(statement, arguments))
        return Cursor(rows, self._connection.changes())

    @property
    def in_transaction(self) -> bool:
        return bool(self._connection.in_transaction)

    def close(self) -> None:
        self._connection.close()


class FileOnForgetfulDisk(SqliteFile):
    disk: ForgetfulDisk
    is_open = False  # the loop reads by another library, which would not know of this one's locks

    def _connect(self) -> Any:
        return Connection(self.address.path, self.disk)


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    def next_folder() -> Iterator[Path]:
        for number in count():
            folder = tmp_path / f"cut-{number}"
            folder.mkdir()
            yield folder

    return next_folder()


async def lost_by_cuts(path: Path, options: str, folders: Iterator[Path], cuts: int) -> int:
    """How many acknowledged outcomes are missing, over so many power cuts. Fails for a damaged file."""
    file = FileOnForgetfulDisk(SqliteAddress(f"sqlite:///{path}{options}"), 30, SteadyClock())
    file.disk = disk = ForgetfulDisk()
    cache = SqlCache(lambda loop: SqliteRows(file, loop, 30), timeout=30, closed=file.close)
    chance = random.Random(7)
    answered: list[str] = []
    lost = 0
    for _ in range(cuts):
        for _ in range(chance.randrange(1, 12)):
            key, token = f"a:{len(answered)}", os.urandom(16)
            assert (await cache.claim(key, ClaimRequest(token, PRINT, 600_000, 600_000))).won
            assert await cache.complete(key, Record(State.SUCCEEDED, token, PRINT, 1), ttl_ms=600_000)
            answered.append(key)
        folder = next(folders)
        disk.after_a_cut(folder)
        with closing(sqlite3.connect(folder / path.name)) as left:
            assert left.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            tables = left.execute("SELECT count(*) FROM sqlite_master").fetchone()
            found = (
                left.execute("SELECT key FROM records WHERE substr(data, 2, 1) = X'53'").fetchall() if tables[0] else []
            )
            lost += len(set(answered) - {key for (key,) in found})
    await cache.close()
    return lost


async def test_nothing_that_was_answered_is_lost(tmp_path: Path, folders: Iterator[Path]) -> None:
    assert await lost_by_cuts(tmp_path / "records.db", "", folders, 40) == 0


async def test_what_survives_a_kill_alone_may_be_lost_and_is_never_damaged(
    tmp_path: Path, folders: Iterator[Path]
) -> None:
    """The same run sees a loss where there is one."""
    assert await lost_by_cuts(tmp_path / "records.db", "?durability=process", folders, 20) > 0
