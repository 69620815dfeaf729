"""A command's status for its caller, derived from its two records. Pure: it awaits nothing."""

from typing import Any

from oncegate.cache.record import Record, State, StoredResponse
from oncegate.middleware.consumers.gate import is_dead
from oncegate.middleware.outcome.problems import original_result
from oncegate.middleware.outcome.results import read_error

_DETAILS = {
    "failed": "The last attempt failed. The command will be tried again.",
    "dead-lettered": "The last attempt failed and no other will follow, unless an operator drives the command again.",
    "mismatch": "Another payload was submitted under the same key and is processed in this one's place: this one never is. "
    "Submit it with a new key.",
    "unknown": "The last attempt ended without an outcome, as when its process dies: nobody knows what it has done. "
    "The command will be taken over and tried again.",
}


def is_command(submission: Record | None, execution: Record | None) -> bool:
    """Whether the records are those of a command: it was accepted, or a consumer has begun with it.

    A request that the gateway executed itself is none. Without a submission record (it lives from the 202 on, the
    execution's from the end of the processing) the execution record is enough.
    """
    if submission is None:
        return execution is not None
    return submission.submission and (submission.state is State.SUCCEEDED or execution is not None)


def is_mismatch(submission: Record | None, execution: Record | None) -> bool:
    """Whether the consumer has another payload under this key, so that it puts this one aside.

    That takes two submissions: one that was not accepted although it had reached the stream, then one with another payload; or
    one whose key was free again before its execution record was.
    """
    return submission is not None and execution is not None and submission.fingerprint != execution.fingerprint


def is_over(submission: Record | None, execution: Record | None) -> bool:
    """Whether the status is final, unless an operator steps in."""
    if execution is None:
        return False
    return is_mismatch(submission, execution) or execution.state is State.SUCCEEDED or is_dead(execution)


def describe(identifier: str, submission: Record | None, execution: Record | None) -> dict[str, Any]:
    """The members of a command's status. ``attempt`` is the number of the last attempt that was begun."""
    mismatch = is_mismatch(submission, execution)
    status = "dead-lettered" if mismatch else _status(execution)
    members: dict[str, Any] = {"command": identifier, "status": status}
    position = _member(submission.response, "position") if submission else None
    if position is not None:
        members["position"] = position
    if mismatch:
        error = {"type": "Mismatch", "message": "The key was used for another payload."}
        return members | {"detail": _DETAILS["mismatch"], "error": error}
    if execution is None:
        return members
    members["attempt"] = execution.attempt
    if status in _DETAILS:
        members["detail"] = _DETAILS[status]
    if execution.state is State.SUCCEEDED:
        members["result"] = original_result(execution.response)
    elif execution.state is State.FAILED:
        members["error"] = _error(execution.response)
    return members


def _status(execution: Record | None) -> str:
    if execution is None:
        return "accepted"
    if execution.state is State.FAILED and is_dead(execution):
        return "dead-lettered"
    return execution.state.value


def _error(response: StoredResponse | None) -> dict[str, Any]:
    """Type and text of what was raised; what an operator or another consumer wrote, as results are given."""
    kind, message = _member(response, "type"), _member(response, "message")
    return original_result(response) if kind is None or message is None else {"type": kind, "message": message}


def _member(response: StoredResponse | None, name: str) -> str | None:
    value = read_error(response).get(name)
    return value if isinstance(value, str) else None
