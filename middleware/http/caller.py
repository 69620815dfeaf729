"""The caller as named by the app's own function, from the ASGI scope after authentication."""

import inspect
import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from oncegate.middleware.outcome.errors import ENDS_PROCESS
from oncegate.middleware.outcome.raised import kind_and_place
from oncegate.middleware.rules.errors import CallerFailed, CallerMissing
from oncegate.middleware.rules.key import caller_scope

log = logging.getLogger("oncegate.http")

Caller = Callable[[dict[str, Any]], str | int | UUID | None]
"""Names who sent a request, by its ASGI scope, for good: an account's number, say, not a session's. ``None`` and ``""``:
nobody is logged in. Called in the event loop, for requests with a key; must be quick, and await nothing."""

_NOBODY = "This operation needs to know its caller: log in."
_FAILED = "The caller could not be determined. Nothing was executed."


def named_caller(caller: Caller, scope: Any) -> list[bytes]:
    """The scope of the record of a request: its caller, by name. Raises `CallerMissing`, `CallerFailed`."""
    try:
        name: object = caller(scope)
        text = _text(name)
    except ENDS_PROCESS:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's code, panics of extensions too: it must not go on as nobody's
        log.error("caller raised %s", kind_and_place(error))
        raise CallerFailed(_FAILED) from None
    if text is None:
        if inspect.iscoroutine(name):
            name.close()
        log.error("caller gave a %s: give a str, an int, a UUID or None", type(name).__qualname__)
        raise CallerFailed(_FAILED)
    parts = caller_scope(text)
    if parts is None:
        raise CallerMissing(_NOBODY)
    return parts


def _text(name: object) -> str | None:
    """A name as text, empty for nobody's; ``None`` for what can't be one. No bool, which only says whether there is a user."""
    if name is None:
        return ""
    return str(name) if isinstance(name, str | int | UUID) and not isinstance(name, bool) else None
