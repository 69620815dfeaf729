"""The meaning of an exception out of a command's code: its outcome, and its description for operators and the log."""

import asyncio
import traceback
from pathlib import Path
from typing import Final

from oncegate.cache.record import State
from oncegate.middleware.outcome.errors import ENDS_PROCESS, NotProcessed, OutcomeUnknown

MAX_MESSAGE_CHARACTERS: Final = 8192
"""The part of an exception's text that is kept."""
OVERDUE: Final = "ran into attempt_timeout"


def failure_of(error: BaseException) -> BaseException:
    """``error`` as that of a command's code: a cancellation that began in the code is a ``RuntimeError``, caused by it.

    Nobody has ended this task then: something that the code awaited was cancelled. As after whatever else it lets through, the
    code knew what it had done and what not, and could have dealt with it. Where the task itself is being cancelled, it could
    be anywhere, and ``error`` remains the cancellation that it is.
    """
    if not isinstance(error, asyncio.CancelledError):
        return error
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return error
    failure = RuntimeError("something in the function was cancelled")
    failure.__cause__ = error
    return failure


def is_left(error: BaseException, task: "asyncio.Future[None] | None", *, closing: bool = False) -> bool:
    """Whether ``error`` says nothing of the command: the coroutine that ``task`` runs is being closed, so that it can't await
    anything any more, or it is cancelled by the process's end (``closing``). Then nothing is recorded here: the lease lapses.
    """
    if isinstance(error, asyncio.CancelledError):
        return closing
    if not isinstance(error, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is not task
    except RuntimeError:  # no event loop runs
        return True


def outcome_of(error: BaseException, *, overdue: bool = False) -> tuple[State | None, str]:
    """The state of a command out of which ``error`` came (``None``: nothing was begun), and a note on what is unknown.

    ``error`` is a `failure_of` the command's code, which every door gives here.

    | raised | the command |
    | --- | --- |
    | `NotProcessed` | was not begun: a release |
    | `OutcomeUnknown`, ``KeyboardInterrupt``, ``SystemExit`` | may have been executed: unknown |
    | a cancellation of its task | the same: it has ended where it was |
    | anything once it is ``overdue``: cancelled by its time limit | the same, whatever it made of that |
    | anything else | failed |

    What is left when the process ends (`is_left`) has no outcome at all: nothing is recorded, its lease lapses, and until then
    nobody begins beside what may still run (in a thread, in a service behind).
    """
    if isinstance(error, NotProcessed):
        return None, ""
    kind, text = kind_and_text(error)
    if isinstance(error, OutcomeUnknown):
        return State.UNKNOWN, text
    if isinstance(error, ENDS_PROCESS):
        return State.UNKNOWN, f"raised {kind}"
    if overdue:
        return State.UNKNOWN, OVERDUE
    if isinstance(error, asyncio.CancelledError):
        return State.UNKNOWN, "was cancelled"
    return State.FAILED, ""


def kind_and_text(error: BaseException | str) -> tuple[str, str]:
    """An exception's type and text, as they are kept: bounded, and whatever its ``__str__`` makes of itself."""
    if isinstance(error, str):
        kind, message = "Error", error
    else:
        kind = type(error).__qualname__
        try:
            message = str(error)
        except BaseException:  # noqa: BLE001  # what it is must be recorded even if it can't be put into words
            message = ""
    # Lone surrogates have no UTF-8: a file's name may hold them.
    return kind, message[:MAX_MESSAGE_CHARACTERS].encode("utf-8", "backslashreplace").decode()


def kind_and_place(error: BaseException) -> str:
    """``KeyError at shop.py:12``, one line: its type and place for the log, never its text, which may quote anything."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__qualname__}{place}"
