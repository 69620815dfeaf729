"""How a connection is closed whose client may still be sending: what it sends is taken for a while, and dropped.

A connection that is closed with bytes unread is reset (RFC 9112 section 9.6): its client, which as a rule reads only once it has
sent everything, would find an error in the place of the answer. So the answer is followed by the end of what we say, and then
by the client's end, or by one of these bounds.
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
    """The last of a ``connection``, until `end`."""

    def __init__(self, connection: object, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._until = loop.time() + LINGERING_SECONDS
        self._bytes = LINGERING_BYTES
        _lingering.add(connection)

    def drop(self, size: int) -> float:
        """Take ``size`` bytes more; seconds to wait for others, 0 for no longer."""
        self._bytes -= size
        return max(0.0, min(PAUSE_SECONDS, self._until - self._loop.time())) if self._bytes >= 0 else 0.0

    def end(self) -> None:
        """The connection is gone."""
        _lingering.discard(self._connection)


def may_linger() -> bool:
    """Whether there is room for one more."""
    return len(_lingering) < MOST_LINGERING
