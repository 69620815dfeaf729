"""What a hook is still to record of a parked message, as it is stored with its row: its state, and its result or error."""

from typing import Any

import orjson
from sqlalchemy import Row

from oncegate.cache.record import State
from oncegate.middleware.consumers.transactional import LateOutcome
from oncegate.middleware.outcome.results import error_form


def outcome_of_result(result: str | None) -> str:
    """A success; without a ``result``, in JSON, it could not be kept."""
    return orjson.dumps([State.SUCCEEDED.value, result]).decode()


def outcome_of_error(error: Exception) -> str:
    """A failure for good."""
    return orjson.dumps([State.FAILED.value, error_form(error, dead=True).decode()]).decode()


def late_outcome(row: Row[Any]) -> LateOutcome:
    """As the hook records it, of a row that has one."""
    state, body = orjson.loads(row.outcome)
    body = None if body is None else body.encode()
    return LateOutcome(row.message, row.fingerprint, row.submitted, State(state), body)
