"""How the time that something takes grows with the size of what it is given: by ratios within one run, never by a clock."""

import gc
from collections.abc import Callable
from time import thread_time
from typing import TypeVar

Given = TypeVar("Given")

FACTOR = 8
"""The larger input is so many times the smaller one: what is linear takes 8 times as long, what is quadratic 64 times."""
LIMIT = 24
"""The most that is taken for linear: what outgrows a processor's cache, or sorts, is somewhat more than that."""
ROUNDS = 12
"""A machine that does other things, too, only ever adds to a time: the least of some rounds is compared, and more of them are
made before it is said that something is not linear."""
_RESOLUTION = 2e-5
"""Seconds, added to both: below it nothing can be told."""


def is_linear(work: Callable[[Given], object], make: Callable[[int], Given], largest: int) -> bool:
    """Whether the time of ``work`` is linear in the size that ``make`` is given, up to ``largest``."""
    small, large = make(largest // FACTOR), make(largest)
    shorter = longer = float("inf")
    for number in range(ROUNDS):
        shorter, longer = min(shorter, _seconds(work, small)), min(longer, _seconds(work, large))
        if number >= 2 and longer + _RESOLUTION <= LIMIT * (shorter + _RESOLUTION):
            return True
    return False


def _seconds(work: Callable[[Given], object], given: Given) -> float:
    """Of this thread's processor, for one call."""
    gc.collect(0)
    gc.disable()
    try:
        began = thread_time()
        work(given)
        return thread_time() - began
    finally:
        gc.enable()
