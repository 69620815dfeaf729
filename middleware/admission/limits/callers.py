"""Limits per caller of a process: attempts at once, and new keys in a time. Replays and refusals never count.

A caller is what its scope makes of it: the second half of a record's id. New keys are counted by a token bucket. `CallerSlots`
are there where callers have limits; else a process has plain `Slots`, and no request meets a line of this.
"""
# Compiled: docs/decisions/0012-compiled.md

import re
from collections.abc import Callable
from time import monotonic
from typing import Final

from oncegate.middleware.admission.limits.slots import PROCESS, Slot, Slots, Waiter
from oncegate.middleware.rules.errors import TooManyKeys
from oncegate.middleware.rules.keys.key import caller_of_id, record_id

MOST_CALLERS: Final = 10_000
"""Whose new keys are remembered. Beyond, who was silent for longest is forgotten, and begins anew."""
RATE: Final = re.compile(r"([1-9][0-9]{0,8})/([smh])")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_A_SLOT: Final = 1.0
"""Seconds until a slot may be free: nobody knows."""


class _Bucket:
    __slots__ = ("at", "left")

    def __init__(self, left: float, at: float) -> None:
        self.left = left
        self.at = at


class CallerLimits:
    """The limits of a caller: ``in_flight`` attempts at once (0: any number), ``new_keys`` as ``"600/m"``, per s, m or h.

    All of a time's new keys may come at once. ``now`` is a clock, in seconds. Raises ``ValueError`` for no such rate.
    """

    def __init__(self, in_flight: int = 0, new_keys: str = "", *, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._new_keys = 0.0
        self._running: dict[str, int] = {}
        self._claims: dict[str, int] = {}
        self._buckets: dict[str, _Bucket] = {}
        self.limit(in_flight, new_keys)

    def limit(self, in_flight: int, new_keys: str) -> None:
        """These are the limits from now on. What a caller has used of a time's new keys stays used."""
        rate = RATE.fullmatch(new_keys)
        if new_keys and rate is None:
            raise ValueError('new keys are a number per s, m or h: "600/m"')
        self._most = in_flight
        before = self._new_keys
        self._new_keys = float(rate[1]) if rate else 0.0
        self._per_second = self._new_keys / _SECONDS[rate[2]] if rate else 0.0
        for bucket in self._buckets.values():
            bucket.left += self._new_keys - before

    def wait(self, caller: str, *, is_new: bool = True) -> float:
        """How many seconds until ``caller`` may begin another attempt; 0.0: it may now.

        ``is_new``: the key may be a new one; a retry of one that is used doesn't need any of the new keys.
        """
        if self._most and self._running.get(caller, 0) >= self._most:
            return _A_SLOT
        if not self._new_keys or not is_new:
            return 0.0
        left = self._left(caller)
        return 0.0 if left >= 1.0 else (1.0 - left) / self._per_second

    def is_certain(self, caller: str, *, is_new: bool) -> bool:
        """Whether the caller is at a limit whatever its claims under way are answered."""
        claims = self._claims.get(caller, 0)
        if self._most and self._running.get(caller, 0) - claims >= self._most:
            return True
        return bool(self._new_keys) and is_new and self._left(caller) + claims < 1.0

    def claim_ended(self, caller: str, *, is_new: bool) -> None:
        """The claim is answered. Unless the key ``is_new``, what `take` counted for it doesn't count."""
        _one_less(self._claims, caller)
        if not is_new:
            self.not_new(caller)

    def take(self, caller: str) -> None:
        """The caller claims what may be a new key: perhaps it is a replay."""
        self._running[caller] = self._running.get(caller, 0) + 1
        self._claims[caller] = self._claims.get(caller, 0) + 1
        if not self._new_keys:
            return
        left = self._left(caller)
        self._buckets.pop(caller, None)  # the last one is who came last
        self._buckets[caller] = _Bucket(left - 1.0, self._now())
        if len(self._buckets) > MOST_CALLERS:
            del self._buckets[next(iter(self._buckets))]

    def give_back(self, caller: str) -> None:
        """An attempt of the caller is over."""
        _one_less(self._running, caller)

    def not_new(self, caller: str) -> None:
        """The key was in use already: what `take` counted for it doesn't count."""
        bucket = self._buckets.get(caller)
        if bucket is not None:
            bucket.left = min(self._new_keys, bucket.left + 1.0)

    def _left(self, caller: str) -> float:
        bucket = self._buckets.get(caller)
        if bucket is None:
            return self._new_keys
        return min(self._new_keys, bucket.left + (self._now() - bucket.at) * self._per_second)


def _one_less(counts: dict[str, int], caller: str) -> None:
    """Who has none left is not kept."""
    left = counts.get(caller, 0) - 1
    if left > 0:
        counts[caller] = left
    else:
        counts.pop(caller, None)


class CallerSlot(Slot):
    """A slot that is taken for ``caller``."""

    __slots__ = ("caller", "callers")

    def __init__(self, slots: "CallerSlots", caller: str) -> None:
        super().__init__(slots)
        self.caller = caller
        self.callers = slots.callers

    def won(self, *, is_new: bool = True) -> None:
        """See `Slot.won`."""
        self.callers.claim_ended(self.caller, is_new=is_new)
        super().won(is_new=is_new)

    def lost(self, *, is_new: bool = False) -> None:
        """See `Slot.lost`."""
        self.callers.claim_ended(self.caller, is_new=is_new)
        self.callers.give_back(self.caller)
        super().lost(is_new=is_new)

    def leave(self) -> None:
        """See `Slot.leave`."""
        self.callers.give_back(self.caller)
        super().leave()

    def changed(self) -> None:
        """Serve who waits longest for the process, then who waits longest as this caller."""
        super().changed()
        self.slots.serve(self.caller)


class CallerSlots(Slots):
    """The slots of one process, of which each caller has no more than ``callers`` say, and its own line to wait for those."""

    def __init__(self, most: int, callers: CallerLimits) -> None:
        super().__init__(most)
        self.callers = callers

    @classmethod
    def in_place_of(cls, plain: Slots, callers: CallerLimits) -> "CallerSlots":
        """The same slots, once callers have limits. What was taken before counts for the process, and for no caller."""
        made = cls(plain.most, callers)
        made.taken, made.claims, made.lines = plain.taken, plain.claims, plain.lines
        plain.any.slots = made  # where those that are taken are given back
        return made

    def enter(self, key: str) -> Slot | None:
        """Like `Slots.enter`, and only where its caller may have one more and nobody of it waits."""
        if self.taken >= self.most:
            return None
        caller = self.caller(key)
        if self.lines and (PROCESS in self.lines or caller in self.lines):
            return None
        return None if self.callers.wait(caller) > 0 else self.take(caller)

    def caller(self, key: str) -> str:
        """The caller that a key's scope makes."""
        return caller_of_id(record_id(key))

    def take(self, caller: str) -> Slot:
        """Take one of the process, and of the caller."""
        plain = super().take(caller)
        if caller == PROCESS:  # it has waited since callers had no limits
            return plain
        self.callers.take(caller)
        return CallerSlot(self, caller)

    def blocked(self, waiter: Waiter) -> str | None:
        """The line to wait in; that of the process comes first: see `Slots.blocked`."""
        if self.taken >= self.most:
            return PROCESS
        if waiter.caller == PROCESS:
            return None
        return waiter.caller if self.callers.wait(waiter.caller, is_new=waiter.is_new) > 0 else None

    def is_certain(self, line: str, waiter: Waiter) -> bool:
        """See `Slots.is_certain`."""
        if line == PROCESS:
            return super().is_certain(line, waiter)
        return self.callers.is_certain(waiter.caller, is_new=waiter.is_new)

    def refusal(self, line: str, waiter: Waiter) -> Exception:
        """See `Slots.refusal`."""
        if line == PROCESS:
            return super().refusal(line, waiter)
        seconds = self.callers.wait(waiter.caller, is_new=waiter.is_new)
        return TooManyKeys("The caller has sent too much at once: try again later.", seconds)
