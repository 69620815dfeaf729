"""The response of an attempt, between the command processor that makes it and the client that may be gone.

Strategy. The attempt's task writes here and never waits for the client while the response is within the cap that is
kept; the request's own coroutine reads from here. The two meet in one future. Past the cap nothing is kept, so the
client sets the pace (a bounded window): the reader must read on or `leave`. The last chunk is shown to the client only
after the record is complete; so is what the client would take for the last one, by Content-Length or by the status.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from oncegate.middleware.asgi import Message
from oncegate.middleware.deadlines import Deadlines

WINDOW = 64 * 1024
"""Bytes that may wait for a client once the response is past the cap."""


class Capture:
    """What an attempt answers. ``send`` is the ASGI send callable for its command processor; a lost client is not its concern.

    ``status`` is 0 until the response has begun. ``body`` is what is kept of it: ``None`` once it went past ``cap`` bytes.
    ``bodiless`` says that the head is all there is to it. ``finish`` is called once, when the response is whole; it sees to it
    that `end` is called, before which its last byte can't be read. Set ``deaf``, and whatever is sent is dropped.
    """

    def __init__(self, cap: int, finish: Callable[["Capture"], None]) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.bodiless = False
        self.whole = False
        self.ended = False
        self.client_gone = False
        self.deaf = False
        self._cap = cap
        self._finish = finish
        self._kept: list[bytes] | None = []
        self._kept_bytes = 0
        self._due = -1
        """Bytes of the declared length still to come; below 0 where none was declared."""
        self._held = b""
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._news: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    @property
    def body(self) -> bytes | None:
        """The body so far, or ``None`` where it is larger than what is kept."""
        return None if self._kept is None else b"".join(self._kept)

    # -- the attempt's side -------------------------------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """ASGI ``send``. Messages after the end, and of other types, are dropped."""
        kind = message["type"]
        if self.deaf:
            return
        if kind == "http.response.start" and not self.status:
            self._begin(message["status"], message.get("headers", ()))
        elif kind == "http.response.body" and self.status and not self.whole:
            chunk = bytes(message.get("body", b""))
            more = message.get("more_body", False)
            if chunk:
                self._keep(chunk)
            self._due -= len(chunk)
            self._held += chunk
            if not more:
                self.whole = True
                self._finish(self)
                return
            if self._due == 0:  # all of the declared length: the client would not wait for the end
                return
            self._show()
            self._wake()
            if self._kept is None and self._unread_bytes > WINDOW:
                await self._client_reads()

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.headers = [(bytes(name).lower(), bytes(value)) for name, value in headers]
        self.status = status
        self._due = declared_length(status, self.headers)
        self.bodiless = self._due == 0
        if self._news is not None:
            # Most apps go on with the whole body at once: then nobody needs to be told of the head alone.
            self._news.get_loop().call_soon(self._show_head)

    def _show_head(self) -> None:
        if not self.whole:
            self._wake()

    def _show(self) -> None:
        chunk, self._held = self._held, b""
        if chunk and not self.client_gone:
            self._unread.append(chunk)
            self._unread_bytes += len(chunk)

    def end(self) -> None:
        """Nothing more will come: of a whole response, whose last byte can be read now, or of one that broke off."""
        if self.whole:
            self._show()
        self.ended = True
        self._finish = _ended  # its owner holds us, too: a cycle per request would keep the garbage collector busy
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
        else:
            self._kept.append(chunk)

    async def _client_reads(self) -> None:
        while self._unread_bytes > WINDOW and not self.client_gone:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    # -- the client's side --------------------------------------------------------------------------------------------

    def read(self) -> bytes:
        """All that is there to be sent to the client now."""
        if len(self._unread) == 1:
            chunk = self._unread.popleft()
        else:
            chunk = b"".join(self._unread)
            self._unread.clear()
        self._unread_bytes = 0
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        return chunk

    def leave(self) -> None:
        """The client is gone, or has what it gets: nothing is put aside for it any more."""
        self.client_gone = True
        self.read()

    async def begun(self, limit: Deadlines) -> bool:
        """Wait until the response has begun or ended. False: it has not, within ``limit``."""
        if self.status or self.ended:
            return True
        self._news = asyncio.get_running_loop().create_future()
        number = limit.set(self._wake)
        try:
            await self._news
        finally:
            limit.drop(number)
        return bool(self.status) or self.ended

    async def news(self) -> None:
        """Wait for something to read, or for the end. Once the response is whole, for the end: it goes out in one piece."""
        while not self.ended and (self.whole or not self._unread):
            self._news = asyncio.get_running_loop().create_future()
            await self._news

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


def _ended(_: Capture) -> None:
    """What comes after the end changes nothing."""


def declared_length(status: int, headers: list[tuple[bytes, bytes]]) -> int:
    """The length of the body by the head alone (RFC 9112 section 6.3), -1 where that does not tell."""
    if status in (204, 304):
        return 0
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return -1
