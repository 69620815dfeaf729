"""Errors of the cache for those of SQLite, or of the file system below it, which say what to do."""

import logging
import sqlite3

from oncegate.cache.errors import CacheError, CacheFull, CacheRefused, CacheUnavailable, CacheUnsupported
from oncegate.cache.sql.sqlite.statements import is_busy

log = logging.getLogger("oncegate.cache")


def cache_error(error: Exception) -> tuple[CacheError, bool]:
    """The error that stands for ``error``, and whether it may be the connection's, which is not to be used any more then."""
    if isinstance(error, CacheError):
        return error, False
    if isinstance(error, OSError):
        return CacheUnavailable(f"the file of records can't be used: {error.strerror or type(error).__name__}"), False
    if not isinstance(error, sqlite3.Error):
        log.error("the file of records: an unexpected error", exc_info=error)
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    if is_busy(error):
        return CacheUnavailable("another process holds the lock of the file of records for too long"), False
    if name.startswith("SQLITE_READONLY"):
        refused = CacheRefused("the file of records can't be written to: look at its owner and mode, and its folder's")
        return refused, False
    if name == "SQLITE_FULL":
        return CacheFull("the disk is full"), True
    if name == "SQLITE_NOTADB" or name.startswith("SQLITE_CORRUPT"):
        return CacheUnsupported("the file of records is damaged: move it away, and restore it from a backup"), True
    return CacheUnavailable(f"SQLite failed: {name}"), True


def for_a_call(error: CacheError) -> CacheUnavailable:
    """The same for a call: it may be made again, once somebody has done something about it."""
    return error if isinstance(error, CacheUnavailable) else CacheRefused(str(error))
