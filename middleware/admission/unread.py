"""How much of responses may be held for clients that take less than they are given: one bound for all clients of a process.

A response is in the cache, or is nobody's to keep, by the time that its client is slow: so who holds up memory loses the
connection, and a retry gets the response. It meets the client that has taken nothing for longest. One that has taken something
since it was looked at gets a second chance, so that those who do nothing wrong are spared as long as others are there.
"""
# Compiled: docs/decisions/0012-compiled.md

import logging
from typing import Final, Protocol

from oncegate.middleware.admission.observe import Watch

log = logging.getLogger("oncegate.http")

MAX_UNREAD: Final = 256 * 1024 * 1024
_CHANCES: Final = 16
"""How many clients are looked at, at most, before the one whose turn it is must go: there may be thousands."""


class Reader(Protocol):
    """A client that something is held for."""

    def has_taken(self) -> bool:
        """Whether it has taken something since this was asked last, or since it began to take less."""

    def drop(self) -> None:
        """Let go of what is held for it, and of its connection, now or soon. Called once at most."""


class Unread:
    """Counts the bytes that wait for readers, who are in the order in which they began to take less than they were given."""

    def __init__(self, limit: int, watch: Watch) -> None:
        self.limit = limit
        self.bytes = 0
        self._watch = watch
        self._readers: dict[Reader, int] = {}

    def hold(self, reader: Reader, size: int) -> None:
        """So many bytes more wait for ``reader``. Readers are dropped, itself perhaps, where they are too many in all."""
        self._readers[reader] = self._readers.get(reader, 0) + size
        self._count(size)
        chances = _CHANCES
        while self.bytes > self.limit:
            oldest = next(iter(self._readers))
            if chances and oldest.has_taken():
                chances -= 1
                self._readers[oldest] = self._readers.pop(oldest)
            else:
                self._drop(oldest)

    def release(self, reader: Reader) -> None:
        """Nothing waits for ``reader`` any more."""
        size = self._readers.pop(reader, 0)
        if size:
            self._count(-size)

    def _drop(self, reader: Reader) -> None:
        log.info("a client was dropped that took too little of its response: max_unread is reached")
        self.release(reader)
        try:
            self._watch.reader_dropped()
        except Exception:  # somebody else's code must not decide about a payment
            log.exception("the watch failed")
        reader.drop()

    def _count(self, change: int) -> None:
        self.bytes += change
        try:
            self._watch.responses_waiting(change)
        except Exception:  # see above
            log.exception("the watch failed")
