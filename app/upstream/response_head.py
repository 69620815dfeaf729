"""The head of a response, line by line: which fields go on, and what the others say of the connection and of the body.

An upstream's heads are mostly alike. So what a line means is found out once, and kept with the line as it goes on: by all of its
bytes, for fields alone whose values come again and are no secret, and for so many lines. And a head that is the one before on its
connection, byte by byte, is not read again.
"""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Set
from http import HTTPStatus
from typing import Any, Final

from oncegate.app.http1 import END_TO_END, USUAL_OPTIONS, connection_options, with_options
from oncegate.cache.fields import (
    BODILESS,
    HOP_BY_HOP,
    IN_LOWER_CASE,
    LONGEST_RECURRING,
    MOST_RECURRING,
    RECURRING,
    is_field_name,
)

_PLAIN: Final = 0
"""The kind of a line that goes on, and says nothing here."""
_DATE: Final = 1
_LENGTH: Final = 2
_KEPT_ALIVE: Final = 3
"""``Connection: keep-alive``, which says what goes without saying."""
_KEEP_ALIVE: Final = 4
_HOP_BY_HOP: Final = 5

_END_OF_HEAD: Final = b"\r\n\r\n"
_LENGTH_DIGITS: Final = 15
NO_LENGTH: Final = -1
"""There is no ``Content-Length``."""
_UNUSUAL_LENGTH: Final = -2

_STATUSES: Final = {
    f"HTTP/1.1 {status.value} {status.phrase}".encode(): status.value
    for status in HTTPStatus
    if status.value >= 200 and status.value not in BODILESS
}
"""Of responses that may have a body, by their usual status lines."""
_STAYS: Final = END_TO_END | HOP_BY_HOP  # the latter are gone anyway
_LOWER: Final = IN_LOWER_CASE  # an imported name's method is looked up, and bound, at each call
_NONE: Final[frozenset[bytes]] = frozenset()
_KEEPS_ALIVE: Final = frozenset({b"keep-alive"})
_SPACE: Final = ord(" ")
_IN_VALUES: Final = bytes(
    octet if octet == 0x09 or (octet >= _SPACE and octet != 0x7F) else not octet for octet in range(256)
)
"""For ``translate``, which is the cheapest look at each octet: it changes those that no value has."""


class MalformedLine(ValueError):
    """A line that is no field."""


class Line:
    """One field of a head. ``field`` is its name, lower-case, and its value; ``sent`` the same as it goes on, behind a CRLF.

    ``number`` is the value of a ``Content-Length``, ``seconds`` the time-out of a ``Keep-Alive``.
    """

    __slots__ = ("field", "kind", "name", "number", "seconds", "sent")

    def __init__(self, name: bytes, value: bytes) -> None:
        self.name = name
        # One object for all responses: compiled, a tuple's type would have it made anew.
        self.field: Any = (name, value)
        self.sent = b"\r\n%b: %b" % (name, value)
        self.kind = _PLAIN
        self.number = NO_LENGTH
        self.seconds: float | None = None
        if name == b"content-length":
            self.kind = _LENGTH
            self.number = int(value) if value.isdigit() and len(value) <= _LENGTH_DIGITS else _UNUSUAL_LENGTH
        elif name == b"date":
            self.kind = _DATE
        elif name == b"connection" and b"keep-alive" in USUAL_OPTIONS.get(value, _NONE):
            self.kind = _KEPT_ALIVE
        elif name == b"keep-alive":
            self.kind = _KEEP_ALIVE
            self.seconds = _idle_timeout(value)
        elif name in HOP_BY_HOP:
            self.kind = _HOP_BY_HOP


KEPT: Final[dict[bytes, Line]] = {}
"""The lines that are kept."""


def line_of(raw: bytes) -> Line:
    """The line that came as ``raw``, without its end. Raises `MalformedLine`."""
    spelled, colon, value = raw.partition(b":")
    name = _LOWER.get(spelled)
    if name is None:
        if is_field_name(spelled) is None:
            raise MalformedLine
        name = spelled.lower()
    if not colon or value.translate(_IN_VALUES) != value:
        raise MalformedLine
    if value.startswith(b" "):
        value = value[1:]
    if value and (value[0] <= _SPACE or value[-1] <= _SPACE):
        value = value.strip(b" \t")  # white space around a value is no part of it (RFC 9110 section 5.5)
    line = Line(name, value)
    if name in RECURRING and len(raw) <= LONGEST_RECURRING:
        if len(KEPT) >= MOST_RECURRING:
            KEPT.clear()
        KEPT[raw] = line
    return line


class ResponseHead:
    """The head that was read last. ``lines`` go on. ``hop_by_hop`` are the others, which somebody has to judge.

    ``named`` is what ``Connection`` names. ``fields`` and ``size`` (bytes) count what was read since `clear`. ``length`` is the
    ``Content-Length``, or `NO_LENGTH`; ``idle_timeout``: the seconds that ``Keep-Alive`` announced. ``status`` is a usual head's.
    """

    __slots__ = (
        "_sent",
        "_text",
        "fields",
        "has_date",
        "hop_by_hop",
        "idle_timeout",
        "length",
        "lines",
        "named",
        "size",
        "status",
    )

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget it all: the head of another response comes."""
        self._text = b""
        """What was read, as long as nothing else was since `clear`."""
        self.status = 0
        self.fields = self.size = 0
        self._clear_fields()

    def _clear_fields(self) -> None:
        self.lines: list[Line] = []
        self.hop_by_hop: list[Line] = []
        self.named: Set[bytes] = _NONE
        self.has_date = False
        self.length = NO_LENGTH
        self.idle_timeout: float | None = None
        self._sent = b""

    def pass_over(self) -> None:
        """Forget the fields of an interim response. They count all the same, and so does its status line: else thousands of
        those without any would come for nothing."""
        self.fields += 1
        self._clear_fields()

    @property
    def sent(self) -> bytes:
        """The lines that go on, each behind a CRLF."""
        if not self._sent:
            self._sent = b"".join([line.sent for line in self.lines])
        return self._sent

    def read_usual(self, data: bytes) -> int:
        """How many bytes of ``data``, which begins a response, are a usual head, which was read then; 0: it begins with none.

        Usual is one of HTTP/1.1, of a ``status`` with its usual reason, whose fields say nothing of the connection, and of the
        body how long it is. There is one way to read it, and the parser finds the same in it.
        """
        if self._text and data.startswith(self._text):
            return len(self._text) if self.status else 0
        self.clear()
        text, end, _ = data.partition(_END_OF_HEAD)
        raw = text.split(b"\r\n")
        status = _STATUSES.get(raw[0], 0) if end else 0
        if not status:
            return 0
        try:
            self._read(raw)
        except MalformedLine:
            self.clear()
            return 0
        self._text = text + end
        self.size = len(self._text)
        if self.hop_by_hop or self.length < 0:
            return 0
        self.status = status
        return self.size

    def read(self, text: bytes) -> None:
        """Take a whole head, without its last two line ends, of which the syntax was checked. Raises `MalformedLine`."""
        if self._text and text + _END_OF_HEAD == self._text:  # it was no usual one
            return
        self._text = b""
        self.size += len(text) + 4
        self._read(text.split(b"\r\n"))

    def _read(self, raw: list[bytes]) -> None:
        number = len(raw)
        self.fields += number - 1
        kept, lines = KEPT, self.lines
        for at in range(1, number):  # the first one is the status line
            line = kept.get(raw[at])
            if line is None:
                line = line_of(raw[at])
            kind = line.kind
            if kind:
                if kind == _KEPT_ALIVE:
                    self.named = self.named | _KEEPS_ALIVE
                    continue
                if kind == _KEEP_ALIVE:
                    self.idle_timeout = line.seconds
                    continue
                if kind == _HOP_BY_HOP:
                    self.hop_by_hop.append(line)
                    continue
                if kind == _DATE:
                    self.has_date = True
                else:
                    self.length = line.number if self.length == NO_LENGTH else _UNUSUAL_LENGTH
            lines.append(line)

    def add_options(self, value: bytes) -> None:
        """Add the options of one more ``Connection`` field."""
        self.named = with_options(self.named, value) if self.named else connection_options(value)

    def drop_named(self) -> None:
        """Drop the fields that ``Connection`` names and may take away."""
        named = self.named
        if not named <= _STAYS:
            self.lines = [line for line in self.lines if line.name in _STAYS or line.name not in named]

    def drop_length(self) -> None:
        """Drop ``Content-Length``. What its value was is still known."""
        if self.length == NO_LENGTH:
            return
        self.lines = [line for line in self.lines if line.kind != _LENGTH]


def _idle_timeout(value: bytes) -> float | None:
    """The ``timeout`` of a ``Keep-Alive`` field in seconds (RFC 2068 section 19.7.1), None where it has none."""
    for parameter in value.lower().split(b","):
        name, _, number = parameter.strip(b" \t").partition(b"=")
        number = number.strip(b' \t"')
        if name.strip(b" \t") == b"timeout" and number.isdigit():
            return float(number[:9])
    return None
