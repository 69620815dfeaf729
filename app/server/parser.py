"""Parses requests to ASGI scopes: usual heads by `oncegate.app.server.usual`, all others by httptools. No I/O.

llhttp, on which httptools is built, accepts three protocols, and takes what follows a head with ``Upgrade`` for another one, even
an announced body. Neither is the parser's decision (RFC 9110 section 7.8):

- the head of a request with an ``Upgrade`` that is ignored is parsed a second time without that field, by a parser of its own;
- a request line of ``RTSP`` or ``ICE`` is refused.

Behind a method that llhttp doesn't know it can't go on: `is_unknown_method`.
"""
# Compiled: docs/decisions/0012-compiled.md

from typing import TYPE_CHECKING, Any, Final

import httptools

from oncegate.app.server.channel import UPGRADING
from oncegate.app.server.flow import PIECE_BYTES
from oncegate.app.server.head import (
    HeadRefused,
    can_switch,
    expects_continue,
    requests_websocket,
    without_authority,
)
from oncegate.app.server.request import InboundRequest
from oncegate.app.server.scope import RequestTarget, scope_of
from oncegate.app.server.usual import UsualReader
from oncegate.cache.fields import IN_LOWER_CASE

if TYPE_CHECKING:
    from oncegate.app.server.connection import InboundConnection

MAX_HEAD_BYTES: Final = 64 * 1024
"""The most bytes of a request's line and header fields, and of trailers. Beyond: 431, and the connection is closed."""
MAX_FIELDS: Final = 1000
"""The most fields of a request. Beyond: 431. All that reads fields takes its time for each, however short it is."""
_HOLDS_TOO_MANY: Final = 4 * MAX_FIELDS
"""Bytes: a shorter head can't hold more fields."""
_LOWER: Final = IN_LOWER_CASE  # an imported name's method is looked up, and bound, at each call
_SPACE: Final = ord(" ")
_VERSIONS: Final = {b" HTTP/1.1\r": "1.1", b" HTTP/1.0\r": "1.0"}
_END_OF_HEAD: Final = b"\r\n\r\n"
_NO_METHOD_OF_HTTP: Final = "Invalid method for HTTP/x.x request"
"""The error of llhttp about methods that it knows from RTSP."""


class InboundParser:
    """A parser that makes requests of what one ``connection``'s client sends.

    ``in_message``: a request has begun, and isn't whole; ``in_head``: nor is its head. ``shared`` is what the ASGI scopes of
    all its requests have in common.
    """

    def __init__(self, connection: "InboundConnection") -> None:
        self._connection = connection
        self.shared: dict[str, Any] = {}
        self.in_message = False
        self.in_head = False
        self._url: bytes | bytearray = b""
        """The request's target; in an array where it comes in pieces, which may be many."""
        self._headers: list[tuple[bytes, bytes]] = []
        self._fed = 0
        self._quiet = 0
        """Bytes since the request began or a piece of its body was handed on: a head's, or trailers'."""
        self._parser: Any = _new_parser(self)
        self._data = b""
        self._earlier = bytearray()  # a head may come byte by byte, and bytes would be copied each time
        """The bytes of earlier reads, of a head whose request line was not looked at, and perhaps of requests before it."""
        self._again = b""
        self._version = ""
        """The version that the request line was seen to name, so that llhttp's reading of it is not needed."""
        self._usual = UsualReader()
        self._left = 0
        """Bytes of the body of a usual request that are still to come."""
        self._is_last = False
        """Whether nothing behind the last request is one, as llhttp knows, which alone reads on."""

    def close(self) -> None:
        """Drop the references back to us: without cycles the garbage collector has nothing to do."""
        self._connection = None  # type: ignore[assignment]  # nothing is fed to it any more
        self._parser = None

    @property
    def is_too_large(self) -> bool:
        """Whether the head that is being read, or the trailers, are beyond `MAX_HEAD_BYTES`, and more than a piece."""
        return self._quiet > MAX_HEAD_BYTES + PIECE_BYTES

    @property
    def has_just_begun(self) -> bool:
        """Whether the request that is being read began with what was fed last."""
        return self._quiet == self._fed

    # -- httptools' callbacks -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._url = b""
        self.in_message = self.in_head = True
        self._quiet = self._fed  # what stood before it in the same piece included

    def on_url(self, url: bytes) -> None:
        """A piece of the request's target."""
        if not self._url:
            self._url = url
        else:
            if not isinstance(self._url, bytearray):
                self._url = bytearray(self._url)
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field of the head; or of trailers, which must not be merged into a head (RFC 9110 section 6.5.1): dropped."""
        if not self.in_head:
            return
        if value and value[-1] <= _SPACE:  # white space behind a value is no part of it, but the parser leaves it there
            value = value.rstrip(b" \t")
        self._headers.append((_LOWER.get(name) or name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole: its size is known exactly, and the request can begin."""
        self.in_head = False
        parser = self._parser
        method: bytes = parser.get_method()
        url = bytes(self._url) if isinstance(self._url, bytearray) else self._url
        version = self._version
        if version:  # as a rule
            self._version = ""
        else:
            version = self._unseen_version(method, url)
        headers = self._headers
        url = without_authority(url, method, version, headers)
        fields = dict(headers)
        expects_go_ahead = b"expect" in fields and version == "1.1" and expects_continue(headers)
        if self._quiet > _HOLDS_TOO_MANY:
            self._check_size(url, headers)
        upgrades = ends = False
        if b"upgrade" in fields or method == b"CONNECT":
            upgrades = version == "1.1" and requests_websocket(headers)
            ends = parser.should_upgrade()
        if ends and not upgrades and method != b"CONNECT":
            self._parse_again(method, url, version)
            return
        # Nothing may be read behind an upgrade that is refused: a body would be taken for the next request.
        keep_alive = version == "1.1" and not ends
        if keep_alive and (b"connection" in fields or b"proxy-connection" in fields):
            keep_alive = parser.should_keep_alive()
        if not keep_alive:
            self._is_last = True
        self._quiet = 0
        self._headers = []
        scope = scope_of(RequestTarget(method, url), version, headers, self.shared)
        request = InboundRequest(self._connection, scope, fields, keep_alive, expects_go_ahead, upgrades)
        if upgrades and ends and can_switch(method, headers):
            scope[UPGRADING] = request
        self._connection.head_is_complete(request, ends)

    def on_body(self, body: bytes) -> None:
        """A piece of body."""
        self._quiet = 0
        self._connection.body_came(body)

    def on_message_complete(self) -> None:
        """The last byte of a request, trailers included."""
        if not self._again:
            self.in_message = False
            self._connection.request_is_whole()

    def _check_size(self, url: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        size = len(url) + sum(len(name) + len(value) + 4 for name, value in headers)
        if len(headers) > MAX_FIELDS or size > MAX_HEAD_BYTES:
            self._quiet += MAX_HEAD_BYTES + PIECE_BYTES
            raise HeadRefused

    def _unseen_version(self, method: bytes, url: bytes) -> str:
        """The version of a request whose line may be of any kind. Raises `HeadRefused` unless it is one of HTTP/1."""
        raw, self._earlier = self._earlier + self._data, bytearray()
        line = b"%b %b " % (method, url)
        if line + b"RTSP/" in raw or line + b"ICE/" in raw:
            raise HeadRefused
        version: str = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            # 0.9 is what the parser makes of a request line that a bare LF ends, with the rest of the line as a field;
            # 2.0 does not exist in this form. A proxy in front of us may have read either in another way.
            raise HeadRefused
        return version

    def _parse_again(self, method: bytes, url: bytes, version: str) -> None:
        """Have this head parsed again without its ``Upgrade``; the first result is discarded."""
        lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
        lines += [b"%b: %b" % field for field in self._headers if field[0] != b"upgrade"]
        self._again = b"\r\n".join(lines) + _END_OF_HEAD
        self._headers = []
        self._version = version

    # -- fed ----------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Parse what was read. Raises ``httptools.HttpParserError``."""
        if self._left:
            data = self._usual_body(data)
        while data and not self.in_message and not self._is_last:
            if not self._usual.read(data):
                break
            data = self._begin_usual(self._usual, data)
        if data:
            self._feed_llhttp(data)

    def _begin_usual(self, usual: UsualReader, data: bytes) -> bytes:
        """Hand on a usual request, with the body that follows in ``data``; returns what is behind it."""
        connection = self._connection
        scope = scope_of(usual.target, "1.1", usual.headers[:], self.shared)
        request = InboundRequest(connection, scope, usual.fields, True, False, False)
        if len(data) == usual.end + usual.length:  # else another head may be read before this one's request is judged
            request.caller = usual.caller
        connection.head_is_complete(request, False)
        data = data[usual.end :]
        if not usual.length:
            connection.request_is_whole()
            return data
        self._left = usual.length
        self._quiet = 0
        self.in_message = True
        return self._usual_body(data) if data else data

    def _usual_body(self, data: bytes) -> bytes:
        """Hand on the body of a usual request at the beginning of ``data``; returns what is behind it."""
        left, size = self._left, len(data)
        if size < left:
            self._left -= size
            self._connection.body_came(data)
            return b""
        self._left = 0
        self.in_message = False
        self._connection.body_came(data[:left])
        self._connection.request_is_whole()
        return data[left:]

    def _feed_llhttp(self, data: bytes) -> None:
        self._fed = size = len(data)
        self._quiet += size
        self._data = data
        if not self.in_message:
            end = data.find(b"\n")
            if end > 10:
                self._version = _VERSIONS.get(data[end - 10 : end], "")
        at = 0
        while at >= 0:
            try:
                self._parser.feed_data(memoryview(data)[at:] if at else data)
                at = -1
            except httptools.HttpParserUpgrade as pause:
                at = self._go_on(at + pause.args[0])
        if self.in_head and not self._version:
            self._earlier += data
        self._data = b""

    def _go_on(self, at: int) -> int:
        """Behind a head with ``Upgrade``, which ended at ``at``: where to go on, -1: nowhere."""
        head, self._again = self._again, b""
        if not head:
            self._connection.came_behind(self._data[at:])
            return -1  # nothing behind it is read as a request, whatever it is answered
        self._parser = _new_parser(self)
        self._parser.feed_data(head)
        return at


def is_unknown_method(error: httptools.HttpParserError) -> bool:
    """Whether `InboundParser.feed` has raised ``error`` at a method that the parser doesn't know."""
    return isinstance(error, httptools.HttpParserInvalidMethodError) or str(error) == _NO_METHOD_OF_HTTP


def _new_parser(protocol: Any) -> Any:
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # what follows a `close` is ignored
    return parser
