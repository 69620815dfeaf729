"""The time limits that a statement sets for its transaction, on PostgreSQL."""

from typing import Final

_LIMIT: Final = """\
CASE current_setting('{setting}') WHEN '0' THEN set_config('{setting}', '{milliseconds}', true)
    ELSE current_setting('{setting}') END IS NOT NULL"""
"""True, once ``setting`` is set for this transaction; one that the session has stays. 0 is "no limit" in PostgreSQL."""


def limits_of(wait_timeout: float, idle_timeout: float) -> str:
    """A condition that is true, and has set both limits (s). In a query of its own it is done once, and not for each row."""
    limits = {"lock_timeout": wait_timeout, "idle_in_transaction_session_timeout": idle_timeout}
    return " AND ".join(
        _LIMIT.format(setting=setting, milliseconds=max(1, round(seconds * 1000)))
        for setting, seconds in limits.items()
    )
