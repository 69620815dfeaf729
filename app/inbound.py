"""uvicorn's HTTP/1.1 connection with the bounds that it lacks: the size of a head, the time for one, trailers.

httptools buffers a field line until it ends, however long it is; it hands trailers over like header fields, which uvicorn
then adds to the headers of a request that is already running; and it takes the body of a request with ``Upgrade`` for
another protocol, after which uvicorn takes it for the next request. None of that may reach an app that decides about
money. Nothing here costs a whole, ordinary request more than a few comparisons.
"""

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES = 64 * 1024
"""Of a request's line and header fields together; the same for trailers. Beyond: 431, and the connection is closed."""
HEAD_SECONDS = 15.0
"""For a head to arrive once it has begun."""
KEEP_ALIVE_SECONDS = 75
"""An idle connection is kept for longer than common load balancers keep theirs (60 s), so that they are the ones to
close it: a close that crosses a request on its way makes the sender wonder whether it was processed."""

_HOST = rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]"
_HOST_VALUE = re.compile(_HOST + rb"*")
_ABSOLUTE = re.compile(rb"https?://(" + _HOST + rb"+)(?=[/?]|$)", re.IGNORECASE)
"""A target in absolute-form (RFC 9112 section 3.2.2), without the userinfo that RFC 9110 section 4.2.4 calls an error."""
_OFFER_OF_H2C = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n)", re.IGNORECASE)


class HeadTooLarge(Exception):
    """Raised into the parser, to stop it."""


class VersionRefused(Exception):
    """Raised into the parser, to stop it."""


class HostRefused(Exception):
    """Raised into the parser, to stop it."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection of a client."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_message = False
        self._in_head = False
        self._too_large = False
        self._upgrading = False
        self._fed = 0
        self._quiet = 0  # bytes since the message began or a piece of body was handed on: a head's, or trailers'
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected: it has a while to say something."""
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn narrows it in the same way
        self._watch(KEEP_ALIVE_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, and with it what was timed."""
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, then judge what is still unfinished."""
        if self._upgrading:
            return  # another protocol's, or a body that the parser doesn't see as one: never the next request
        if not self._in_message and b"h2c" in data:
            data = _without_offer(data)
        self._fed = len(data)
        self._quiet += self._fed
        super().data_received(data)
        if self._in_message and not self.transport.is_closing():
            if self._quiet > MAX_HEAD_BYTES:
                self._too_large = True
                self.send_400_response("")
            elif self._in_head and self._timer is None:
                self._watch(HEAD_SECONDS)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._in_message = self._in_head = True
        self._quiet = 0
        self._unwatch()

    def on_headers_complete(self) -> None:
        """The head is whole: its size is known exactly."""
        self._in_head = False
        self._unwatch()
        if self.parser.get_http_version() not in ("1.1", "1.0"):
            # 0.9 is what the parser makes of a request line that a bare LF ends, with the rest of the line as a field;
            # 2.0 is what nobody speaks in this form. Whoever stands before us may have read either in another way.
            raise VersionRefused
        self._check_host()
        if self._quiet + self._fed > MAX_HEAD_BYTES:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > MAX_HEAD_BYTES:
                self._too_large = True
                raise HeadTooLarge
        super().on_headers_complete()
        if self.parser.should_upgrade():
            # The parser takes what follows for another protocol, a body that was announced too. The gateway refuses, and
            # nothing more may be read: a body would be taken for the next request.
            self._upgrading = True
            self.cycle.keep_alive = False
        if self.cycle.scope["http_version"] == "1.0":
            self.cycle.__class__ = _OldCycle  # its task has not begun yet
        self._quiet = 0
        # The scope keeps the list that it was given; trailers go into this one, which nobody reads (RFC 9110 section
        # 6.5.1: they must not be merged). Otherwise a client could add fields after everything was checked.
        self.headers = []

    def _check_host(self) -> None:
        """One valid `Host`, as RFC 9112 section 3.2 has it; only version 1.0 may be without. A target's own authority wins."""
        at = [number for number, (name, _) in enumerate(self.headers) if name == b"host"]
        if len(at) != 1 and (at or self.parser.get_http_version() == "1.1"):
            raise HostRefused
        if at and not _HOST_VALUE.fullmatch(self.headers[at[0]][1]):
            raise HostRefused
        if self.url.startswith(b"/") or (self.url == b"*" and self.parser.get_method() == b"OPTIONS"):
            return
        absolute = _ABSOLUTE.match(self.url)
        if absolute is None:
            raise HostRefused
        for number in at:
            del self.headers[number]
        self.headers.append((b"host", absolute[1]))
        rest = self.url[absolute.end() :]
        if not rest and self.parser.get_method() == b"OPTIONS":
            rest = b"*"  # RFC 9112 section 3.2.4
        self.url = rest if rest.startswith((b"/", b"*")) else b"/" + rest

    def on_body(self, body: bytes) -> None:
        """A piece of body: its size is the middleware's and the forwarder's business."""
        self._quiet = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The last byte of a request, trailers included."""
        self._in_message = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what can't be parsed, and close; 431 where it is only too large."""
        if not self._too_large:
            super().send_400_response(msg)
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: the gateway answers it, and an offer of h2c is no reason to warn."""

    def _watch(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._too_slow)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        self.transport.close()


class _OldCycle(RequestResponseCycle):
    """A response to an HTTP/1.0 request, which must not be chunked (RFC 9112 section 6.1): its end is the connection's.

    uvicorn chunks whatever has no length. `ab` and older nginx, as a proxy, still ask in this version.
    """

    _without_length = False

    async def send(self, message: Any) -> None:
        """As uvicorn's, with every piece of body as long as it happens to be."""
        if message["type"] == "http.response.start":
            self._without_length = all(name.lower() != b"content-length" for name, _ in message["headers"])
            if self._without_length:
                self.chunked_encoding = False
        elif self._without_length:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


def _without_offer(data: bytes) -> bytes:
    """``data`` without a first head's ``Upgrade: h2c``, which a server may ignore (RFC 9110 section 7.8).

    Java's client makes the offer with every first request, and httptools would not see the body of such a request.
    """
    end = data.find(b"\r\n\r\n")
    return _OFFER_OF_H2C.sub(b"", data[:end]) + data[end:] if end > 0 else data
