"""httptools' parser of requests, without what it decides in our stead. No I/O.

llhttp, on which it stands, knows a list of methods and speaks three protocols; and it takes what follows a head with ``Upgrade``
for another protocol, a body that was announced too. None of that is for it to say (RFC 9110 sections 7.8 and 9.1):

- the head of a request with an ``Upgrade`` that is ignored is parsed a second time without that field, by a parser of its own;
- a request whose method it refuses is parsed a second time as a ``PUT``, which has no rules of its own there;
- a request line of ``RTSP`` or ``ICE`` is refused.

As a rule none of it happens: what a usual request costs is one look at the end of its request line. Neither does it matter how
the bytes were cut into reads, with one exception: an unusual method is still refused where its request begins behind the end
of another one in the same read, and that one began in an earlier read.
"""

import re
from typing import TYPE_CHECKING, Any, Final

import httptools

if TYPE_CHECKING:
    from oncegate.app.inbound import InboundConnection

_LF: Final = 10  # a number is found faster than bytes
_END_OF_HEAD: Final = b"\r\n\r\n"
_STAND_IN: Final = b"PUT"
_beginning_of: Final = re.compile(rb"[\r\n]*([!#$%&'*+.^_`|~0-9A-Z-]{1,32})( |\Z)").match
"""A request's method. Small letters are in none that is registered, and servers that raise them to capitals (Django) would
take ``post`` for a ``POST`` to which no rule applied."""
_NO_METHOD_OF_HTTP: Final = "Invalid method for HTTP/x.x request"
"""What llhttp says of the methods that it knows from RTSP."""


class InboundParser:
    """Feeds what a client sends to ``protocol``, which has the callbacks of httptools' `HttpRequestParser`.

    Once a head is complete, the protocol asks for its `method` and whether it `is_http`, and may have it parsed again.
    """

    __slots__ = (
        "_again",
        "_begins",
        "_data",
        "_earlier",
        "_held",
        "_method",
        "_names_http",
        "_placed",
        "_protocol",
        "parser",
    )

    def __init__(self, protocol: "InboundConnection") -> None:
        self._protocol: Any = protocol
        self.parser: Any = _new_parser(protocol)
        self._data = b""
        self._begins = -1
        """Where in ``_data`` a request begins, from which on others can be found; -1: not known."""
        self._earlier = b""
        """What earlier reads brought of a head whose request line was not looked at."""
        self._placed = True
        """Whether ``_earlier`` begins with the request."""
        self._held = b""
        """A method that is still to come to its end, and that llhttp has refused already."""
        self._again = b""
        self._method = b""
        self._names_http = False

    def close(self) -> None:
        """Drop what refers back to the protocol: without it the collector has nothing to do."""
        self._protocol = self.parser = None

    # -- asked by the protocol, once a head is complete ---------------------------------------------------------------

    def method(self) -> bytes:
        """The request's method, as it came."""
        method, self._method = self._method, b""
        return method or self.parser.get_method()

    def is_http(self, method: bytes, url: bytes) -> bool:
        """Whether the request line, which has them, is one of HTTP's."""
        if self._names_http:
            self._names_http = False
            return True
        raw, self._earlier = self._earlier + self._data, b""
        line = b"%b %b " % (method, url)
        return line + b"RTSP/" not in raw and line + b"ICE/" not in raw

    def parse_again(self, method: bytes, url: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> None:
        """Parse this head again, without its ``Upgrade``: what was made of it counts for nothing."""
        known = self.parser.get_method()
        if known != method:
            self._method = method
        lines = [b"%b %b HTTP/%b" % (known, url, version.encode())]
        lines += [b"%b: %b" % field for field in headers if field[0] != b"upgrade"]
        self._again = b"\r\n".join(lines) + _END_OF_HEAD

    @property
    def parses_again(self) -> bool:
        """Whether the message that is complete is none yet."""
        return bool(self._again)

    # -- fed ----------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes, *, begins: bool) -> None:
        """Parse what was read. ``begins``: nothing of a request was read before. Raises ``httptools.HttpParserError``."""
        if begins:
            end = data.find(_LF)
            self._names_http = end > 9 and data[end - 9 : end - 4] == b"HTTP/"
            self._begins = 0
        else:
            self._begins = -1
        self._data = data
        at = 0
        if self._held:
            self._data, self._held = self._held + data, b""
            at = self._stand_in(0)
            if at < 0 and not self._held:
                raise httptools.HttpParserInvalidMethodError
        while at >= 0:
            try:
                self.parser.feed_data(memoryview(self._data)[at:] if at else self._data)
                at = -1
            except httptools.HttpParserUpgrade as pause:
                at = self._go_on(at + pause.args[0])
            except httptools.HttpParserError as error:
                at = self._retry(error)
        if self._protocol.in_head and not self._names_http and not self._held:
            self._remember()
        self._data = b""

    def _go_on(self, at: int) -> int:
        """Behind a head with ``Upgrade``, which ended at ``at``: where to go on, -1: nowhere."""
        head, self._again = self._again, b""
        if not head:
            return -1  # the request is refused, and nothing behind it is read
        self.parser = _new_parser(self._protocol)
        self._begins = -1
        self._names_http = True
        self.parser.feed_data(head)
        return at

    def _retry(self, error: httptools.HttpParserError) -> int:
        """llhttp has stopped: where to go on where that was for the sake of a method. Raises ``error`` where it was not."""
        if self._method or not (
            isinstance(error, httptools.HttpParserInvalidMethodError) or str(error) == _NO_METHOD_OF_HTTP
        ):
            raise error
        if self._begins >= 0:
            at = self._last()
        elif self._earlier and self._placed:
            self._data, self._earlier = self._earlier + self._data, b""
            at = 0
        else:
            raise error
        at = self._stand_in(at)
        if at < 0 and not self._held:
            raise error
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
        self._names_http = True  # else llhttp refuses its stand-in
        self.parser = _new_parser(self._protocol)
        self.parser.feed_data(_STAND_IN)
        self._begins = found.end(1)
        return self._begins

    def _remember(self) -> None:
        """A head is not complete, and nobody has looked at its request line: keep what there is of it."""
        if self._earlier:
            self._earlier += self._data
        elif self._begins >= 0:
            self._earlier, self._placed = self._data[self._last() :], True
        else:
            self._earlier, self._placed = self._data, False

    def _last(self) -> int:
        """Where the last request of ``_data`` begins that llhttp gets to. (As what it takes for a beginning: CRs and LFs count.)"""
        seen = _Ends()
        parser = httptools.HttpRequestParser(seen)
        data, at = self._data, self._begins
        if at:
            parser.feed_data(_STAND_IN)
        begins = at
        try:
            while at < len(data):
                end = at + seen.due
                if not seen.due:
                    end = data.find(_END_OF_HEAD, at) + len(_END_OF_HEAD)
                    if end < len(_END_OF_HEAD):
                        break
                parser.feed_data(memoryview(data)[at:end])
                at = end
                if seen.take():
                    begins = at
        except httptools.HttpParserError:
            pass  # here it stopped
        return begins


class _Ends:
    """Is told of what decides where requests end. ``due``: bytes of a body that come next."""

    def __init__(self) -> None:
        self.due = 0
        self._length = 0
        self._is_whole = False

    def take(self) -> bool:
        """Whether a request has ended with what was fed."""
        is_whole, self._is_whole = self._is_whole, False
        self.due = 0 if is_whole else self._length
        self._length = 0
        return is_whole

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field of a head."""
        if name.lower() == b"content-length":
            self._length = int(value)

    def on_message_complete(self) -> None:
        """A request has ended."""
        self._is_whole = True


def _new_parser(protocol: Any) -> Any:
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # what follows a `close` is ignored
    return parser
