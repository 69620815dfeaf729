"""A reload's outcome, and the function by which operators have one done."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reloaded:
    """A reload's outcome. ``digest`` is of the configuration in effect after it.

    ``refusal`` is the line that says why nothing has changed, empty where all was applied. ``wait`` are the settings that
    have changed and take effect with a restart.
    """

    digest: str
    refusal: str = ""
    wait: tuple[str, ...] = ()


Reload = Callable[[], Awaitable[Reloaded]]
"""Reads the configuration anew, and returns once it is in effect in every process, or in none."""
