"""Bounds the memory held for clients, one bound for all of a process: bodies not admitted yet, responses not read yet.

By the time that its client is slow, a response is in the cache, or is not to be kept: so the client that takes up memory
loses its connection, and a retry gets the response. The first to go is the one that has read nothing for longest. One that
has read something since it was checked last is spared as long as there are others.
"""
# Compiled: docs/decisions/0012-compiled.md

import logging
from typing import Final, Protocol

from oncegate.middleware.admission.observe import Watch
from oncegate.middleware.admission.shared import notify
from oncegate.middleware.rules.errors import Overloaded

log = logging.getLogger("oncegate.http")

MAX_BUFFERED: Final = 64 * 1024 * 1024
MAX_UNREAD: Final = 256 * 1024 * 1024
_CHANCES: Final = 16
"""How many clients are checked, at most, before the one whose turn it is must go: there may be thousands."""


class Buffered:
    """The bytes of bodies that arrive in pieces, and of those whose requests wait for another one's outcome.

    A body that came whole and whose request is being claimed isn't counted: it has a slot already (``max_in_flight``). So small
    requests go on while large ones fill this.
    """

    def __init__(self, limit: int, watch: Watch) -> None:
        self.limit = limit
        self.bytes = 0
        self._watch = watch

    def take(self, size: int) -> None:
        """Hold ``size`` bytes more. Raises `Overloaded` where they would be too many; then nothing is held."""
        if self.bytes + size > self.limit:
            raise Overloaded("Too much waits to be admitted: try again later.")
        self.bytes += size
        notify(self._watch.bodies_waiting, size)

    def give_back(self, size: int) -> None:
        """Hold them no longer."""
        self.bytes -= size
        notify(self._watch.bodies_waiting, -size)


class Reader(Protocol):
    """A client for which something is held."""

    def has_taken(self) -> bool:
        """Whether it has read something since the last call, or since it fell behind."""

    def drop(self) -> None:
        """Let go of what is held for it, and of its connection, now or soon. Called once at most."""


class Unread:
    """The bytes that wait for readers, which are kept in the order in which they fell behind."""

    def __init__(self, limit: int, watch: Watch) -> None:
        self.limit = limit
        self.bytes = 0
        self._watch = watch
        self._readers: dict[Reader, int] = {}

    def hold(self, reader: Reader, size: int) -> None:
        """Count ``size`` bytes more for ``reader``. Readers are dropped, itself perhaps, where they are too many in all."""
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
        notify(self._watch.reader_dropped)
        reader.drop()

    def _count(self, change: int) -> None:
        self.bytes += change
        notify(self._watch.responses_waiting, change)
