"""Parts of statements in SQL, for each of the two databases."""

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from sqlalchemy import Connection, TextClause, text

LONGEST_KEPT: Final = 100 * 365 * 86400.0
"""Seconds: of an age that both databases can count back from now."""
CLOCK: Final = {
    "postgresql": "clock_timestamp() + make_interval(secs => {})",
    "sqlite": "strftime('%Y-%m-%d %H\\:%M\\:%f000', 'now', {} || ' seconds')",
}
"""The database's time, so many seconds later, as both databases write and compare it."""
RECORD_BYTES: Final = "decode(translate({}, '._\\:', '+/'), 'base64')"
"""PostgreSQL's bytes of a record's id, see `RecordId`."""
_LIMIT: Final = """\
CASE current_setting('{setting}') WHEN '0' THEN set_config('{setting}', '{milliseconds}', true)
    ELSE current_setting('{setting}') END IS NOT NULL"""
"""True, once ``setting`` is set for this transaction; one that the session has stays. 0 is "no limit" in PostgreSQL."""


def listed(names: Iterable[str]) -> str:
    """Consumers' names, which are made of letters, digits, '.', '_' and '-'."""
    return ", ".join(f"'{name}'" for name in names)


def milliseconds(limit: float) -> int:
    """A time limit (s) as PostgreSQL has one: at least 1 ms, as 0 is none, and no more than its largest integer, 24 days."""
    return max(1, round(min(limit * 1000, 2**31 - 1)))


def limits_of(wait_timeout: float, idle_timeout: float) -> str:
    """On PostgreSQL a condition that is true, and has set both limits (s) for the transaction.

    In a query of its own it is done once, and not for each row.
    """
    return f"{wait_limit(wait_timeout)} AND {_limit('idle_in_transaction_session_timeout', idle_timeout)}"


def wait_limit(seconds: float) -> str:
    """The same for one limit: for how long a lock is waited for."""
    return _limit("lock_timeout", seconds)


def _limit(setting: str, seconds: float) -> str:
    return _LIMIT.format(setting=setting, milliseconds=milliseconds(seconds))


def lock_shared(names: Iterable[str]) -> str:
    """On PostgreSQL a condition that is true once the transaction holds the locks of these consumers beside others.

    In the expression behind the limits, the wait for a `lock_alone` is bounded by them.
    """
    return " AND ".join(f"pg_advisory_xact_lock_shared({_lock_key(name)}) IS NOT NULL" for name in sorted(names))


def lock_alone(names: Iterable[str]) -> str:
    """The same for a transaction that is the only one to hold them."""
    return " AND ".join(f"pg_advisory_xact_lock({_lock_key(name)}) IS NOT NULL" for name in sorted(names))


def _lock_key(name: str) -> int:
    return int.from_bytes(sha256(f"oncegate inbox {name}".encode()).digest()[:8], "big", signed=True)


def clock(connection: Connection, seconds: float = 0.0) -> TextClause:
    """The database's time, so many seconds later: `CLOCK`, as a part of a statement."""
    return text(CLOCK[connection.dialect.name].format(f"{seconds:.3f}"))
