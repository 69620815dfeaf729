"""The errors of caches: one small tree, so that callers never see a store's own exceptions."""
# Compiled: docs/decisions/0012-compiled.md


class OncegateError(Exception):
    """Base of all errors of the public interface: of those that oncegate raises, and of those that a handler may raise."""


class CacheError(OncegateError):
    """Base of everything that a cache raises on purpose. Its text is one line and holds no key, credential or body."""


class CacheUnavailable(CacheError):
    """The store can't be reached, did not answer in time, or refused the command; what it did is not known."""


class CacheFull(CacheUnavailable):
    """The store has no room for a new record. Nothing was written and nothing that it holds was dropped."""


class CacheRefused(CacheUnavailable):
    """The store answered, and refused: nothing was written."""


class GroupMissing(CacheUnavailable):
    """The stream or its group is not there: deleted, or Redis has lost its data. Nothing was written."""


class CacheUnsupported(CacheError):
    """The store answers, but can't hold oncegate's guarantees (too old a version, say). Final: refuse to start."""


class RecordUnreadable(CacheError):
    """A record is there but can't be read: damaged, or of a newer version. An error, never a miss."""


class IllegalTransition(CacheError):
    """A move that the table of transitions does not have was requested: a bug in the caller."""
