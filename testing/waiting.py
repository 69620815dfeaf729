"""Waiting for what must come true, instead of sleeping and hoping."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0
"""Seconds until what is awaited counts as something that never comes: no measure of speed."""
_SHORTEST, _LONG, _LONGEST, _GROWTH = 0.002, 0.04, 0.2, 1.2
"""Seconds between two looks: at first, soon, and after long; and how they grow."""


async def until(condition: Callable[[], Any], what: str = "", within: float = PATIENCE) -> Any:
    """What ``condition`` returns, awaited if it can be, as soon as that is true; fails, naming ``what``, where it never is."""
    began, pause = time.monotonic(), _SHORTEST
    deadline = began + within
    while True:
        found = condition()
        if inspect.isawaitable(found):
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {within:g} s: {what or condition}"
        await asyncio.sleep(pause)
        pause = _longer(pause, began)


def wait_until(
    condition: Callable[[], Any], what: str, within: float = PATIENCE, not_yet: tuple[type[Exception], ...] = ()
) -> Any:
    """As ``until``, for code without an event loop. An error of ``not_yet`` counts as "not yet"."""
    began, pause = time.monotonic(), _SHORTEST
    deadline = began + within
    while True:
        found = _without(condition, not_yet)
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        time.sleep(pause)
        pause = _longer(pause, began)


def _longer(pause: float, began: float) -> float:
    """A fiftieth of what it took so far: what takes long needs the processor itself, and is not looked at hundreds of times."""
    return max(min(pause * _GROWTH, _LONG), min((time.monotonic() - began) / 50, _LONGEST))


def _without(condition: Callable[[], Any], not_yet: tuple[type[Exception], ...]) -> Any:
    try:
        return condition()
    except not_yet:
        return None
