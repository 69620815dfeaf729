"""Finds routes that no request can match, and advises on them at start."""

import re
from collections.abc import Sequence
from typing import Final

from oncegate.middleware.rules.path_pattern import parts_of
from oncegate.middleware.rules.readings import normalise
from oncegate.middleware.rules.settings import Route

_SEGMENT: Final = "{}"
_RUN: Final = "*"
_ENCODED: Final = re.compile(r"%[0-9A-Fa-f]{2}|[?#]")


def route_advice(routes: Sequence[Route]) -> list[str]:
    """A line for each route that no request meets: an earlier one takes all of its, or no path is spelled like it."""
    lines = []
    for number, route in enumerate(routes):
        if _ENCODED.search(route.path) or normalise(route.path) != "/" + route.path.removeprefix("/").removesuffix("/"):
            lines.append(
                f"routes.{number}.path: {route.path!r} matches nothing, since paths are decoded and normalised before; "
                "write it without %XX, a query, empty and dot segments"
            )
        for earlier in range(number):
            if shadows(routes[earlier], route):
                lines.append(
                    f"routes.{number}: {route.path!r} is never reached, since routes.{earlier} ({routes[earlier].path!r}) takes "
                    "all its requests; put it before that one"
                )
                break
    return lines


def shadows(earlier: Route, later: Route) -> bool:
    """Whether ``earlier`` takes every request that ``later`` is for. False where that isn't certain."""
    if earlier.methods and not (later.methods and set(later.methods) <= set(earlier.methods)):
        return False
    return _covers(_symbols(earlier.path), _symbols(later.path))


def _symbols(path: str) -> list[str]:
    """The characters of a path, with a symbol for one segment and one for a run."""
    runs = [_SEGMENT.join(part) for part in parts_of(path)]
    return re.findall(r"\{\}|.", _RUN.join(runs), re.DOTALL)


def _covers(wide: list[str], narrow: list[str]) -> bool:
    """Whether all that ``narrow`` matches is matched by ``wide``: as if it were a path, whose runs only runs take."""
    ends = {0}
    """How much of ``narrow`` may be taken by what of ``wide`` was looked at."""
    for symbol in wide:
        if symbol == _RUN:
            ends = set(range(min(ends, default=len(narrow) + 1), len(narrow) + 1))
        elif symbol == _SEGMENT:
            ends = {end for begin in ends for end in _segment_ends(narrow, begin)}
        else:
            ends = {end + 1 for end in ends if end < len(narrow) and narrow[end] == symbol}
    return len(narrow) in ends


def _segment_ends(symbols: list[str], begin: int) -> list[int]:
    end = begin
    while end < len(symbols) and symbols[end] not in ("/", _RUN):
        end += 1
    return list(range(begin + 1, end + 1))
