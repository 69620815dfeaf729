"""Bounds the memory for bodies of requests that are not admitted yet: one bound for all clients of a process."""
# Compiled: docs/decisions/0012-compiled.md

import logging
from typing import Final

from oncegate.middleware.admission.observe import Watch
from oncegate.middleware.rules.errors import Overloaded

log = logging.getLogger("oncegate.http")

MAX_BUFFERED: Final = 64 * 1024 * 1024


class Buffered:
    """Counts the bytes of bodies that arrive in pieces, and of those whose requests wait for another one's outcome.

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
        self._tell(size)

    def give_back(self, size: int) -> None:
        """Hold them no longer."""
        self.bytes -= size
        self._tell(-size)

    def _tell(self, change: int) -> None:
        try:
            self._watch.bodies_waiting(change)
        except Exception:  # a user's watch must not decide about a payment
            log.exception("the watch failed")
