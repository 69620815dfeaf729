"""Parses requests by httptools, and works around its rules for methods, protocols and upgrades. No I/O.

llhttp, on which it is built, accepts a list of methods and three protocols; and it takes what follows a head with ``Upgrade``
for another protocol, even an announced body. None of that is the parser's decision (RFC 9110 sections 7.8 and 9.1):

- the head of a request with an ``Upgrade`` that is ignored is parsed a second time without that field, by a parser of its own;
- a request whose method it refuses is parsed a second time as a ``PUT``, which has no rules of its own there;
- a request line of ``RTSP`` or ``ICE`` is refused.

Usual requests need none of it: they cost one check of the end of the request line. How the bytes were cut into reads does
not matter: the rest of a request that an earlier read began is parsed up to its end, found by its framing or an empty line,
so that it is known where the next one begins.
"""
# Compiled: docs/decisions/0012-compiled.md

import re
from typing import Any, Final, Protocol

import httptools

from oncegate.app.server.flow import PIECE_BYTES
from oncegate.app.server.head import (
    HeadRefused,
    expects_continue,
    requests_websocket,
    without_authority,
)
from oncegate.app.server.last_request import last_request
from oncegate.app.server.request import InboundRequest, Responding, scope_of

MAX_HEAD_BYTES: Final = 64 * 1024
"""Of a request's line and header fields together; the same for trailers. Beyond: 431, and the connection is closed."""
MAX_FIELDS: Final = 1000
"""Of a request. Beyond: 431. All that reads fields takes its time for each, however short it is."""
_HOLDS_TOO_MANY: Final = 4 * MAX_FIELDS
"""Bytes: a shorter head can't hold more fields."""
_SPACE: Final = ord(" ")
_END_OF_LINE: Final = b" HTTP/1.1\r"
_END_OF_HEAD: Final = b"\r\n\r\n"
"""Of trailers, too, and so of a body in chunks."""
_SHORT: Final = len(_END_OF_HEAD) - 1
_STAND_IN: Final = b"PUT"
_beginning_of: Final = re.compile(rb"[\r\n]*([!#$%&'*+.^_`|~0-9A-Z-]{1,32})( |\Z)").match
"""A request's method. Small letters are in none that is registered, and servers that raise them to capitals (Django) would
take ``post`` for a ``POST`` to which no rule applied."""
_NO_METHOD_OF_HTTP: Final = "Invalid method for HTTP/x.x request"
"""What llhttp says of the methods that it knows from RTSP."""


class Parsing(Responding, Protocol):
    """The connection, which gets what was parsed."""

    def head_is_complete(self, request: InboundRequest, ends: bool) -> None:
        """``request`` can begin. ``ends``: what follows is another protocol's."""

    def body_came(self, body: bytes) -> None:
        """A piece of body."""

    def request_is_whole(self) -> None:
        """The last byte of a request, trailers included."""


class InboundParser:
    """Makes requests of what one ``connection``'s client sends.

    ``in_message``: a request has begun, and isn't whole; ``in_head``: nor is its head. ``shared`` is what the ASGI scopes of
    all its requests have in common.
    """

    def __init__(self, connection: Parsing) -> None:
        self._connection: Any = connection
        self.shared: dict[str, Any] = {}
        self.in_message = False
        self.in_head = False
        self._too_large = False
        self._url = b""
        self._rest_of_url = bytearray()
        self._host = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._fed = 0
        self._quiet = 0
        """Bytes since the request began or a piece of its body was handed on: a head's, or trailers'."""
        self._parser: Any = _new_parser(self)
        self._data = b""
        self._begins = -1
        """Where in ``_data`` a request begins, from which on others can be found; -1: not known."""
        self._ended = False
        """Whether a request has ended with what was parsed last."""
        self._due = 0
        """Bytes that are still to come of a body whose length was announced."""
        self._tail = b""
        """The end of what was read last: half of an empty line may be there."""
        self._earlier = bytearray()  # a head may come byte by byte, and bytes would be copied each time
        """What earlier reads brought of a head whose request line was not looked at."""
        self._placed = True
        """Whether ``_earlier`` begins with the request."""
        self._held = b""
        """A method that is still to come to its end, and that llhttp has refused already."""
        self._again = b""
        self._method = b""
        self._is_1_1 = False
        """Whether the request line was seen to name HTTP/1.1, so that llhttp's reading of it is not needed."""
        self._names_http = False

    def close(self) -> None:
        """Drop the references back to us: without cycles the garbage collector has nothing to do."""
        self._connection = self._parser = None

    @property
    def is_too_large(self) -> bool:
        """Whether the head that is being read, or the trailers, are beyond `MAX_HEAD_BYTES`, and more than a piece."""
        return self._too_large or self._quiet > MAX_HEAD_BYTES + PIECE_BYTES

    @property
    def has_just_begun(self) -> bool:
        """Whether the request that is being read began with what was fed last."""
        return self._quiet == self._fed

    # -- httptools' callbacks -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._url = b""
        self._headers = []
        self.in_message = self.in_head = True
        self._quiet = self._fed  # what stood before it in the same piece included

    def on_url(self, url: bytes) -> None:
        """A piece of the request's target."""
        if self._url:
            self._rest_of_url += url
        else:
            self._url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field of the head. (Of trailers, too: by then the list is not read any more.)"""
        if value and value[-1] <= _SPACE:  # white space behind a value is no part of it, but the parser leaves it there
            value = value.rstrip(b" \t")
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole: its size is known exactly, and the request can begin."""
        self.in_head = False
        if self._rest_of_url:
            self._url += self._rest_of_url
            self._rest_of_url = bytearray()
        parser = self._parser
        version = "1.1"
        if self._is_1_1:  # as a rule
            self._is_1_1 = False
            method: bytes = parser.get_method()
        else:
            method, version = self._unusual()
        headers = self._headers
        fields = dict(headers)
        host = fields.get(b"host", b"")
        if not host or host != self._host or len(fields) != len(headers) or self._url[:1] != b"/":
            self._url = without_authority(self._url, method, version, headers)
            fields = dict(headers)  # an authority of the target's has replaced the host
            self._host = host  # as a rule it is the same in all requests of a connection
        expects_go_ahead = b"expect" in fields and version == "1.1" and expects_continue(headers)
        if self._quiet > _HOLDS_TOO_MANY:
            self._check_size(headers)
        upgrades = ends = False
        if b"upgrade" in fields or method == b"CONNECT":
            upgrades = version == "1.1" and requests_websocket(headers)
            ends = parser.should_upgrade()
        if ends and not upgrades and method != b"CONNECT":
            self._parse_again(method, version)
            return
        # Nothing may be read behind an upgrade that is refused: a body would be taken for the next request.
        keep_alive = version == "1.1" and not ends
        if keep_alive and (b"connection" in fields or b"proxy-connection" in fields):
            keep_alive = parser.should_keep_alive()
        self._quiet = 0
        length = fields.get(b"content-length")
        self._due = int(length) if length else 0
        self._headers = []  # trailers go into this one (RFC 9110 section 6.5.1: they must not be merged)
        scope = scope_of(self._url, method, version, headers, self.shared)
        request = InboundRequest(self._connection, scope, fields, keep_alive, expects_go_ahead, upgrades)
        self._connection.head_is_complete(request, ends)

    def on_body(self, body: bytes) -> None:
        """A piece of body."""
        self._quiet = 0
        self._due -= len(body)
        self._connection.body_came(body)

    def on_message_complete(self) -> None:
        """The last byte of a request, trailers included."""
        if not self._again:
            self.in_message = False
            self._ended = True
            self._connection.request_is_whole()

    def _check_size(self, headers: list[tuple[bytes, bytes]]) -> None:
        size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in headers)
        if len(headers) > MAX_FIELDS or size > MAX_HEAD_BYTES:
            self._too_large = True
            raise HeadRefused

    def _unusual(self) -> tuple[bytes, str]:
        """Method and version of a request whose line may be of any kind."""
        method: bytes = self._method or self._parser.get_method()
        self._method = b""
        if self._names_http:
            self._names_http = False
        else:
            self._check_protocol(method)
        version: str = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            # 0.9 is what the parser makes of a request line that a bare LF ends, with the rest of the line as a field;
            # 2.0 does not exist in this form. A proxy in front of us may have read either in another way.
            raise HeadRefused
        return method, version

    def _check_protocol(self, method: bytes) -> None:
        raw, self._earlier = self._earlier + self._data, bytearray()
        line = b"%b %b " % (method, self._url)
        if line + b"RTSP/" in raw or line + b"ICE/" in raw:
            raise HeadRefused

    def _parse_again(self, method: bytes, version: str) -> None:
        """Have this head parsed again without its ``Upgrade``; the first result is discarded."""
        known = self._parser.get_method()
        if known != method:
            self._method = method
        lines = [b"%b %b HTTP/%b" % (known, self._url, version.encode())]
        lines += [b"%b: %b" % field for field in self._headers if field[0] != b"upgrade"]
        self._again = b"\r\n".join(lines) + _END_OF_HEAD

    # -- fed ----------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Parse what was read. Raises ``httptools.HttpParserError``."""
        self._fed = size = len(data)
        self._quiet += size
        self._data = data
        self._ended = False
        at = 0
        goes_on = self.in_message
        """Whether what is parsed next is the rest of a request whose beginning isn't in ``_data``."""
        if goes_on or self._held:
            self._begins = -1
            if self._held:
                at, goes_on = self._stand_in_for_held(), False
        else:
            end = data.find(b"\n")
            if end > 10 and data[end - 10 : end] == _END_OF_LINE:  # as a rule
                self._is_1_1 = True
            else:
                self._is_1_1, self._names_http = False, end > 9 and data[end - 9 : end - 4] == b"HTTP/"
            self._begins = 0
        while at >= 0:
            try:
                if goes_on:
                    at = self._feed_rest(at)
                    goes_on = self._begins < 0
                else:
                    self._parser.feed_data(memoryview(self._data)[at:] if at else self._data)
                    at = -1
            except httptools.HttpParserUpgrade as pause:
                at = self._go_on(at + pause.args[0])
                goes_on = True
            except httptools.HttpParserError as error:
                at = self._retry(error)
                goes_on = False
        if self.in_message:
            self._keep(data)
        self._data = b""

    def _keep(self, data: bytes) -> None:
        """A request isn't whole: keep what its rest will be read by."""
        if self.in_head and not (self._is_1_1 or self._names_http or self._held):
            self._remember()
        self._tail = data[-_SHORT:] if len(data) >= _SHORT else (self._tail + data)[-_SHORT:]

    def _feed_rest(self, at: int) -> int:
        """Parse from ``at`` on what may be the rest of the request that is under way: where to go on, -1: nowhere.

        Behind its end ``_data`` begins anew, with the next request.
        """
        data = self._data
        if not self._ended:
            end = self._end_of_rest(at)
            self._parser.feed_data(memoryview(data)[at:end])
            at = end
        if at >= len(data):
            return -1
        if self._ended:
            self._data, self._begins = data[at:], 0
            return 0
        return at

    def _end_of_rest(self, at: int) -> int:
        """The index at which the request under way may end; if it does, the rest belongs to later requests."""
        if self._due > 0 and not self.in_head:
            return at + self._due
        if at:
            found = self._data.find(_END_OF_HEAD, max(0, at - _SHORT))
        else:
            found = (self._tail + self._data).find(_END_OF_HEAD) - len(self._tail)
        end = found + len(_END_OF_HEAD)
        return end if end > at else len(self._data)

    def _go_on(self, at: int) -> int:
        """Behind a head with ``Upgrade``, which ended at ``at``: where to go on, -1: nowhere."""
        head, self._again = self._again, b""
        if not head:
            return -1  # the request is refused, and nothing behind it is read
        self._parser = _new_parser(self)
        self._begins = -1
        self._ended = False
        self._names_http = True
        self._parser.feed_data(head)
        return at

    def _retry(self, error: httptools.HttpParserError) -> int:
        """llhttp has stopped: where to go on if it was because of a method. Raises ``error`` if it was not."""
        if self._method or not (
            isinstance(error, httptools.HttpParserInvalidMethodError) or str(error) == _NO_METHOD_OF_HTTP
        ):
            raise error
        if self._begins >= 0:
            at = last_request(self._data, self._begins)
        elif self._earlier and self._placed:
            self._data, self._earlier = bytes(self._earlier + self._data), bytearray()
            at = 0
        else:
            raise error
        at = self._stand_in(at)
        if at < 0 and not self._held:
            raise error
        return at

    def _stand_in_for_held(self) -> int:
        """Begin with a method that earlier reads brought a part of: where to go on, -1: it has no end yet."""
        self._data, self._held = self._held + self._data, b""
        at = self._stand_in(0)
        if at < 0 and not self._held:
            raise httptools.HttpParserInvalidMethodError
        return at

    def _stand_in(self, at: int) -> int:
        """Begin the request at ``at`` anew, with another method: where to go on. -1: its method has no end yet, or is none."""
        found = _beginning_of(self._data, at)
        if found is None:
            return -1
        if not found[2]:
            self._held = self._data[found.start(1) :]
            return -1
        self._method = found[1]
        self._is_1_1 = False  # it is looked at again
        self._names_http = True  # else llhttp refuses its stand-in
        self._rest_of_url = bytearray()
        self._fed = len(self._data)
        self._parser = _new_parser(self)
        self._parser.feed_data(_STAND_IN)
        self._begins = found.end(1)
        return self._begins

    def _remember(self) -> None:
        """A head is not complete, and its request line is not checked yet: keep what there is of it."""
        if self._earlier:
            self._earlier += self._data
        elif self._begins >= 0:
            self._earlier, self._placed = bytearray(self._data[last_request(self._data, self._begins) :]), True
        else:
            self._earlier, self._placed = bytearray(self._data), False


def _new_parser(protocol: Any) -> Any:
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # what follows a `close` is ignored
    return parser
