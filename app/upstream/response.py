"""Reads the upstream's responses: bytes in, a validated head and a body out. No I/O.

A usual response is read by its head and its length alone (`ResponseHead.read_usual`). httptools parses every other one, and finds
the same in a usual one (tests/app/upstream/test_usual_responses.py).

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

from typing import Any, Final, NoReturn

from httptools import HttpParserError, HttpResponseParser

from oncegate.app.http1 import USUAL_OPTIONS
from oncegate.app.upstream.response_head import NO_LENGTH, MalformedLine, ResponseHead
from oncegate.cache.fields import BODILESS

MAX_HEAD_BYTES: Final = 65536
"""The most bytes of a response's heads (interim ones included), or of its trailers."""
MAX_FIELDS: Final = 256
"""The most fields of a response's heads, and interim responses beside them."""

_BEGINNING: Final = b"HTTP/1.1 "
_END_OF_HEAD: Final = b"\r\n\r\n"
_PROTOCOL: Final = b"HTTP/"


class ResponseReader:
    """One response at a time: `expect`, then `feed` what arrives, `feed_eof` at its end, until ``complete`` or ``failure``.

    ``status`` is 0 until the final head is there; then ``head`` is that one. ``failure`` is a reason in one line. ``surplus``:
    bytes came that belong to no response. ``persistent``: may the connection carry another request when this response is
    complete? ``buffered``: bytes of the body that wait for `take`. ``is_bodiless``: whatever its head says, it has no body.
    """

    def __init__(self) -> None:
        self._parser: Any = None  # a parser, until `release`
        self._is_head = False
        self.head = ResponseHead()
        self._early = bytearray()  # a head may come byte by byte, and bytes would be copied each time
        self._data = b""
        """What is fed now of a head, or of interim ones before it; ``_early`` is what came of it before."""
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
        self.complete = False
        self.persistent = False
        self.buffered = 0
        self._chunks: list[bytes] = []
        self._overhead = self._left = 0
        self._is_chunked = False
        self.is_bodiless = is_head
        if self._early:
            self._early = bytearray()

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The end-to-end fields of the head (names lower-case, order and repetitions kept); the list is the caller's."""
        return [line.field for line in self.head.lines] if self.status else []

    def feed(self, data: bytes) -> None:
        """Takes bytes as they arrived. Never raises: look at ``complete``, ``failure`` and ``surplus``."""
        if self.failure is not None or self._parser is None:
            return
        if self.complete:
            self._follow_on()
            return
        if self._left:
            self._feed_body(data)
            return
        # Nothing came before, or a piece of the body, behind which there is no head.
        if not self._overhead and not self.status and (self._read_usual(data) or self._is_foreign(data)):
            return
        self._overhead += len(data)
        self._data = data
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._stop(error)
        if not self.status:
            self._early += self._data
        self._data = b""
        if self._overhead > MAX_HEAD_BYTES:
            self._stop("its head or its trailers are too long")

    def _read_usual(self, data: bytes) -> bool:
        """Whether ``data`` begins with a usual head, and holds nothing behind the response: then it needs no parser."""
        head = self.head
        if self._is_head:
            head.clear()
            return False
        size = head.read_usual(data)
        body = data[size:]
        if not size or len(body) > head.length or head.fields > MAX_FIELDS or size > MAX_HEAD_BYTES:
            return False
        self.status = head.status
        self.persistent = True  # behind anything that ends the connection there is no other response
        if body:
            self._chunks.append(body)
            self.buffered = len(body)
        else:
            self._overhead = len(data)
        self._left = head.length - len(body)
        self.complete = not self._left
        return True

    def _feed_body(self, data: bytes) -> None:
        """Takes more of the body of a usual response."""
        body = data[: self._left]
        self._chunks.append(body)
        self.buffered += len(body)
        self._left -= len(body)
        self.complete = not self._left
        if len(body) < len(data) and data[len(body) :].strip(b"\r\n"):  # empty lines pass for nothing, as in the parser
            self._follow_on()

    def _is_foreign(self, data: bytes) -> bool:
        """Whether a head begins as one of another protocol, which the parser takes (RTSP, ICE)."""
        if data.startswith(_PROTOCOL):
            return False
        begins = data.lstrip(b"\r\n")[: len(_PROTOCOL)]  # an empty line before is let pass (RFC 9112 section 2.2)
        foreign = not _PROTOCOL.startswith(begins)
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
        if self.is_bodiless:
            self.persistent = False
        else:
            self.surplus = True

    def feed_eof(self) -> None:
        """Takes the end of the stream: the end of a body that lasts until then, a failure in any other place."""
        if self.complete or self.failure is not None:
            return
        if self.status and self._lasts_until_end:
            self.complete = True
        elif self.status:
            self.failure = "the connection was closed in the middle of the response"
        else:
            self.failure = "the connection was closed before the response"

    @property
    def _lasts_until_end(self) -> bool:
        head = self.head
        return not (self._is_chunked or head.length != NO_LENGTH or self.is_bodiless)

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

    # httptools' callbacks. There is none for a field, which would have it make each name and value: `ResponseHead` reads them,
    # of bytes whose syntax is checked by then.

    def on_message_begin(self) -> None:
        """Another message begins: after the final one, no request belongs to it."""
        if self.complete:
            raise HttpParserError("surplus")

    def on_headers_complete(self) -> None:
        """A head is whole: read it, check it, and find out what body it announces. Of trailers nothing is read."""
        status: int = self._parser.get_status_code()
        is_1_1 = self._read_head(status < 200)
        if status < 200:
            self._pass_over(status)
            return
        if status > 599:
            self._refuse(f"status {status} is not one of HTTP's")
        version = "1.1" if is_1_1 else self._unusual_version()
        head = self.head
        if head.hop_by_hop:
            self._read_hop_by_hop(version)
        options = head.named
        if options:
            head.drop_named()
        if status in BODILESS:
            self.is_bodiless = True
            # A 204 must not have one (RFC 9110 section 8.6); a 304's describes another response, and servers trip over it.
            head.drop_length()
        lasts = b"close" not in options if version == "1.1" else b"keep-alive" in options
        self.persistent = lasts and not self._closes and not self._lasts_until_end
        self.status = status
        self.complete = self._is_head

    def _read_head(self, is_interim: bool) -> bool:
        """Read a head, which is whole now. Whether it begins as one of HTTP/1.1."""
        raw = self._data
        if self._early:
            raw = bytes(self._early) + raw
            self._early = bytearray()
        raw = raw.lstrip(b"\r\n")  # empty lines before it
        text, _, rest = raw.partition(_END_OF_HEAD)
        head = self.head
        try:
            head.read(text)
        except MalformedLine:
            self._refuse("a line of its head is no field")
        if head.fields > MAX_FIELDS:
            self._refuse("more fields than can be taken")
        if head.size > MAX_HEAD_BYTES:
            self._refuse("its head is too long")
        if not text.startswith(_PROTOCOL):
            self._refuse("it is no answer of HTTP/1")
        if is_interim:
            self._data = rest
        return text.startswith(_BEGINNING)

    def _read_hop_by_hop(self, version: str) -> None:
        """Read what ``Connection`` and ``Transfer-Encoding`` say."""
        head = self.head
        for line in head.hop_by_hop:
            name, value = line.field
            if name == b"connection":
                head.add_options(value)
                self._closes = self._closes or (value not in USUAL_OPTIONS and self._is_the_last())
            elif name == b"proxy-connection":
                self._closes = self._closes or self._is_the_last()
            elif name == b"transfer-encoding":
                if self._is_chunked or version != "1.1" or value.lower() != b"chunked":
                    self._refuse("a transfer coding that is not understood")
                self._is_chunked = True

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
            if self._is_chunked and self.persistent and self._is_the_last():  # its trailers may have said so
                self.persistent = False

    def _pass_over(self, status: int) -> None:
        head = self.head
        if status < 100:
            self._refuse(f"status {status} is not one of HTTP's")
        if status == 101:
            self._refuse("101, though no upgrade was asked for")
        if head.length != NO_LENGTH or any(line.name == b"transfer-encoding" for line in head.hop_by_hop):
            self._refuse("an interim response that announces a body")
        self._interim = True
        head.pass_over()

    def _refuse(self, reason: str) -> NoReturn:
        self.failure = f"malformed response ({reason})"
        raise HttpParserError(reason)
