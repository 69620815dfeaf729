"""The gate: what a claim's answer means under a policy. Pure: it awaits nothing and knows neither HTTP nor a store."""
# Compiled: docs/decisions/0012-compiled.md

import enum
from typing import Final

from oncegate.cache.record import Record, State
from oncegate.middleware.rules.keys.key import same_operation


class GateDecision(enum.StrEnum):
    """The gate's decision on a request."""

    RUN = "first"
    """The claim was won: execute the command."""
    REPLAY = "replayed"
    """Give the stored result."""
    DUPLICATE = "duplicate"
    """The result is there, but is not to be given as this request's own: answer with an error that carries it."""
    IN_FLIGHT = "in-flight"
    """Another attempt is executing."""
    MISMATCH = "key-reused"
    """The key was used for another request."""
    REFUSE = "outcome-unknown"
    """Nobody knows what the last attempt did, and the policy is not to try again."""
    BYPASS = "bypass"
    """Not enforced: no key, or no cache under ``fail_open``."""


# Members of an enumeration take long to look up, and every replay is decided here.
_IN_FLIGHT: Final = State.IN_FLIGHT
_SUCCEEDED: Final = State.SUCCEEDED
_UNKNOWN: Final = State.UNKNOWN
_REPLAY: Final = GateDecision.REPLAY


def decide(record: Record, fingerprint: bytes, *, warn_on_mismatch: bool, raise_on_duplicate: bool) -> GateDecision:
    """The decision by a ``record`` that the claim did not win.

    A mismatch guards every state; only a succeeded record may be replayed for another payload, only where the policy is to
    warn, and never for another method or path. A result whose body was not kept can't be replayed: it is a duplicate.
    """
    state = record.state
    if record.fingerprint != fingerprint:
        forgiven = warn_on_mismatch and state is _SUCCEEDED and same_operation(record.fingerprint, fingerprint)
        if not forgiven:
            return GateDecision.MISMATCH
    if state is _IN_FLIGHT:
        return GateDecision.IN_FLIGHT
    if state is _UNKNOWN:  # where the policy is to try again, the claim has taken it over, and nobody comes here
        return GateDecision.REFUSE
    if record.ready is None and (record.response is None or record.response.body is None):
        return GateDecision.DUPLICATE
    return GateDecision.DUPLICATE if raise_on_duplicate and state is _SUCCEEDED else _REPLAY
