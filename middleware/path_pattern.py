"""A route's path: literal characters, and ``*`` for any run of them.

Each part between two stars is looked for once, from where the one before it ended: the leftmost place leaves most room for the
rest, so that no other has to be tried. A regular expression tries them all, which in a path of some kilobytes takes minutes.
"""

from typing import Final


class PathPattern:
    """``*`` stands for any run of characters, slashes and none included; everything else for itself."""

    __slots__ = ("_first", "_last", "_least", "_middle", "_whole")

    def __init__(self, path: str) -> None:
        parts = path.split("*")
        self._whole: Final = path if len(parts) == 1 else None
        self._first: Final = parts[0]
        self._middle: Final = [part for part in parts[1:-1] if part]
        self._last: Final = parts[-1]
        self._least: Final = len(self._first) + len(self._last)
        """Characters: with fewer, beginning and end would overlap."""

    def matches(self, path: str) -> bool:
        """Whether it stands for the whole of ``path``. The time it takes is linear in the path's length."""
        if self._whole is not None:
            return path == self._whole
        if len(path) < self._least or not path.startswith(self._first) or not path.endswith(self._last):
            return False
        at, end = len(self._first), len(path) - len(self._last)
        for part in self._middle:
            found = path.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True
