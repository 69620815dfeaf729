"""Reads the upstream's responses: bytes in, a validated head and a body out. No I/O; httptools does the parsing.

The parser is strict about syntax (obs-fold, bare LF, NUL, two lengths). What it lets pass, or reads otherwise, is checked here:

- a HEAD response's Content-Length announces no body: the message is complete with its head, unlike in the parser. What
  servers send behind the head of a message without content (HEAD, 204, 304) is dropped, with the connection;
- 1xx responses are reported as messages of their own: they are skipped, and 101 is refused (it was not requested);
- the parser has no function for the end of the stream: a body that lasts until then is completed, or found cut off, here;
- it removes white space before a field's value, but not behind it: removed here (RFC 9110 section 5.5);
- it takes any transfer coding, any version and any number for a status: only what HTTP/1 defines passes here;
- it parses a second response behind the first: no request belongs to that one, so neither is to be trusted;
- it takes more for the end of a connection than HTTP does (``Proxy-Connection: close``, a 1xx with ``Connection: close`` or of
  HTTP/1.0), and refuses what follows: a connection with such a field is not used again, and the response behind a 1xx is read.
"""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Set
from typing import Any, Final, NoReturn

from httptools import HttpParserError, HttpResponseParser

from oncegate.app.http1 import END_TO_END, USUAL_OPTIONS, connection_options, with_options
from oncegate.cache.fields import BODILESS, HOP_BY_HOP, IN_LOWER_CASE

MAX_HEAD_BYTES: Final = 65536
"""The most bytes of a response's heads (interim ones included), or of its trailers."""
MAX_FIELDS: Final = 256
"""The most fields of a response's heads, and interim responses beside them."""

_STAYS: Final = END_TO_END | HOP_BY_HOP  # the latter are gone anyway
_SPECIAL: Final = HOP_BY_HOP | {b"content-length", b"date"}
_LOWER: Final = IN_LOWER_CASE  # an imported name's method is looked up, and bound, at each call
_SPACE: Final = ord(" ")
_BEGINNING: Final = b"HTTP/1.1 "
_PROTOCOL: Final = b"HTTP/"
_NONE: frozenset[bytes] = frozenset()


class ResponseReader:
    """One response at a time: `expect`, then `feed` what arrives, `feed_eof` at its end, until ``complete`` or ``failure``.

    ``status`` is 0 until the final head is there; then ``headers`` holds its end-to-end fields (names lower-case, order and
    repetitions kept). ``failure`` is a reason in one line. ``surplus``: bytes came that belong to no response. ``persistent``:
    may the connection carry another request when this response is complete? ``idle_timeout``: the seconds that ``Keep-Alive``
    announced. ``buffered``: bytes of the body that wait for `take`.
    """

    def __init__(self) -> None:
        self._parser: Any = None  # a parser, until `release`
        self._is_head = False
        self._is_1_1 = False
        self._until_end = self._chunked = False
        # None of these is undone: behind one of them the connection carries no other request.
        self.failure: str | None = None
        self.surplus = self._closes = False
        self._interim = False
        self.expect(is_head=False)

    def expect(self, is_head: bool) -> None:
        """Makes ready for the response to a request that is about to be sent (``is_head``: a HEAD request)."""
        if self._parser is None or self._is_head:  # behind a HEAD response the parser may still wait for a body
            self._parser = HttpResponseParser(self)
        self._is_head = is_head
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.has_date = False
        self.complete = False
        self.persistent = False
        self.idle_timeout: float | None = None
        self.buffered = 0
        self._hop_by_hop: list[tuple[bytes, bytes]] = []
        self._has_length = False
        self._chunks: list[bytes] = []
        self._fields = 0
        self._overhead = 0
        self._interim_bytes = 0
        self._without_content = is_head

    def feed(self, data: bytes) -> None:
        """Takes bytes as they arrived. Never raises: look at ``complete``, ``failure`` and ``surplus``."""
        if self.failure is not None or self._parser is None:
            return
        if self.complete:
            self._follow_on()
            return
        if not self._overhead:  # nothing came before, or a piece of the body, behind which there is no head
            self._is_1_1 = data.startswith(_BEGINNING)
            if not self._is_1_1 and self._is_foreign(data):
                return
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._stop(error)
        if self._overhead > MAX_HEAD_BYTES:
            self._stop("its head or its trailers are too long")

    def _is_foreign(self, data: bytes) -> bool:
        """Whether a head begins as one of another protocol, which the parser takes (RTSP, ICE)."""
        begins = data.lstrip(b"\r\n")[: len(_PROTOCOL)]  # an empty line before is let pass (RFC 9112 section 2.2)
        foreign = not self.status and not _PROTOCOL.startswith(begins)
        if foreign:
            self._stop("it is no answer of HTTP/1")
        return foreign

    def _stop(self, reason: object) -> None:
        # Apart from `feed`, which has checked both before: the parser's callbacks change them.
        if self.complete:
            if isinstance(reason, HttpParserError):
                self._follow_on()
        elif self.failure is None:
            self.failure = f"malformed response ({reason})"

    def _follow_on(self) -> None:
        """Bytes came behind the response. Where it has no content by definition, they are one that was sent by mistake."""
        if self._without_content:
            self.persistent = False
        else:
            self.surplus = True

    def feed_eof(self) -> None:
        """Takes the end of the stream: the end of a body that lasts until then, a failure in any other place."""
        if self.complete or self.failure is not None:
            return
        if self._until_end and self.status:
            self.complete = True
        elif self.status:
            self.failure = "the connection was closed in the middle of the response"
        else:
            self.failure = "the connection was closed before the response"

    @property
    def untouched(self) -> bool:
        """Whether nothing has come of the response, nor of one before it (1xx)."""
        return not self.status and not self._overhead

    def take(self) -> bytes:
        """The part of the body that has arrived since the last call; may be empty."""
        chunks = self._chunks
        self.buffered = 0
        if len(chunks) == 1:
            return chunks.pop()
        body = b"".join(chunks)
        chunks.clear()
        return body

    def release(self) -> None:
        """Drops the parser, which refers back to the reader: without cycles the garbage collector has nothing to do."""
        self._parser = None

    # httptools' callbacks

    def on_message_begin(self) -> None:
        """Another message begins: after the final one, no request belongs to it."""
        if self.complete:
            raise HttpParserError("surplus")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field of the head; or of the trailers, which are ignored (RFC 9110 section 6.5.1)."""
        if self.status:
            return
        if value and value[-1] <= _SPACE:  # white space behind a value is no part of it, but the parser leaves it there
            value = value.rstrip(b" \t")
        name = _LOWER.get(name) or name.lower()
        if name in _SPECIAL:
            if name == b"content-length":
                # It is one plain number: the parser refuses any other, a second one, and one beside chunks.
                self._has_length = True
            elif name == b"date":
                self.has_date = True
            else:
                self._hop_by_hop.append((name, value))
                return
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """A head is whole: check it, and find out what body it announces."""
        status = self._parser.get_status_code()
        self._fields += len(self.headers) + len(self._hop_by_hop)
        if self._fields > MAX_FIELDS or self._overhead > MAX_HEAD_BYTES:
            self._check_limits()
        if status < 200:
            self._pass_over(status)
            return
        if status > 599:
            self._refuse(f"status {status} is not one of HTTP's")
        version = "1.1" if self._is_1_1 else self._unusual_version()
        options, chunked = self._read_hop_by_hop(version) if self._hop_by_hop else (_NONE, False)
        if not options <= _STAYS:
            self.headers = [field for field in self.headers if field[0] in _STAYS or field[0] not in options]
        if status in BODILESS:
            self._without_content = True
            if self._has_length:
                # A 204 must not have one (RFC 9110 section 8.6); a 304's describes another response, and servers trip over it.
                self.headers = [field for field in self.headers if field[0] != b"content-length"]
        self._chunked = chunked
        self._until_end = not (chunked or self._has_length or self._without_content)
        lasts = b"close" not in options if version == "1.1" else b"keep-alive" in options
        self.persistent = lasts and not self._until_end and not self._closes
        self.status = status
        self.complete = self._is_head

    def _read_hop_by_hop(self, version: str) -> tuple[Set[bytes], bool]:
        """``Connection``'s options; is the body chunked."""
        options: Set[bytes] = _NONE
        chunked = False
        for name, value in self._hop_by_hop:
            if name == b"connection":
                options = with_options(options, value) if options else connection_options(value)
                self._closes = self._closes or (value not in USUAL_OPTIONS and self._is_the_last())
            elif name == b"proxy-connection":
                self._closes = self._closes or self._is_the_last()
            elif name == b"keep-alive":
                self.idle_timeout = _idle_timeout(value)
            elif name == b"transfer-encoding":
                if chunked or version != "1.1" or value.strip(b" \t").lower() != b"chunked":
                    self._refuse("a transfer coding that is not understood")
                chunked = True
        return options, chunked

    def _unusual_version(self) -> str:
        version: str = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._refuse(f"version {version}")
        return version

    def _is_the_last(self) -> bool:
        """Whether the parser refuses what follows, for the sake of a field. (Behind a HEAD response there is another one.)"""
        return not self._is_head and not self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if self.complete:
            raise HttpParserError("surplus")
        self._chunks.append(data)
        self.buffered += len(data)
        self._overhead = 0

    def on_message_complete(self) -> None:
        """The end of a message: of an interim response, or of the final one."""
        if self._interim:
            parser = self._parser
            self._interim = False
            if not parser.should_keep_alive():
                self._closes = True  # after the final response (RFC 9112 section 9.6), which the parser would not read
                parser.set_dangerous_leniencies(lenient_keep_alive=True)
        else:
            self.complete = True
            if self._chunked and self.persistent and self._is_the_last():  # its trailers may have said so
                self.persistent = False

    def _pass_over(self, status: int) -> None:
        if status < 100:
            self._refuse(f"status {status} is not one of HTTP's")
        if status == 101:
            self._refuse("101, though no upgrade was asked for")
        if self._has_length or any(name == b"transfer-encoding" for name, _ in self._hop_by_hop):
            self._refuse("an interim response that announces a body")
        self._interim = True
        self._is_1_1 = False  # the next one says which it is
        self._fields += 1  # for its status line: without any fields, thousands of them would come for nothing
        self._interim_bytes += self._size()
        self.headers, self._hop_by_hop = [], []
        self.has_date = False

    def _check_limits(self) -> None:
        """Many small interim heads count as one large head; what came in one read with a large body is counted exactly."""
        if self._fields > MAX_FIELDS:
            self._refuse("more fields than can be taken")
        if self._interim_bytes + self._size() > MAX_HEAD_BYTES:
            self._refuse("its head is too long")

    def _size(self) -> int:
        return sum(len(name) + len(value) + 4 for fields in (self.headers, self._hop_by_hop) for name, value in fields)

    def _refuse(self, reason: str) -> NoReturn:
        self.failure = f"malformed response ({reason})"
        raise HttpParserError(reason)


def _idle_timeout(value: bytes) -> float | None:
    """The ``timeout`` of a ``Keep-Alive`` field in seconds (RFC 2068 section 19.7.1), None where it has none."""
    for parameter in value.lower().split(b","):
        name, _, number = parameter.strip(b" \t").partition(b"=")
        number = number.strip(b' \t"')
        if name.strip(b" \t") == b"timeout" and number.isdigit():
            return float(number[:9])
    return None
