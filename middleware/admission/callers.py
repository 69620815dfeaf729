"""What one caller may have of a process: attempts at once, and new keys in a time. Replays and refusals never count.

A caller is what its scope makes of it: the second half of a record's id. New keys are counted by a token bucket.
"""
# Compiled: docs/decisions/0012-compiled.md

import re
from collections.abc import Callable
from time import monotonic
from typing import Final

from oncegate.middleware.rules.key import caller_of_id, record_id

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
    """At most ``in_flight`` attempts of a caller at once (0: any number), and so many ``new_keys``: ``"600/m"``, per s, m or h.

    All of a time's new keys may come at once. ``now`` is a clock, in seconds. Raises ``ValueError`` for no such rate.
    """

    def __init__(self, in_flight: int = 0, new_keys: str = "", *, now: Callable[[], float] = monotonic) -> None:
        rate = RATE.fullmatch(new_keys)
        if new_keys and rate is None:
            raise ValueError('new keys are a number per s, m or h: "600/m"')
        self._most = in_flight
        self._new_keys = float(rate[1]) if rate else 0.0
        self._per_second = self._new_keys / _SECONDS[rate[2]] if rate else 0.0
        self._now = now
        self._running: dict[str, int] = {}
        self._claims: dict[str, int] = {}
        self._buckets: dict[str, _Bucket] = {}

    def name(self, key: str) -> str:
        """The caller of the look-up key ``key``, as its scope makes it."""
        return caller_of_id(record_id(key))

    def wait(self, key: str, *, is_new: bool = True) -> float:
        """How many seconds until the caller of the look-up key ``key`` may begin another attempt; 0.0: it may now.

        ``is_new``: the key may be a new one; a retry of one that is used doesn't need any of the new keys.
        """
        caller = self.name(key)
        if self._most and self._running.get(caller, 0) >= self._most:
            return _A_SLOT
        if not self._new_keys or not is_new:
            return 0.0
        left = self._left(caller)
        return 0.0 if left >= 1.0 else (1.0 - left) / self._per_second

    def is_certain(self, key: str, *, is_new: bool) -> bool:
        """Whether the caller is at a limit whatever its claims under way are answered."""
        caller = self.name(key)
        claims = self._claims.get(caller, 0)
        if self._most and self._running.get(caller, 0) - claims >= self._most:
            return True
        return bool(self._new_keys) and is_new and self._left(caller) + claims < 1.0

    def claim_ended(self, key: str, *, is_new: bool) -> None:
        """The claim is answered. Unless the key ``is_new``, what `take` counted for it doesn't count."""
        _one_less(self._claims, self.name(key))
        if not is_new:
            self.not_new(key)

    def take(self, key: str) -> None:
        """The caller claims what may be a new key: perhaps it is a replay."""
        caller = self.name(key)
        self._running[caller] = self._running.get(caller, 0) + 1
        self._claims[caller] = self._claims.get(caller, 0) + 1
        if not self._new_keys:
            return
        left = self._left(caller)
        self._buckets.pop(caller, None)  # the last one is who came last
        self._buckets[caller] = _Bucket(left - 1.0, self._now())
        if len(self._buckets) > MOST_CALLERS:
            del self._buckets[next(iter(self._buckets))]

    def give_back(self, key: str) -> None:
        """An attempt of the caller is over."""
        _one_less(self._running, self.name(key))

    def not_new(self, key: str) -> None:
        """The key was in use already: what `take` counted for it doesn't count."""
        bucket = self._buckets.get(self.name(key))
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
