"""What every cache checks of a call before it touches its store: the arguments, against the table of transitions."""

import functools

from oncegate.cache.codec import STATE_CODES
from oncegate.cache.record import Event, State, check


@functools.cache
def takeover_codes(takeover: frozenset[State]) -> bytes:
    """The stored codes of the states that a claim may take over, in a fixed order.

    Raises `IllegalTransition` where one of them can't be claimed at all.
    """
    for state in takeover:
        check(state, Event.CLAIM, State.IN_FLIGHT)
    return b"".join(sorted(STATE_CODES[state] for state in takeover))


@functools.cache
def check_outcome(state: State) -> State:
    """``state``, if an attempt can end in it; raises `IllegalTransition` otherwise."""
    return check(State.IN_FLIGHT, Event.COMPLETE, state)


def check_duration(name: str, milliseconds: int, least: int = 1) -> int:
    """``milliseconds``, if at least ``least``; raises ``ValueError``, since a record without time to live breaks the law."""
    if milliseconds < least:
        raise ValueError(f"{name} must be at least {least} ms")
    return milliseconds
