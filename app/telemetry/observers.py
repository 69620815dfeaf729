"""Observers of answered requests: the one that writes a line to the log, and two as one."""
# Compiled: docs/decisions/0012-compiled.md

import logging
from typing import TYPE_CHECKING, Final

from oncegate.middleware.admission.observe import SHADOW, Observation
from oncegate.middleware.http.door import Observing

if TYPE_CHECKING:
    from oncegate.middleware.http.enter import Bypass
    from oncegate.middleware.http.keyed_request import KeyedRequest

log: Final = logging.getLogger("oncegate.request")

QUIET: Final = frozenset({"first", "replayed", "bypass"})
"""Usual decisions: logged at debug. All others are problems, whose ``record`` can be found in the log."""


def logged(observation: Observation, request: "KeyedRequest | Bypass") -> None:
    """Log one enforced request. One that was observed has a line of its own (`oncegate.middleware.http.observed.shadow`)."""
    level = logging.DEBUG if observation.decision in QUIET else logging.INFO
    if log.level > level:  # seen sooner than what is enabled
        return
    if log.isEnabledFor(level) and observation.mode != SHADOW:
        log.log(
            level,
            "%s -> %d",
            observation.decision,
            observation.status,
            extra={
                "decision": observation.decision,
                "status": observation.status,
                "attempt": observation.attempt,
                "record": observation.record,
                "route": observation.route,
                "method": observation.method,
                "seconds": round(observation.seconds, 6),
                **request.ids(),
            },
        )


def both(first: Observing, second: Observing) -> Observing:
    """One after the other."""

    def observe(observation: Observation, request: "KeyedRequest | Bypass") -> None:
        first(observation, request)
        second(observation, request)

    return observe
