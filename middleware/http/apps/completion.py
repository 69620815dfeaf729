"""When an app's outcome is recorded: with the last byte of its response, or once the app has returned.

Code of an app that runs after its response can still decide about the effect: FastAPI ends a dependency with ``yield`` then, and
most take that for the place to commit. A success that was recorded before would be replayed though nothing was written.
"""

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final

_MOST_ROUTES: Final = 10_000
_known: dict[int, tuple[object, bool]] = {}
"""Answers by the route's id; kept with the route, whose id is its own for as long as it lives. (Starlette's can't be hashed.)"""


def ends_late(scope: Mapping[str, Any]) -> bool:
    """Whether the app still runs code of the route, by which FastAPI has called it, after its response was sent.

    ``scope`` is the app's own, once it has found the route. What a router that is included adds to it is beside it.
    """
    route = scope.get("route")
    if route is None:
        return False
    found = _known.get(id(route))
    if found[1] if found is not None else _ends_late(route):
        return True
    beside = scope.get("fastapi")
    return isinstance(beside, dict) and any(_ends_late(each) for each in beside.values() if hasattr(each, "dependant"))


def _ends_late(route: Any) -> bool:
    found = _known.get(id(route))
    if found is None:
        if len(_known) >= _MOST_ROUTES:
            _known.clear()
        found = _known[id(route)] = route, any(True for _ in late_dependencies(route))
    return found[1]


def late_dependencies(route: Any) -> Iterator[str]:
    """The names of FastAPI's generator dependencies of ``route`` that end after the response: those of another scope than
    ``"function"``.
    """
    seen: set[str] = set()
    left = [*getattr(getattr(route, "dependant", None), "dependencies", ())]
    while left:
        each = left.pop(0)
        left += getattr(each, "dependencies", ())
        call = getattr(each, "call", None)
        if getattr(each, "scope", None) != "function" and _generates(call):
            name = getattr(call, "__qualname__", type(call).__qualname__)
            if name not in seen:
                seen.add(name)
                yield name


def _generates(call: Any) -> bool:
    while isinstance(call, functools.partial):
        call = call.func
    own = type(call).__call__ if callable(call) else None
    for each in (call, own):
        function = inspect.unwrap(each) if callable(each) else None
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            return True
    return False
