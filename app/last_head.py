"""The request head that a client's connection sent last, as it went to the upstream.

Most requests of a connection have the fields of the one before, in its order, and few other values. So what was judged, and made
lines of, isn't again: what differs is cut in. Which fields decide about framing, and about others, is a matter of names; where a
value of one of those has changed, the head is none like it.
"""
# Compiled: docs/decisions/0012-compiled.md

from typing import Any, Final

from oncegate.app.field_lines import line_of

EMPTY_QUERY: Final = "oncegate.empty_query"
"""In a scope whose target has a query without a character in it, which ASGI has no place for."""
_LONGEST: Final = 2048
"""Bytes of a head that is kept."""
_SAME: Final = 0
"""The place of a field whose value decides: it has no line of its own, or not as it came."""
_LENGTH: Final = -1
"""The place of ``Content-Length``, which is written anew."""
# Numbers: given bytes, ``in`` first tries them as a number, and the error that this raises costs more than the search.
_LF: Final = 10
_CR: Final = 13
_NUL: Final = 0


class LastHead:
    """One head, of a connection's own and no more than `_LONGEST` bytes. `keep` one, then ask for the next one by `again`."""

    __slots__ = ("_client", "_fields", "_head", "_lines", "_places", "_scheme", "_size", "_target", "_writer")

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._target: tuple[object, object, object, bool] = (None, None, None, False)
        self._writer: object = None
        self._client: object = None
        self._scheme: object = None
        self._fields: list[Any] = []  # not of pairs: compiled, each would be taken apart, and made anew
        self._lines: list[bytes] = []
        """The request line, Host, those of the fields, those that were added, and the framing of the body with the head's end."""
        self._places: list[int] = []
        """For each field, where its line is; found when another value comes for the first time."""
        self._size = 0
        self._head = b""

    def keep(self, writer: object, scope: dict[str, Any], headers: list[Any], lines: list[bytes], size: int) -> bytes:
        """The head of these ``lines``, which ``writer`` has made of a scope with ``headers``, before a body of ``size``: kept."""
        head = b"\r\n".join(lines)
        if len(head) > _LONGEST:
            self._forget()
            return head
        self._writer = writer
        self._client, self._scheme = scope.get("client"), scope.get("scheme")
        self._target = _target_of(scope)
        self._fields, self._lines, self._places = headers[:], lines, []
        self._size = size
        self._head = head
        return head

    def is_like(self, writer: object, scope: dict[str, Any], headers: list[Any]) -> bool:
        """Whether ``writer`` has made it, and for the same peer, of as many fields."""
        return (
            writer is self._writer
            and len(headers) == len(self._fields)
            and scope.get("client") is self._client
            and scope.get("scheme") == self._scheme
        )

    def has_target(self, scope: dict[str, Any]) -> bool:
        """Whether the request line would be the same."""
        method, path, query, is_empty = self._target
        return bool(
            path  # without one, that of the scope counts
            and scope["method"] == method
            and scope.get("raw_path") == path
            and scope.get("query_string") == query
            and (EMPTY_QUERY in scope) == is_empty
        )

    def aim(self, scope: dict[str, Any], line: bytes) -> None:
        """Have another request ``line``, of this scope."""
        self._head = b""
        self._target = _target_of(scope)
        self._lines[0] = line

    def again(self, headers: list[Any], size: int) -> bytes:
        """The head with these ``headers``, of which there are as many, before a body of ``size``; empty: it is none like it."""
        fields = self._fields
        is_announced = size == self._size
        for at in range(len(fields)):
            field, before = headers[at], fields[at]
            if field is before or field == before:
                continue
            if field[0] != before[0]:
                return b""
            value: bytes = field[1]
            place = self._place(at)
            if place > 0:
                if _LF in value or _CR in value or _NUL in value:
                    return b""
                self._lines[place] = line_of(field)
            elif place == _LENGTH and value == b"%d" % size:
                self._lines[-1] = b"content-length: %d\r\n\r\n" % size
                self._size, is_announced = size, True
            else:
                return b""
            fields[at] = field
            self._head = b""
        if not is_announced:
            return b""
        head = self._head
        if not head:
            self._head = head = b"\r\n".join(self._lines)
            if len(head) > _LONGEST:
                self._forget()
        return head

    def _place(self, at: int) -> int:
        if not self._places:
            place, places = 2, []
            for field in self._fields:
                if field[0] == b"content-length":
                    places.append(_LENGTH)
                elif self._lines[place] == line_of(field):
                    places.append(place)
                    place += 1
                else:  # it is not there, or dropped
                    places.append(_SAME)
            self._places = places
        return self._places[at]


def _target_of(scope: dict[str, Any]) -> tuple[object, object, object, bool]:
    return scope["method"], scope.get("raw_path"), scope.get("query_string"), EMPTY_QUERY in scope
