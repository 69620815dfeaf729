"""Copies of what passes while a request is observed: its body for who reads it once more, its response for who answers with it.

Both are bounded, and hold up nobody: of what is too large only the beginning is kept, by which it is known to be too large.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from hashlib import blake2b
from time import monotonic
from typing import Final

from oncegate.cache.record import StoredResponse
from oncegate.middleware.http.apps.completion import ends_late
from oncegate.middleware.http.asgi import Message, Receive, Scope, Send
from oncegate.middleware.http.capture import declared_length
from oncegate.middleware.outcome import responses
from oncegate.middleware.outcome.errors import OutcomeUnknown
from oncegate.middleware.rules.policy import CONTENT_LENGTH

_MOST_NAMES: Final = 10
"""The most headers that are named as different."""


class RequestCopy:
    """The body of a request, once more, as the app receives it: of one above ``limit`` bytes only the beginning."""

    def __init__(self, limit: int) -> None:
        self.is_over = False
        """All of it was received, or its client has left before that."""
        self.is_wanted = True
        self._limit = limit
        self._size = 0
        self._messages: deque[Message] = deque()
        self._news = asyncio.Event()

    def add(self, message: Message) -> None:
        """The app has received ``message``, or will."""
        if self.is_over:
            return
        self.is_over = message["type"] == "http.disconnect" or not message.get("more_body", False)
        if self.is_wanted and self._size <= self._limit:
            self._size += len(message.get("body", b""))
            self._messages.append(message)
            self._news.set()

    def end(self) -> None:
        """Nobody receives any more of it."""
        self.add({"type": "http.disconnect"})

    def drop(self) -> None:
        """It is needed no more."""
        self.is_wanted = False
        self._messages.clear()

    async def receive(self) -> Message:
        """ASGI ``receive``, for who reads the copy."""
        while not self._messages:
            self._news.clear()
            await self._news.wait()
        return self._messages.popleft()


class ResponseCopy:
    """The app's response, once more, as it is sent: of one above ``cap`` bytes only the beginning. `app` answers with it.

    ``is_over``: the app has returned, or raised.
    """

    def __init__(self, cap: int, scope: Scope, is_late: bool | None) -> None:
        self.status = 0
        self.headers: responses.Headers = []
        self.size = 0
        self.is_whole = False
        self.is_over = asyncio.Event()
        self.began_at = 0.0
        self._scope = scope
        """The app's, which it may have added to."""
        self._is_late = is_late
        self._cap = cap
        self._due = -1
        self._pieces: deque[bytes] = deque()
        self._is_wanted = True
        self._digest: blake2b | None = blake2b(digest_size=16)
        """``None`` where it is what others are compared with."""
        self._error: Exception | None = None
        self._news = asyncio.Event()

    # -- as it is sent ------------------------------------------------------------------------------------------------

    def add(self, message: Message) -> None:
        """The app sends ``message``."""
        kind = message["type"]
        if kind == "http.response.start" and not self.status:
            self.began_at = monotonic()
            self.headers = [(bytes(name).lower(), bytes(value)) for name, value in message["headers"]]
            self.status = message["status"]
            self._due = declared_length(self.status, self.headers)
            self.is_whole = self._due == 0
        elif kind == "http.response.body" and self.status and not self.is_whole:
            piece = bytes(message.get("body", b""))
            if self.size <= self._cap:  # beyond it nothing is compared, or kept
                if self._is_wanted and piece:
                    self._pieces.append(piece)
                if self._digest is not None:
                    self._digest.update(piece)
            self.size += len(piece)
            self._due -= len(piece)
            # With all of its declared length the client has its response, whatever the app still does.
            self.is_whole = self._due == 0 or not message.get("more_body", False)
        self._news.set()

    def end(self, error: BaseException | None) -> None:
        """The app has returned, or raised ``error``."""
        if error is not None and not isinstance(error, Exception):  # it is the request's end, not the copy's
            error = OutcomeUnknown("the request ended before its response")
        self._error = error
        self.is_over.set()
        self._news.set()

    def is_late(self) -> bool:
        """Whether it is recorded once the app has returned (`Policy.completes_late`)."""
        return ends_late(self._scope) if self._is_late is None else self._is_late

    def drop(self) -> None:
        """It is needed no more, but for what it can be compared by."""
        self._is_wanted = False
        self._pieces.clear()

    # -- as an app ----------------------------------------------------------------------------------------------------

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI app that answers as the other one does, raises what that raises, and returns when it matters that that has."""
        await receive()  # whoever calls holds the body until then
        self._digest = None
        is_begun = False
        while True:
            if self.status and not is_begun:
                is_begun = True
                await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
            elif is_begun and self._pieces:
                await send({"type": "http.response.body", "body": self._pieces.popleft(), "more_body": True})
            elif is_begun and self.is_whole:
                break
            elif self.is_over.is_set():
                raise self._error or RuntimeError("the app returned without a complete response")
            else:
                self._news.clear()
                await self._news.wait()
        for name, value in self._scope.items():
            scope.setdefault(name, value)
        await send({"type": "http.response.body", "body": b""})
        if self.is_late():
            await self.is_over.wait()
            if self._error is not None:
                raise self._error

    # -- compared -----------------------------------------------------------------------------------------------------

    def differences(self, first: StoredResponse, unstored: frozenset[bytes]) -> tuple[list[str], list[str]]:
        """The parts in which ``first`` differs from it (``status``, ``headers``, ``body``), and the names of such headers."""
        parts = [] if first.status == self.status else ["status"]
        if first.body is None:  # nothing else was kept, or too little to compare
            return parts, []
        ours = _by_name(responses.stored(self.status, self.headers, None, unstored).headers)
        kept = _by_name(first.headers)
        names = sorted(name for name in ours.keys() | kept.keys() if ours.get(name) != kept.get(name))
        if names:
            parts.append("headers")
        digest = blake2b(first.body, digest_size=16).digest()
        if len(first.body) != self.size or self._digest is None or digest != self._digest.digest():
            parts.append("body")
        return parts, [name.decode("latin-1") for name in names[:_MOST_NAMES]]


def _by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    """The values by their headers' names, but for the length, which is the body's."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        if name != CONTENT_LENGTH:
            found.setdefault(name, []).append(value)
    return found
