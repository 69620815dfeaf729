"""Parses a long read in pieces, so that other connections are served in between."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
from typing import Final, Protocol

PIECE_BYTES: Final = 8192
"""What is parsed at once. A read may bring 256 KiB, in which there is room for 10,000 requests, or 40,000 chunks."""


class Reading(Protocol):
    """The connection whose client sent it."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    @property
    def takes_more(self) -> bool:
        """Whether what was read is to be parsed now."""
        ...

    def data_received(self, data: bytes) -> None:
        """Parse ``data``."""
        ...


class Pieces:
    """What one connection has read and not parsed yet. Until it is parsed, nothing more is read."""

    __slots__ = ("_connection", "_scheduled", "_unparsed")

    def __init__(self, connection: Reading) -> None:
        self._connection = connection
        self._unparsed = b""
        self._scheduled = False

    def __bool__(self) -> bool:
        return len(self._unparsed) > 0

    def first(self, data: bytes) -> bytes:
        """The part of ``data`` to be parsed now. The rest follows, as reads of their own, in the event loop's next rounds."""
        self._unparsed = data[PIECE_BYTES:]
        transport = self._connection.transport
        if self._unparsed and not transport.is_closing():
            transport.pause_reading()
            self.go_on()
        return data[:PIECE_BYTES]

    def go_on(self) -> None:
        """Have the next piece parsed soon."""
        if not self._scheduled:
            self._scheduled = True
            self._connection.loop.call_soon(self._next)

    def drop(self) -> None:
        """The connection is gone."""
        self._unparsed = b""
        self._connection = None  # type: ignore[assignment]  # it refers to us: without it the collector has nothing to do

    def _next(self) -> None:
        self._scheduled = False
        if self._unparsed and self._connection.takes_more:
            data, self._unparsed = self._unparsed, b""
            self._connection.data_received(data)
            self._read_on()

    def _read_on(self) -> None:
        connection: Reading | None = self._connection  # gone perhaps
        if not self._unparsed and connection is not None and connection.takes_more:
            connection.transport.resume_reading()
