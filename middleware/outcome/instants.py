"""Instants as people read them: the one place that writes them, since what was stored may be of no year that can be written."""

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def instant(unix_ms: int) -> str | None:
    """Unix time as RFC 3339 spells it; ``None`` where it isn't known (0), or is in no year from 1 to 9999."""
    if not unix_ms:
        return None
    try:
        return (_EPOCH + timedelta(milliseconds=unix_ms)).isoformat(timespec="milliseconds")
    except OverflowError:  # made up: what it belongs to is shown all the same
        return None
