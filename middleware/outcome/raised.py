"""What an exception out of a command's code says of the command; and how it is described, to operators and in the log."""

import asyncio
import traceback
from pathlib import Path
from typing import Final

from oncegate.cache.record import State
from oncegate.middleware.outcome.errors import ENDS_PROCESS, NotProcessed, OutcomeUnknown

MAX_MESSAGE_CHARACTERS: Final = 8192
"""Of an exception's text that is kept."""
OVERDUE: Final = "ran into attempt_timeout"


def outcome_of(error: BaseException, *, overdue: bool = False) -> tuple[State | None, str]:
    """The state of a command out of which ``error`` came (``None``: nothing was begun), and a note on what is unknown.

    | raised | the command |
    | --- | --- |
    | `NotProcessed` | was not begun: a release |
    | `OutcomeUnknown`, ``KeyboardInterrupt``, ``SystemExit`` | may have been executed: unknown |
    | a cancellation | the same: it has ended where it was |
    | anything once it is ``overdue``: cancelled by its time limit | the same, whatever it made of that |
    | anything else | failed |

    What is left when the process ends has no outcome at all: nothing is recorded, its lease lapses, and until then nobody
    begins beside what may still run (in a thread, in a service behind). So who is cancelled for that doesn't ask here.
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
