"""A file of records: its tables, and whether it can hold what is promised."""

import os
import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from oncegate.cache.errors import CacheUnsupported

LEAST_VERSION: Final = (3, 24, 0)
"""The first with ON CONFLICT DO UPDATE."""
SCHEMA: Final = 1
"""Kept as SQLite's ``user_version``. A file of a higher one is refused."""
APPLICATION: Final = 0x6F6E6365
"""SQLite's ``application_id``: a file that has another one is another program's."""
WHAT_IS_THERE: Final = (
    "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)"
    " FROM pragma_application_id, pragma_user_version"
)
"""What `has_tables` goes by, as of one instant."""

_TABLES: Final = (
    # WITHOUT ROWID: the key stands once, in the tree that has the record. ends_ms: Unix ms, from which on the row is gone.
    "CREATE TABLE records (key TEXT PRIMARY KEY, data BLOB NOT NULL, ends_ms INTEGER NOT NULL) WITHOUT ROWID",
    # For the sweep alone.
    "CREATE INDEX records_by_end ON records (ends_ms)",
    # One row: the highest instant that a process has written at. No later one reads the clock as earlier.
    "CREATE TABLE clock (instant_ms INTEGER NOT NULL)",
    "INSERT INTO clock VALUES (0)",
)

_REMOTE: Final = frozenset(
    ("nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs")
)


class SqliteAddress:
    """The file that a URL names, and how durable a commit is to be.

    ``sqlite:///records.db`` is below the working directory, ``sqlite:////var/lib/oncegate/records.db`` absolute. With
    ``?durability=process`` what is committed survives a kill of the process, and a power cut may take the last commits.
    Raises ``ValueError``, in one line.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        path = unquote(parts.path.removeprefix("/"))
        if parts.netloc or not parts.path.startswith("/"):
            raise ValueError(
                "sqlite:// takes three slashes and a file: sqlite:///records.db, or four for an absolute path"
            )
        if not path or path.endswith("/") or path == ":memory:" or "\0" in path:
            raise ValueError("sqlite:/// takes the path of a file: sqlite:///records.db (in memory: memory://)")
        options = parse_qs(parts.query, keep_blank_values=True)
        durability = options.pop("durability", ["disk"])[-1]
        if options or parts.fragment:
            raise ValueError("sqlite:/// takes one option, durability=process")
        if durability not in ("disk", "process"):
            raise ValueError(
                "durability is disk (the default: a commit survives a power cut) or process (a kill alone)"
            )
        self.path = Path(path).absolute()
        self.durability = durability
        self.synchronous = "FULL" if durability == "disk" else "NORMAL"

    def describe(self) -> dict[str, str | int]:
        """The file's size, with what is beside it, and how durable a commit is. It may raise ``OSError``."""
        files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        used = sum(each.stat().st_size for each in files if each.exists())
        kept = "a power cut" if self.durability == "disk" else "a kill alone: a power cut takes the last commits"
        return {
            "name": self.path.name,
            "used_bytes": used,
            "persistence": f"durability {self.durability}: a commit survives {kept}",
        }


def prepare(address: SqliteAddress) -> None:
    """Make the file, readable by its owner alone, as the files beside it will be. Raises `CacheUnsupported`, ``OSError``."""
    if sqlite3.sqlite_version_info < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise CacheUnsupported(f"this Python has SQLite {sqlite3.sqlite_version}: records need {least} or newer")
    folder = address.path.parent
    if not folder.is_dir():
        raise CacheUnsupported(
            f"{folder} is no folder: make it, or name another one in the cache's URL (sqlite:/// and a path from here, or "
            "sqlite:////var/lib/records.db)"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CacheUnsupported(
            f"{folder} can't be written to, and SQLite writes files beside the records: chown or chmod it"
        )
    if address.path.is_dir():
        raise CacheUnsupported(f"{address.path} is a folder: the cache's URL names a file")
    os.close(os.open(address.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def has_tables(found: tuple[int, int, int], address: SqliteAddress) -> bool:
    """Whether a file in which `WHAT_IS_THERE` was ``found`` has the tables. Raises `CacheUnsupported` where it has others."""
    application, version, tables = found
    if application != APPLICATION and tables:
        raise CacheUnsupported(f"{address.path} is another program's database: name a file of its own for the records")
    if version > SCHEMA:
        raise CacheUnsupported(f"{address.path} is of a newer oncegate (schema {version}, this one knows {SCHEMA})")
    return tables > 0


def create(connection: sqlite3.Connection, address: SqliteAddress) -> None:
    """Make the tables, where they are not there yet, in a transaction that is under way. Raises `CacheUnsupported`."""
    if not has_tables(connection.execute(WHAT_IS_THERE).fetchone(), address):
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")


def remote_file_system(path: Path, mounts: str = "/proc/self/mounts") -> str:
    """The kind of network file system that a file is on; empty where it is on none, or that isn't known."""
    try:
        lines = Path(mounts).read_text().splitlines()
    except OSError:  # no Linux
        return ""
    found, kind = Path(), ""
    for line in lines:
        _, where, name, *_ = line.split(" ")
        mounted = Path(where.encode().decode("unicode_escape"))
        if path.is_relative_to(mounted) and len(mounted.parts) >= len(found.parts):
            found, kind = mounted, name
    return kind if kind in _REMOTE else ""
