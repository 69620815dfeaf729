"""Owner tokens: random bytes, which are drawn from the system for many claims at once. For each it would be a system call.

No two claims may ever have the same one: the later one would count as the first one sent again, and be executed beside it. So a
token is taken by one step that no thread can come between, a process that was forked draws its own, and what was drawn is used
within an instant, or never: what a copy of a whole machine could have in common with it is as little as can be.
"""
# Compiled: docs/decisions/0012-compiled.md

import os
from collections.abc import Callable
from struct import Struct
from typing import Final

from oncegate.cache.record import TOKEN_BYTES

AT_ONCE: Final = 16
"""Tokens that are drawn with one call: the system gives up to 256 bytes in one step."""
SECONDS: Final = 0.1
"""For so long they are used."""
_TOKENS: Final = Struct(f"{TOKEN_BYTES}s" * AT_ONCE)


class OwnerTokens:
    """Random tokens. Several threads may take from the same ones."""

    def __init__(self, draw: Callable[[int], bytes] = os.urandom) -> None:
        self._draw = draw
        self._drawn: list[bytes] = []
        self._until = 0.0

    def take(self, now: float) -> bytes:
        """A token that nobody else has. ``now`` is the monotonic clock's."""
        drawn = self._drawn
        if drawn and now < self._until:
            try:
                return drawn.pop()
            except IndexError:  # another thread has taken the last one
                pass
        drawn = list(_TOKENS.unpack(self._draw(_TOKENS.size)))
        token: bytes = drawn.pop()
        self._drawn = drawn  # before the instant: another thread may look in between
        self._until = now + SECONDS
        return token

    def forget(self) -> None:
        """Use none of those that were drawn: in a process that was forked, its parent has the same ones."""
        self._drawn = []


TOKENS: Final = OwnerTokens()
if hasattr(os, "register_at_fork"):  # Windows has none, and never forks
    os.register_at_fork(after_in_child=TOKENS.forget)
