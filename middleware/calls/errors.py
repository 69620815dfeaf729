"""The errors of `CommandProcessor.process`."""

from typing import Any

from oncegate.cache.errors import OncegateError
from oncegate.middleware.outcome.errors import OutcomeUnknown, reduced
from oncegate.middleware.outcome.problems import RETRY_AFTER_SECONDS


class ProcessError(OncegateError):
    """The reason why a command was not executed. ``record`` is its record's id; ``retryable``: the same call may be repeated."""

    retryable = False

    def __init__(self, message: str, record: str) -> None:
        super().__init__(message)
        self.record = record

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


class DuplicateCommandError(ProcessError):
    """The key has succeeded already. ``original_result`` is its result; ``None``, and ``omitted``, where it was not kept."""

    def __init__(self, message: str, record: str, original_result: Any, *, omitted: bool) -> None:
        super().__init__(message, record)
        self.original_result = original_result
        self.omitted = omitted


class KeyReusedError(ProcessError):
    """The key was used for another command."""


class InFlightError(ProcessError):
    """The first call with this key is still executing: make the same call again after ``retry_after`` seconds."""

    retryable = True
    retry_after = RETRY_AFTER_SECONDS


class OutcomeUnknownError(ProcessError, OutcomeUnknown):
    """An `OutcomeUnknown` of a call under a key: it ran out of time, or an earlier one may have been executed, and
    ``on_unknown`` is to refuse.
    """


class CommandFailedError(ProcessError):
    """An earlier call's exception, under ``on_error = "replay"`` or while this one waited: ``kind`` is its type's name."""

    def __init__(self, kind: str, message: str, record: str) -> None:
        super().__init__(message, record)
        self.kind = kind
