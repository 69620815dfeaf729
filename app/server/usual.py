"""Reads usual requests by a few calls for each, and one for a field; everything else is left to llhttp.

Usual is a head that is there whole, of HTTP/1.1, with a known method, a path for its target and fields of which none comes twice;
no field of it decides about framing or about the connection, but `Content-Length` and a plain ``Connection: keep-alive``. So
there is one way to read it, and llhttp, which knows what can be read in several, finds the same in it
(tests/app/server/test_usual.py). Nothing is refused here: what has any other octet, space or line end is none.

Lines that come again with many requests are kept as they were read: one object for all. That is what makes it cheap: a look-up
takes half of what CPython takes to cut a line, and a quarter of what llhttp's callbacks do.
"""
# Compiled: docs/decisions/0012-compiled.md

from typing import Any, Final

from oncegate.app.server.head import TargetRefused, is_host
from oncegate.app.server.scope import METHODS, RequestTarget
from oncegate.cache.fields import IN_LOWER_CASE, SHORT_NUMBERS, is_field_name
from oncegate.middleware.rules.keys.key import LastCaller

_LINE_END: Final = b"\r\n"
_VERSION: Final = b"HTTP/1.1"
_COLON: Final = b":"
_OCTET_OF_COLON: Final = 58
_SPACE: Final = 32
_MOST_FIELDS: Final = 100
_LENGTH_DIGITS: Final = 18
_LENGTH: Final = b"content-length"
_HOST: Final = b"host"


def _table(octets: bytes) -> bytes:
    """For ``translate``, which is the cheapest look at each octet: it changes all but these."""
    return bytes([octet if octet in octets else octet ^ 255 for octet in range(256)])


_TARGET: Final = _table(bytes([octet for octet in range(0x21, 0x7F) if octet != 35]))  # no #, which begins a fragment
_LINE: Final = _table(b"\t" + bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100)))

# How a field is read, by its name.
_ANY: Final = 0
_AGAIN: Final = 1
"""Its line is kept: it is no credential, and doesn't differ with each request."""
_IS_HOST: Final = 2
_DECIDES: Final = 3
"""By it llhttp, or what reads its findings, goes another way."""
_UNKNOWN: Final = (b"", _ANY)
_NAMES: Final[dict[bytes, tuple[bytes, int]]] = {spelled: (name, _ANY) for spelled, name in IN_LOWER_CASE.items()}


def _are(kind: int, names: bytes) -> None:
    for name in names.split():
        lower = IN_LOWER_CASE.get(name, name)
        _NAMES[lower] = _NAMES[lower.title()] = (lower, kind)


_are(
    _AGAIN,
    b"accept accept-encoding accept-language cache-control content-length content-type origin pragma user-agent via",
)
_are(_AGAIN, b"x-forwarded-host x-forwarded-proto")
_are(_IS_HOST, b"host")
_are(_DECIDES, b"connection expect proxy-connection transfer-encoding upgrade")

_MOST_KEPT: Final = 1000
_LONGEST_KEPT: Final = 256
_LONGEST_REMEMBERED: Final = 2048
"""Bytes of a head. Each connection remembers one."""
_kept: Final[dict[bytes, Any]] = {}
"""Read fields by their lines. What fills it with other lines has it filled anew."""
_targets: Final[dict[bytes, RequestTarget]] = {}
"""The same of request lines."""

_ROOT: Final = RequestTarget(b"GET", b"/")


class UsualReader:
    """Reads the usual requests of one connection. What the last one said stays: of a head like it only what varies is read.

    Its ``target``, ``headers``, their values by name in ``fields``, the ``length`` of its body, and the ``end`` of its head.
    ``caller`` is who sent it, for as long as its head says the same of them.
    """

    __slots__ = (
        "_fixed",
        "_lines",
        "_texts",
        "_values_at",
        "_varying",
        "caller",
        "end",
        "fields",
        "headers",
        "length",
        "target",
    )

    def __init__(self) -> None:
        self.target = _ROOT
        self.headers: list[Any] = []  # not of pairs: compiled, each would be taken apart, and made anew
        self.fields: dict[bytes, bytes] = {}
        """Not changed any more once it was read: a head with other values has others."""
        self.length = 0
        self.end = 0
        self.caller = LastCaller()
        self._lines: list[bytes] = []
        """Those of the last usual head that was read line by line, without the empty one."""
        self._fixed: list[bytes] = []
        """The last usual head but for what varies: what stands before the first such text, between two, and behind the last."""
        self._varying: list[int] = []
        """The lines that were other ones in two heads of the same names."""
        self._texts: list[bytes] = []
        """What varies: of each such line its value, if any other one may stand there as well, or else all of it."""
        self._values_at: list[int] = []
        """Where in its line each of them begins."""

    def read(self, data: bytes) -> bool:
        """Whether there is a usual request at the beginning of ``data``. Its body may be missing."""
        return self._read_again(data) or self._read(data)

    def _read_again(self, data: bytes) -> bool:
        """Read a head that is the last one but for what varies; each step leaves a head that is a usual one."""
        fixed = self._fixed
        if not fixed or not data.startswith(fixed[0]):
            return False
        at, is_same = len(fixed[0]), True
        for place in range(len(self._varying)):
            end = data.find(_LINE_END, at)
            if end <= at:
                return False
            text = data[at:end]
            if text != self._texts[place]:
                if is_same:
                    is_same, self.fields = False, self.fields.copy()
                if not self._read_instead(place, text):
                    return False
            behind = fixed[place + 1]
            at = end + len(behind)
            if data[end:at] != behind:
                return False
        self.end = at
        return True

    def _read_instead(self, place: int, text: bytes) -> bool:
        """Read another text in one of the places of what varies; false: its line has another name, or is no usual one."""
        number = self._varying[place]
        if not number:
            target = _targets.get(text) or _target_of(text)
            if target is None:
                return False
            self.target = target
            self._texts[place] = text
            return True
        last: Any = self.headers[number - 1]
        field = _with_value(last, text) if self._values_at[place] else _kept.get(text) or _field_of(text)
        if field is None or field[0] != last[0]:
            return False
        pair: tuple[bytes, bytes] = field
        if pair[0] == _LENGTH:
            length = _length_of({_LENGTH: pair[1]})
            if length < 0:
                return False
            self.length = length
        if last[1] in self.caller.scope:
            self.caller = LastCaller()
        self.headers[number - 1] = field
        self.fields[pair[0]] = pair[1]
        self._texts[place] = text
        return True

    def _read(self, data: bytes) -> bool:
        """Read a head line by line."""
        before, last, self._lines, self._fixed = self._lines, self.headers, [], []
        self.caller = LastCaller()
        lines = data.split(_LINE_END, _MOST_FIELDS + 2)
        line = lines[0]
        target = _targets.get(line) or _target_of(line)
        if target is None:
            return False
        headers: list[Any] = []
        fields: dict[bytes, bytes] = {}
        end = len(line) + 2
        for number in range(1, len(lines) - 1):
            line = lines[number]
            end += len(line) + 2
            if not line:
                length = _length_of(fields)
                if length < 0 or len(fields) != len(headers) or _HOST not in fields:
                    return False
                self.target, self.headers, self.fields, self.length, self.end = target, headers, fields, length, end
                if end <= _LONGEST_REMEMBERED:
                    self._lines = lines = lines[:number]
                    if [field[0] for field in headers] == [field[0] for field in last] and before:
                        self._lay_out(before)
                    else:
                        self._fixed, self._varying = [data[:end]], []
                return True
            field = _kept.get(line) or _field_of(line)
            if field is None:
                return False
            pair: tuple[bytes, bytes] = field
            headers.append(field)
            fields[pair[0]] = pair[1]
        return False  # it is not whole

    def _lay_out(self, before: list[bytes]) -> None:
        """Note what of the last head is fixed: the lines ``before`` it had the same names, and differed in some."""
        lines, varying = self._lines, []
        fixed, self._texts, self._values_at = [b""], [], []
        for number, line in enumerate(lines):
            if line == before[number] and number not in self._varying:
                fixed[-1] += line + _LINE_END
                continue
            at = _value_at(line, self.headers[number - 1]) if number else 0
            varying.append(number)
            fixed[-1] += line[:at]
            self._texts.append(line[at:])
            self._values_at.append(at)
            fixed.append(_LINE_END)
        fixed[-1] += _LINE_END
        self._fixed, self._varying = fixed, varying


def _value_at(line: bytes, pair: tuple[bytes, bytes]) -> int:
    """Where the value of a field begins, if it does behind a colon and a space, and any other may stand there; else 0."""
    at = len(pair[0]) + 2
    is_plain = line[at - 2] == _OCTET_OF_COLON and line[at - 1] == _SPACE and _NAMES.get(pair[0], _UNKNOWN)[1] == _ANY
    return at if is_plain else 0


def _with_value(field: Any, value: bytes) -> Any:
    """``field`` with another ``value``; ``None``: that may be no usual one."""
    if value[0] <= _SPACE or value[-1] <= _SPACE or value.translate(_LINE) != value:
        return None
    pair: tuple[bytes, bytes] = field
    return (pair[0], value)


def _length_of(fields: dict[bytes, bytes]) -> int:
    """The length of the body, 0 without one; -1: it is no usual number."""
    value = fields.get(_LENGTH)
    if value is None:
        return 0
    length = SHORT_NUMBERS.get(value)
    if length is not None:
        return length
    return int(value) if value.isdigit() and len(value) <= _LENGTH_DIGITS else -1


def _target_of(line: bytes) -> RequestTarget | None:
    """What a request line that isn't kept says; ``None``: it is no usual one."""
    parts = line.split(b" ")
    if len(parts) != 3 or parts[2] != _VERSION:
        return None
    method, url = parts[0], parts[1]
    if method not in METHODS or url[:1] != b"/" or url.translate(_TARGET) != url:
        return None
    try:
        target = RequestTarget(method, url)
    except TargetRefused:  # as will be said of what llhttp reads
        return None
    if len(line) <= _LONGEST_KEPT and not target.query:
        if len(_targets) >= _MOST_KEPT:
            _targets.clear()
        _targets[line] = target
    return target


def _field_of(line: bytes) -> Any:
    """The field of a line that isn't kept; ``None``: it is no usual one."""
    at = line.find(_COLON)
    if at < 0 or line.translate(_LINE) != line:
        return None
    spelled = line[:at]
    known = _NAMES.get(spelled)
    if known is None:
        if is_field_name(spelled) is None:
            return None
        spelled = spelled.lower()
        known = _NAMES.get(spelled, (spelled, _ANY))
    name, kind = known
    value = line[at + 1 :].strip(b" \t")
    if not value:
        return None
    field = (name, value)
    if kind == _ANY:
        return field
    if (kind == _DECIDES and not _keeps_alive(name, value)) or (kind == _IS_HOST and is_host(value) is None):
        return None
    if len(line) <= _LONGEST_KEPT:
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        _kept[line] = field
    return field


def _keeps_alive(name: bytes, value: bytes) -> bool:
    return name == b"connection" and value.lower() == b"keep-alive"
