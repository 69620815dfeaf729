"""The aggregate that an asynchronous request is about, and the version of it that it expects, as requests name them.

An aggregate's id is what the route's first ``*`` matched in the decoded path, or the value of a header. Both are UTF-8, and
compared octet by octet. A version is the aggregate's last number, 0 before its first:

| field | expected | else |
| --- | --- | --- |
| ``Expected-Version: 4`` | 4 | 409 |
| ``If-Match: "4"`` | 4 | 412 (RFC 9110 section 13.1.1) |
| ``If-Match: *`` | any but 0 | 412 |
| ``If-None-Match: *`` | 0 | 412 (section 13.1.2) |
"""
# Compiled: docs/decisions/0012-compiled.md

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from oncegate.cache.record import MAX_SEQUENCE
from oncegate.middleware.rules.errors import AggregateInvalid, VersionInvalid, VersionMissing
from oncegate.middleware.rules.keys.key import Fields
from oncegate.middleware.rules.paths.path_pattern import PathPattern
from oncegate.middleware.rules.paths.readings import normalise

HEADER: Final = "header:"

_EXPECTED: Final = b"expected-version"
_IF_MATCH: Final = b"if-match"
_IF_NONE_MATCH: Final = b"if-none-match"
VERSION_FIELDS: Final = (_EXPECTED, _IF_MATCH, _IF_NONE_MATCH)

_AGGREGATE_BYTES: Final = 20
_is_number: Final = re.compile(rb"0|[1-9][0-9]{0,18}").fullmatch
_is_tag: Final = re.compile(rb'"(0|[1-9][0-9]{0,18})"').fullmatch
_is_no_text: Final = re.compile("[\0-\x1f\x7f\ufffd]").search
"""Control characters, and what stands for octets that are no UTF-8: of two ids it would make one."""


def aggregate_digest(aggregate: str) -> bytes:
    """The digest of an aggregate's id, of exactly its code points: no case, white space, Unicode form, length or collation makes
    one of two.
    """
    # A lone surrogate has no UTF-8, and is an id like any other.
    return blake2b(aggregate.encode("utf-8", "surrogatepass"), digest_size=_AGGREGATE_BYTES).digest()


@dataclass(frozen=True, slots=True)
class AggregateVersion:
    """The aggregate that a request is about, by its id, and the version that it expects: ``"*"`` for any but 0, ``""`` for
    whichever it is. ``is_condition``: by a field of RFC 9110.
    """

    aggregate: str
    expected: str
    is_condition: bool


class Aggregates:
    """The aggregates that requests of a route are about, read from ``source``: ``path`` or ``header:NAME``.

    ``path`` is the route's pattern. ``require_version``: requests have to name the version that they expect.
    """

    __slots__ = ("_header", "_pattern", "_require_version", "fields")

    def __init__(self, source: str, path: str, *, require_version: bool) -> None:
        self._header = source.removeprefix(HEADER).lower().encode() if source.startswith(HEADER) else b""
        self._pattern = PathPattern(path)
        self._require_version = require_version
        self.fields = frozenset((*VERSION_FIELDS, self._header) if self._header else VERSION_FIELDS)
        """The names of the fields that are read."""

    def version(self, fields: Fields, scope: Mapping[str, Any]) -> AggregateVersion:
        """The aggregate's version that a request expects. Raises `AggregateInvalid`, `VersionInvalid` or `VersionMissing`."""
        aggregate = self._in_header(fields) if self._header else self._in_path(scope)
        names = [name for name in VERSION_FIELDS if name in fields]
        if not names:
            if self._require_version:
                raise VersionMissing(
                    "This operation requires the version that is expected: send Expected-Version or If-Match."
                )
            return AggregateVersion(aggregate, "", False)
        if len(names) > 1 or len(fields[names[0]]) > 1:
            raise VersionInvalid("More than one field says which version is expected: send one.")
        return AggregateVersion(aggregate, _expected(names[0], fields[names[0]][0]), names[0] != _EXPECTED)

    def _in_header(self, fields: Fields) -> str:
        lines = fields.get(self._header, [])
        name = self._header.decode()
        if len(lines) != 1 or not lines[0]:
            raise AggregateInvalid(f"This operation is about an aggregate: send its id in one {name} field.")
        return _checked(lines[0].decode("utf-8", "replace"), name)

    def _in_path(self, scope: Mapping[str, Any]) -> str:
        path: str = scope["path"]
        root: str = scope.get("root_path") or ""
        if root and path.startswith(root + "/"):  # as routes are matched below it
            path = path[len(root) :]
        found = self._pattern.first_run(normalise(path))
        if not found:  # empty, or some server reads the path otherwise than it is spelled
            raise AggregateInvalid("The path names no aggregate: write it as the operation has it, with the id in it.")
        return _checked(found, "path")


def _checked(aggregate: str, where: str) -> str:
    if _is_no_text(aggregate) is not None:
        raise AggregateInvalid(f"The aggregate's id in {where} holds a control character, or is not UTF-8.")
    return aggregate


def _expected(name: bytes, value: bytes) -> str:
    if name == _IF_NONE_MATCH:
        if value == b"*":
            return "0"
        raise VersionInvalid("If-None-Match can only be * here, which expects that there is no version yet.")
    if name == _IF_MATCH:
        if value == b"*":
            return "*"
        tag = _is_tag(value)
        digits = b"" if tag is None else tag[1]
    else:
        digits = value if _is_number(value) is not None else b""
    if not digits or int(digits) > MAX_SEQUENCE:
        if name == _IF_MATCH:
            raise VersionInvalid('If-Match can only be one strong tag here that is a version, "4", or *.')
        raise VersionInvalid("Expected-Version is a whole number: 0 before an aggregate's first command.")
    return digits.decode("ascii")
