"""Path patterns of routes: literal characters, ``*`` for any run of them, and path parameters as frameworks write them.

``{name}`` is one segment, with whatever FastAPI, Starlette or Litestar convert it to (``{id:int}``); ``{name:path}`` is any run,
as ``*`` is. Everything else that looks like a parameter is refused: taken literally, it would guard nothing.

Each part between two runs is looked for once, from where the one before it ended: the leftmost place leaves most room for the
rest. A regular expression tries all of them, which in a path of some kilobytes takes minutes.
"""
# Compiled: docs/decisions/0012-compiled.md

import re
from collections.abc import Sequence
from typing import Final

_PARAMETER: Final = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*(?::([a-z]+))?\}")
_ONE_SEGMENT: Final = frozenset(
    {None, "str", "int", "float", "decimal", "uuid", "date", "datetime", "time", "timedelta"}
)
_OF_OTHERS: Final = re.compile(r"/:[A-Za-z_]|<[^/>]*>")
"""Parameters as Express, Flask and Django write them."""


def parts_of(path: str) -> list[list[str]]:
    """The parts between runs; each is literals with one segment between two. Raises ``ValueError``, in one line."""
    if _OF_OTHERS.search(path) is not None:
        raise ValueError("a path parameter is written {name}, which is one segment, or {name:path}, which is any run")
    parts: list[list[str]] = [[""]]
    at = 0
    for found in _PARAMETER.finditer(path):
        _add(parts, path[at : found.start()])
        at = found.end()
        if found[1] == "path":
            parts.append([""])
        elif found[1] not in _ONE_SEGMENT:
            raise ValueError(f"{found[0]} is of a type that is not known here: write {{name}}, {{name:path}} or *")
        elif path[found.start() - 1] != "/" or path[at : at + 1] not in ("", "/"):
            raise ValueError(f"{found[0]} is not a whole segment, as in /{found[0]}/: write * for a part of one")
        else:
            parts[-1].append("")
    _add(parts, path[at:])
    return parts


def _add(parts: list[list[str]], text: str) -> None:
    if "{" in text or "}" in text:
        raise ValueError("{ and } are for path parameters, {name} or {name:path}: write * for anything else")
    first, *others = text.split("*")
    parts[-1][-1] += first
    parts += [[other] for other in others]


class PathPattern:
    """A pattern that stands for paths. Raises ``ValueError`` for a path with a parameter that is not understood."""

    __slots__ = ("_first", "_last", "_least", "_middle", "_whole")

    def __init__(self, path: str) -> None:
        parts = parts_of(path)
        self._whole: Final = parts[0] if len(parts) == 1 else None
        self._first: Final = parts[0]
        self._middle: Final = [part for part in parts[1:-1] if part != [""]]
        self._last: Final = parts[-1]
        self._least: Final = sum(map(len, parts[0])) + sum(map(len, parts[-1]))
        """Characters: with fewer, beginning and end would overlap."""

    def matches(self, path: str) -> bool:
        """Whether it stands for the whole of ``path``. The time it takes is linear in the path's length."""
        if self._whole is not None:
            if len(self._whole) == 1:  # as a rule
                return path == self._whole[0]
            return _end(self._whole, path, 0) == len(path)
        if len(path) < self._least:
            return False
        at, end = _end(self._first, path, 0), _begin(self._last, path)
        if at < 0 or end < at:
            return False
        for part in self._middle:
            at = _find(part, path, at, end)
            if at < 0:
                return False
        return True

    def first_run(self, path: str) -> str | None:
        """The part of ``path`` that the first ``*`` stands for; ``None`` where the pattern has none, or doesn't match."""
        if self._whole is not None or not self.matches(path):
            return None
        at = _end(self._first, path, 0)
        if not self._middle:
            return path[at : _begin(self._last, path)]
        part = self._middle[0]
        return path[at : _begin(part, path[: _find(part, path, at, len(path))])]


def _end(part: Sequence[str], path: str, at: int) -> int:
    """The end of a part that matches at ``at``; -1 if it doesn't match."""
    if not path.startswith(part[0], at):
        return -1
    at += len(part[0])
    for literal in part[1:]:
        begin, at = at, path.find("/", at)
        if at < 0:
            at = len(path)
        if at == begin or not path.startswith(literal, at):
            return -1
        at += len(literal)
    return at


def _begin(part: Sequence[str], path: str) -> int:
    """The beginning of a part that matches at the path's end; -1 if it doesn't match."""
    at = len(path)
    for index in range(len(part) - 1, -1, -1):
        at -= len(part[index])
        if at < 0 or not path.startswith(part[index], at):
            return -1
        if index:
            end, at = at, path.rfind("/", 0, at) + 1
            if at == end:
                return -1
    return at


def _find(part: Sequence[str], path: str, at: int, end: int) -> int:
    """The end of a part's first occurrence between ``at`` and ``end``; -1 if there is none.

    Before a segment is a slash: each place that is tried has another one, and looks at no more segments than the part has.
    """
    at = path.find(part[0], at, end)
    while at >= 0:
        found = at + len(part[0]) if len(part) == 1 else _end(part, path, at)
        if 0 <= found <= end:
            return found
        if found > end:
            return -1
        at = path.find(part[0], at + 1, end)
    return -1
