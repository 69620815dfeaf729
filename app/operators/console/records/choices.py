"""A choice of unknown outcomes, as an address or a form makes it."""

from collections.abc import Mapping
from typing import Final

from oncegate.app.operators.console.frame import PageRefused
from oncegate.app.operators.records.newest import CALLER_DIGEST
from oncegate.app.operators.records.unknown_changes import UnknownAt

AGES: Final = {"5m": 300, "30m": 1800, "6h": 6 * 3600, "1d": 86400, "7d": 7 * 86400}
"""The ages that may be chosen, in seconds."""
MOST_ROUTE: Final = 1000
_NAMES: Final = ("route", "caller", "since", "older")


def choice_of(given: Mapping[str, str]) -> dict[str, str]:
    """The choice among what was ``given``; empty is any. Raises `PageRefused`."""
    choice = {name: given.get(name, "") for name in _NAMES}
    if len(choice["route"]) > MOST_ROUTE:
        raise PageRefused(400, f"A route's pattern is {MOST_ROUTE} characters at most.")
    if choice["caller"] and not CALLER_DIGEST.fullmatch(choice["caller"]):
        raise PageRefused(
            400, "A caller is named by its digest: the 20 characters that a record's id has behind the colon."
        )
    for name in ("since", "older"):
        if choice[name] and choice[name] not in AGES:
            raise PageRefused(400, f"{name} is one of {', '.join(AGES)}.")
    return choice


def which_of(choice: Mapping[str, str], at_ms: int) -> UnknownAt:
    """The same, of those that were unknown at ``at_ms``, from which ages count."""
    return UnknownAt(
        at_ms,
        choice["route"] or None,
        frozenset([choice["caller"]]) if choice["caller"] else None,
        AGES.get(choice["since"], 0.0),
        AGES.get(choice["older"], 0.0),
    )
