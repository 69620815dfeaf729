"""Retry rules of `oncegate.client`: when a request may be sent again, and after what pause. No I/O.

A try ends in one of three ways, each with its own rule. Nothing was sent: any request may be sent again.
The connection broke after sending: only a request whose repetition is harmless, by its key or by its method. An answer
came: only where it says itself that it is worth it, as a problem whose ``retryable`` is true.
"""

import math
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from oncegate.cache.backoff import Backoff
from oncegate.cache.seconds import given_seconds

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Methods that may be sent again unchanged (RFC 9110 section 9.2.2)."""
_LONGEST_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    """Limits on the retries of one request.

    ``attempts`` counts all tries, the first one too; no try begins more than ``seconds`` after the first. The n-th pause is
    random, up to ``pause`` doubled n - 1 times and at most ``longest_pause`` ("full jitter"). A server that asks for time
    (Retry-After) gets at least that, or the request is given up where it would be more than is left.
    """

    attempts: int = 5
    seconds: float = 60.0
    pause: float = 0.2
    longest_pause: float = 10.0

    def __post_init__(self) -> None:
        for name in ("seconds", "pause", "longest_pause"):
            object.__setattr__(self, name, *given_seconds(**{name: getattr(self, name)}))  # a timedelta, say
        if self.attempts < 1:
            raise ValueError("attempts counts the first try too: it must be at least 1")
        if not all(math.isfinite(value) and value >= 0 for value in (self.seconds, self.pause, self.longest_pause)):
            raise ValueError("seconds, pause and longest_pause must be finite and not below 0")


@dataclass(slots=True)
class Retries:
    """The retries of one request. Report each try's result: the methods return the seconds to wait, or ``None`` to give up.

    ``harmless``: the request has a key, or an idempotent method. ``now`` is the time of the first try on a clock that
    never goes back; ``draw`` gives a number from 0 to 1.
    """

    budget: RetryBudget
    harmless: bool
    now: float
    also_statuses: Collection[int] = ()
    draw: Callable[[], float] = random.random
    tries: int = 0
    _deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self._deadline = self.now + self.budget.seconds

    def nothing_was_sent(self, now: float, *, resendable: bool) -> float | None:
        """The connection could not be made. ``resendable``: is the body still there, whole."""
        return self._next(now, 0.0, allowed=resendable)

    def connection_broke(self, now: float, *, resendable: bool) -> float | None:
        """Note that the request was sent, in part or whole, and no answer came: broken connection, or time-out."""
        return self._next(now, 0.0, allowed=resendable and self.harmless)

    def answered(
        self, now: float, status: int, problem: Any, retry_after: float | None, *, resendable: bool
    ) -> float | None:
        """An answer came; ``problem`` is its JSON value where it is application/problem+json, else ``None``."""
        retryable = isinstance(problem, dict) and problem.get("retryable") is True
        allowed = retryable or (self.harmless and status in self.also_statuses)
        return self._next(now, retry_after or 0.0, allowed=resendable and allowed)

    def _next(self, now: float, least: float, *, allowed: bool) -> float | None:
        self.tries += 1
        left = self._deadline - now
        if not allowed or self.tries >= self.budget.attempts or least > left or left < 0:
            return None
        # The jitter is added to what the server asks for: all callers get the same Retry-After.
        pause = Backoff(self.budget.pause, self.budget.longest_pause).pause(self.tries, self.draw)
        return min(least + pause, left)


def worth_reading(status: int, content_type: str) -> bool:
    """Whether an answer's body may say that it is worth a retry."""
    return status >= 400 and content_type.partition(";")[0].strip().lower() == "application/problem+json"


def retry_after_seconds(value: str | None, date: str | None, wall_clock: datetime) -> float | None:
    """A Retry-After field (RFC 9110 section 10.2.3) in seconds from now; ``None`` where there is none, or nonsense.

    A date is counted from the answer's own ``date``, so that a caller whose clock is wrong waits no longer or shorter; from
    ``wall_clock`` where the answer has none.
    """
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value) if len(value.lstrip("0")) <= _LONGEST_DIGITS else math.inf
    then = _date(value)
    if then is None:
        return None
    return max(0.0, (then - ((_date(date) if date else None) or wall_clock)).total_seconds())


def _date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date.replace(tzinfo=UTC) if date.tzinfo is None else date
