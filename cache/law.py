"""Checks the arguments of a cache's calls against the table of transitions, before the store is touched."""
# Compiled: docs/decisions/0012-compiled.md

import functools

from oncegate.cache.codec import STATE_CODES
from oncegate.cache.record import Event, State, StoredResponse, check


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


def check_resolution(state: State | None, ttl_ms: int, response: StoredResponse | None) -> State:
    """The state that an operator resolves to, ``ABSENT`` for ``None``; raises `IllegalTransition` for one that the law lacks.

    Raises ``ValueError`` where a record would be kept for no time, or a response for none.
    """
    if state is None or state is State.ABSENT:
        if response is not None:
            raise ValueError("a key that is set free has no response")
        return State.ABSENT
    check_duration("ttl_ms", ttl_ms)
    return check(State.UNKNOWN, Event.RESOLVE, state)


def check_duration(name: str, milliseconds: int, least: int = 1) -> int:
    """``milliseconds``, if at least ``least``; raises ``ValueError``, since a record without time to live breaks the law."""
    if milliseconds < least:
        raise ValueError(f"{name} must be at least {least} ms")
    return milliseconds
