"""Seconds as people give them: a number, or a ``timedelta``."""

from datetime import timedelta
from typing import Any


def given_seconds(**times: Any) -> list[float]:
    """The ``times`` in seconds, in their order. Raises ``TypeError`` for what is neither number nor ``timedelta``."""
    for name, value in times.items():
        if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
            raise TypeError(f"{name} is a {type(value).__qualname__}: give seconds, as 30 or 0.5, or a timedelta")
    return [value.total_seconds() if isinstance(value, timedelta) else value for value in times.values()]
