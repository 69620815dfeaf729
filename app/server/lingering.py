"""Lingering close of a client's connection.

A connection that is closed with bytes unread is reset (RFC 9112 section 9.6): its client, which as a rule reads only once it has
sent everything, would find an error instead of the answer. So where a client may still be sending, we write the answer, close our
side (half-close), and read and drop what comes until the client closes its side, within bounds.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
from typing import Final

LINGERING_SECONDS: Final = 30.0
PAUSE_SECONDS = 5.0
"""A client that sends nothing for so long has seen the answer, or never will."""
LINGERING_BYTES = 64 * 1024 * 1024
MOST_LINGERING: Final = 1000
"""Connections of one process at a time; what goes beyond is closed at once."""

_lingering: set[object] = set()


class Lingering:
    """The last of a ``connection``, until `close`."""

    def __init__(self, connection: object, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._until = loop.time() + LINGERING_SECONDS
        self._bytes = LINGERING_BYTES
        _lingering.add(connection)

    def drop(self, size: int) -> float:
        """Count ``size`` bytes more; returns for how many seconds to wait for more, 0: close now."""
        self._bytes -= size
        return max(0.0, min(PAUSE_SECONDS, self._until - self._loop.time())) if self._bytes >= 0 else 0.0

    def close(self) -> None:
        """The connection is gone."""
        _lingering.discard(self._connection)


def may_linger() -> bool:
    """Whether there is room for one more."""
    return len(_lingering) < MOST_LINGERING
