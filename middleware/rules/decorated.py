"""The functions that ``@idempotent`` was put around: whoever calls one of them calls past it."""

import weakref
from typing import Any

_decorated: "weakref.WeakSet[Any]" = weakref.WeakSet()


def note_decorated(function: Any) -> None:
    """``function`` was decorated; what stands in its place is another object."""
    _decorated.add(function)


def is_decorated(function: Any) -> bool:
    """Whether this very function was decorated, and is not what the decorator has made of it."""
    try:
        return function in _decorated
    except TypeError:  # it can't be hashed, or referred to weakly
        return False
