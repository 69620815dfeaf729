"""Says why deliveries are sent back of which nothing was begun: once in a while for the same cause, not for each delivery.

Such a delivery counts no attempt and leaves no record: without a line, a missing table or a database that is away would be
seen by nobody.
"""

import logging
import re
from time import monotonic
from typing import Final

from oncegate.middleware.outcome.errors import NotProcessed, Parked
from oncegate.middleware.outcome.raised import kind_and_text

log = logging.getLogger("oncegate.subscription")

EVERY: Final = 60.0
"""Seconds between two lines about one cause."""
_MOST_CAUSES: Final = 100
_OF_ONE_RECORD: Final = re.compile(r"record \S+")
_logged: dict[tuple[type, str], tuple[float, int]] = {}
"""The time at which each cause was last logged, and how many deliveries it has sent back since."""


def cause_of(error: NotProcessed) -> str:
    """The error in one line: its text too where it is an inbox's, which quotes nothing of a message."""
    kind, text = kind_and_text(error)
    return f"{kind}: {text}" if text and is_of_inbox(error) else kind


def is_of_inbox(error: BaseException) -> bool:
    """Whether its text is one of ours."""
    return type(error).__module__.startswith("oncegate.sql.")


def log_sent_back(named: str, error: BaseException) -> bool:
    """Log that the delivery of the record ``named`` is sent back, unless its cause was logged a while ago. Whether it was."""
    if not isinstance(error, NotProcessed) or isinstance(error, Parked):
        return False
    cause = cause_of(error)
    others = others_since(type(error), cause)
    if others is not None:
        log.warning("record %s: sent back, nothing was begun: %s%s", named, cause, others)
    return others is not None


def others_since(kind: type[BaseException], cause: str) -> str | None:
    """The end of a line about ``cause``: how many it has not been logged for; ``None`` where it was logged a while ago."""
    key = kind, _OF_ONE_RECORD.sub("", cause)
    now = monotonic()
    at, since = _logged.get(key, (0.0, 0))
    if key in _logged and now - at < EVERY:
        _logged[key] = at, since + 1
        return None
    if len(_logged) >= _MOST_CAUSES:
        _logged.clear()
    _logged[key] = now, 0
    return f" ({since} others since the last line)" if since else ""
