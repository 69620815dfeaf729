"""Captures an attempt's response: buffers it between the app that makes it and the client, who may be gone.

Strategy. The attempt's task writes here and never waits for the client while the response is within the cap that is
kept; the request's own coroutine reads from here. The two meet in one future. Past the cap nothing is kept, so the
client sets the pace (a bounded window): the reader must read on or `leave`. The last chunk is shown to the client only
after the record is complete; so is what the client would take for the last one, by Content-Length or by the status.
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
from collections.abc import Iterable
from typing import Any

from oncegate.cache.fields import BODILESS
from oncegate.middleware.admission.limits.deadlines import Deadlines
from oncegate.middleware.http.asgi import Message

WINDOW = 64 * 1024
"""Bytes that may wait for a client once the response is past the cap."""


class Capture:
    """An attempt's response. ``send`` is the ASGI send callable for its command processor; a lost client is not its concern.

    ``status`` is 0 until the response has begun; ``bodiless``: the head is all of it. `finish`, `outgrow` and `put_aside` are for
    subclasses. While its client is ``slow``, what is put aside for it counts. While it is ``deaf``, whatever is sent is dropped.
    While it is ``patient``, the head of a short response waits for its body.
    """

    # Few objects: most responses are one chunk, and what lives while the cache is waited for keeps the collector busy.
    __slots__ = (
        "_cap",
        "_due",
        "_held",
        "_kept",
        "_kept_bytes",
        "_limit",
        "_limits",
        "_news",
        "_room",
        "_unread",
        "_unread_bytes",
        "bodiless",
        "client_gone",
        "deaf",
        "ended",
        "headers",
        "patient",
        "slow",
        "status",
        "whole",
    )

    def __init__(self, cap: int) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.bodiless = False
        self.whole = False
        self.ended = False
        self.client_gone = False
        self.deaf = False
        self.patient = False
        self.slow = False
        self._cap = cap
        self._kept: bytes | list[bytes] | None = b""
        self._kept_bytes = 0
        self._due = -1
        """Bytes of the declared length still to come; below 0 where none was declared."""
        self._held = b""
        self._unread: list[bytes] | None = None
        self._unread_bytes = 0
        self._news: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._limits: Deadlines | None = None
        self._limit = 0

    @property
    def body(self) -> bytes | None:
        """The body so far, or ``None`` where it is larger than what is kept."""
        return b"".join(self._kept) if isinstance(self._kept, list) else self._kept

    # -- the attempt's side -------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Called once, when the response is whole. It sees to it that `end` is called: before, the last byte is not read."""
        self.end()

    def outgrow(self) -> None:
        """Called once, when the response is more than is kept: from now on the client sets the pace."""

    def put_aside(self, size: int) -> None:
        """Count ``size`` bytes more that wait for a client that is slow."""

    async def send(self, message: Message) -> None:
        """ASGI ``send``. Messages after the end, and of other types, are dropped."""
        kind = message["type"]
        if self.deaf:
            return
        if kind == "http.response.start" and not self.status:
            self._begin(message["status"], message.get("headers", ()))
        elif kind == "http.response.body" and self.status and not self.whole:
            chunk = message.get("body", b"")
            if not isinstance(chunk, bytes):
                chunk = bytes(chunk)
            more = message.get("more_body", False)
            if chunk:
                self._keep(chunk)
                self._due -= len(chunk)
                self._held += chunk
            if not more:
                self.whole = True
                self.finish()
                return
            if self._due == 0:  # all of the declared length: the client would not wait for the end
                return
            self._show()
            self._wake()
            if self._kept is None and self._unread_bytes > WINDOW:
                await self._client_reads()

    def _begin(self, status: int, headers: Iterable[Any]) -> None:
        self.headers = kept = []
        for line in headers:
            if isinstance(line, tuple) and len(line) == 2:  # compiled, two names for its parts would take an iterator
                name, value = line[0], line[1]
            else:
                name, value = line
            name = name.lower() if isinstance(name, bytes) else bytes(name).lower()
            kept.append((name, value if isinstance(value, bytes) else bytes(value)))
        self.status = status
        self._due = declared_length(status, self.headers)
        self.bodiless = self._due == 0
        if self._limits is not None:
            self._drop_limit(self._limits)
        # Most apps go on with the whole body at once: then the head alone need not be announced.
        if self._news is not None and not (self.patient and 0 < self._due <= WINDOW):
            self._news.get_loop().call_soon(self._show_head)

    def _show_head(self) -> None:
        if not self.whole:
            self._wake()

    def _show(self) -> None:
        chunk, self._held = self._held, b""
        if chunk and not self.client_gone:
            if self._unread is None:
                self._unread = [chunk]
            else:
                self._unread.append(chunk)
            self._unread_bytes += len(chunk)
            if self.slow:
                self.put_aside(len(chunk))

    def end(self) -> None:
        """The response is over: a whole one, whose last byte can be read now, or one that broke off."""
        if self.whole:
            self._show()
        self.ended = True
        if self._limits is not None:
            self._drop_limit(self._limits)
        self._wake()

    def cut(self) -> None:
        """Nothing more will be sent. What is whole ends when its record is complete; anything else ends here."""
        if not self.whole:
            self.end()

    def _keep(self, chunk: bytes) -> None:
        if self._kept is None:
            return
        self._kept_bytes += len(chunk)
        if self._kept_bytes > self._cap:
            self._kept = None
            self.outgrow()
        elif not self._kept:
            self._kept = chunk
        elif isinstance(self._kept, list):
            self._kept.append(chunk)
        else:
            self._kept = [self._kept, chunk]

    async def _client_reads(self) -> None:
        while self._unread_bytes > WINDOW and not self.client_gone:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    # -- the client's side --------------------------------------------------------------------------------------------

    def read(self) -> bytes:
        """All that is there to be sent to the client now."""
        unread, self._unread = self._unread, None
        self._unread_bytes = 0
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        if unread is None:
            return b""
        return unread[0] if len(unread) == 1 else b"".join(unread)

    def leave(self) -> None:
        """The client is gone, or has its whole answer: nothing is put aside for it any more."""
        self.client_gone = True
        if self._limits is not None:
            self._drop_limit(self._limits)
        self.read()

    def expect(self, news: "asyncio.Future[None]") -> None:
        """Have ``news`` done once the response has begun or ended, or a `limit` is reached before. For who reads, at first."""
        self._news = news
        if self.status or self.ended:
            self._wake()

    def limit(self, limits: Deadlines) -> None:
        """Show a head at once, from here on; that none has come is shown, too, when ``limits`` are reached."""
        self.patient = False
        if self.status:
            self._show_head()
        elif not self.ended:
            self._limits = limits
            self._limit = limits.set(self._wake)

    async def news(self) -> None:
        """Wait for something to read, or for the end. Once the response is whole, for the end: it goes out in one piece."""
        while not self.ended and (self.whole or self._unread is None):
            self._news = asyncio.get_running_loop().create_future()
            await self._news

    def _drop_limit(self, limits: Deadlines) -> None:
        limits.drop(self._limit)
        self._limits = None

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


def declared_length(status: int, headers: list[tuple[bytes, bytes]]) -> int:
    """The length of the body by the head alone (RFC 9112 section 6.3), -1 where the head does not determine it."""
    if status in BODILESS:
        return 0
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return -1
