"""Finds routes that no request can match, and advises on them at start.

There may be a thousand routes, so not each is compared with each: `_Earlier` leaves out those that can't meet.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from oncegate.middleware.rules.paths.path_pattern import parts_of
from oncegate.middleware.rules.paths.readings import normalise
from oncegate.middleware.rules.settings import Route

_SEGMENT: Final = "{}"
_RUN: Final = "*"
_ENCODED: Final = re.compile(r"%[0-9A-Fa-f]{2}|[?#]")


def route_advice(routes: Sequence[Route]) -> list[str]:
    """A line for each route that no request meets: an earlier one takes all of its, or no path is spelled like it."""
    lines = []
    known, earlier = [_Known(route) for route in routes], _Earlier()
    for number, route in enumerate(routes):
        if _ENCODED.search(route.path) or normalise(route.path) != "/" + route.path.removeprefix("/").removesuffix("/"):
            lines.append(
                f"routes.{number}.path: {route.path!r} matches nothing, since paths are decoded and normalised before; "
                "write it without %XX, a query, empty and dot segments"
            )
        for first in sorted(earlier.that_may_meet(known[number])):
            if takes_all_of(known[first], known[number]):
                lines.append(
                    f"routes.{number}: {route.path!r} is never reached, since routes.{first} ({routes[first].path!r}) takes "
                    "all its requests; put it before that one"
                )
                break
        earlier.add(number, known[number])
    return lines


def shadows(earlier: Route, later: Route) -> bool:
    """Whether ``earlier`` takes every request that ``later`` is for. False where that isn't certain."""
    return takes_all_of(_Known(earlier), _Known(later))


class _Known:
    """A route as it is compared: its ``methods``, and its path as ``symbols``, its characters with one symbol for a segment and
    one for a run.

    ``whole`` are its segments up to the first run, ``end`` the characters behind the last parameter and the last run.
    """

    __slots__ = ("end", "has_run", "methods", "symbols", "whole")

    def __init__(self, route: Route) -> None:
        parts = parts_of(route.path)
        runs = [_SEGMENT.join(part) for part in parts]
        self.methods = frozenset(route.methods)
        self.symbols: list[str] = re.findall(r"\{\}|.", _RUN.join(runs), re.DOTALL)
        self.has_run = len(parts) > 1
        begin = runs[0].split("/")
        self.whole = begin[:-1] if self.has_run else begin
        self.end = parts[-1][-1]


class _Node:
    """The routes whose whole segments are the same so far: those that end there, and by their ends those that have a run next."""

    __slots__ = ("below", "complete", "with_run")

    def __init__(self) -> None:
        self.below: defaultdict[str, _Node] = defaultdict(_Node)
        self.complete: list[int] = []
        self.with_run: defaultdict[str, list[int]] = defaultdict(list)


class _Earlier:
    """Routes by what a path must have to be matched by them: their segments up to the first run, and their end behind the last.

    So a route is compared with those alone that have the same there, or a parameter in place of a segment.
    """

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, number: int, known: _Known) -> None:
        """Know the route with this ``number`` from now on."""
        node = self._root
        for segment in known.whole:
            node = node.below[segment]
        (node.with_run[known.end] if known.has_run else node.complete).append(number)

    def that_may_meet(self, later: _Known) -> Iterable[int]:
        """The routes that may take all requests that ``later`` is for; no other one does."""
        ends = [later.end[at:] for at in range(len(later.end) + 1)]
        nodes = [self._root]
        found: list[int] = []
        for segment in later.whole:
            found += _with_run(nodes, ends)
            names = (segment, _SEGMENT) if segment != _SEGMENT else (segment,)
            nodes = [node.below[name] for node in nodes for name in names if name in node.below]
        found += _with_run(nodes, ends)
        if not later.has_run:
            for node in nodes:
                found += node.complete
        return found


def _with_run(nodes: list[_Node], ends: list[str]) -> Iterable[int]:
    for node in nodes:
        if node.with_run:
            for end in ends:
                yield from node.with_run.get(end, ())


def takes_all_of(earlier: _Known, later: _Known) -> bool:
    """See `shadows`."""
    if earlier.methods and not (later.methods and later.methods <= earlier.methods):
        return False
    return _covers(earlier.symbols, later.symbols)


def _covers(wide: list[str], narrow: list[str]) -> bool:
    """Whether all that ``narrow`` matches is matched by ``wide``: as if it were a path, whose runs only runs take."""
    ends = {0}
    """How much of ``narrow`` may be taken by what of ``wide`` was looked at."""
    for symbol in wide:
        if symbol == _RUN:
            ends = set(range(min(ends), len(narrow) + 1))
        elif symbol == _SEGMENT:
            ends = {end for begin in ends for end in _segment_ends(narrow, begin)}
        else:
            ends = {end + 1 for end in ends if end < len(narrow) and narrow[end] == symbol}
        if not ends:
            return False
    return len(narrow) in ends


def _segment_ends(symbols: list[str], begin: int) -> list[int]:
    end = begin
    while end < len(symbols) and symbols[end] not in ("/", _RUN):
        end += 1
    return list(range(begin + 1, end + 1))
