"""The app's own functions: ``caller`` names who sent a request, ``redact`` chooses what is kept of its response.

What they return is checked; what they raise is logged. The first client gets the response as the app made it, a retry what was
kept. Where ``redact`` raises, or returns no response, only the attempt's end is recorded: no retry executes it again.
"""

import inspect
import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from oncegate.cache.record import StoredResponse
from oncegate.middleware.outcome.errors import ENDS_PROCESS
from oncegate.middleware.outcome.raised import kind_and_place
from oncegate.middleware.outcome.results import checked_response
from oncegate.middleware.rules.errors import CallerFailed, CallerMissing
from oncegate.middleware.rules.headers.request_id import ids
from oncegate.middleware.rules.keys.key import caller_scope
from oncegate.middleware.rules.policy import Policy

log = logging.getLogger("oncegate.http")

Caller = Callable[[dict[str, Any]], str | int | UUID | None]
"""Names who sent a request, by its ASGI scope, for good: by an account's number, not a session's. ``None`` and ``""``:
nobody is logged in. Called in the event loop, for requests with a key; must be quick, and await nothing."""

_NOBODY = "This operation needs to know its caller: log in."
_FAILED = "The caller could not be determined. Nothing was executed."

Redact = Callable[[dict[str, Any], StoredResponse], StoredResponse | None]
"""Gives what is to be kept of a response to a request, by its ASGI scope: the same, another one, or ``None``, for nothing but
that the request was executed. Called in the event loop; must be quick, and await nothing."""


def named_caller(caller: Caller, scope: Any, policy: Policy) -> list[bytes]:
    """The scope of the record of a request: its caller, by name. Raises `CallerMissing`, `CallerFailed`."""
    try:
        name: object = caller(scope)
        text = _text(name)
    except ENDS_PROCESS:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's code, panics of extensions too: it must not go on as nobody's
        log.error("caller raised %s", kind_and_place(error), extra=ids(scope, policy.unshown))
        raise CallerFailed(_FAILED) from None
    if text is None:
        if inspect.iscoroutine(name):
            name.close()
        log.error(
            "caller gave a %s: give a str, an int, a UUID or None",
            type(name).__qualname__,
            extra=ids(scope, policy.unshown),
        )
        raise CallerFailed(_FAILED)
    parts = caller_scope(text)
    if parts is None:
        raise CallerMissing(_NOBODY)
    return parts


def _text(name: object) -> str | None:
    """A name as text, empty for nobody's; ``None`` for what can't be one, a bool for instance."""
    if name is None:
        return ""
    return str(name) if isinstance(name, str | int | UUID) and not isinstance(name, bool) else None


def redacted(
    redact: Redact,
    scope: dict[str, Any],
    response: StoredResponse,
    policy: Policy,
    record: str,
    about: Callable[[], dict[str, str]],
) -> StoredResponse | None:
    """The response to keep: that of ``redact`` for ``response``, ``None`` where it fails. Raises only what ends the process.

    ``about`` gives what a line of the log about the request carries.
    """
    try:
        given: object = redact(scope, response)
        if given is None or given is response:
            return response if given is response else None
        if inspect.iscoroutine(given):
            given.close()
        return _checked(given, response, policy)
    except ENDS_PROCESS:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's code; the app has done its work, and that must stay known
        log.error(
            "record %s: nothing of its response is kept: redact raised %s", record, kind_and_place(error), extra=about()
        )
        return None


def _checked(given: object, response: StoredResponse, policy: Policy) -> StoredResponse:
    """``given`` as it can be replayed. Raises ``TypeError`` or ``ValueError`` for what can't."""
    if not isinstance(given, StoredResponse):
        raise TypeError("give a StoredResponse, or None")
    status, lines, body, completed_at_ms = checked_response(*given[:3], response.completed_at_ms)
    if body is not None and len(body) > policy.max_result:
        body = None
    # As of the app's own response: what is of the moment, or ours, is not kept.
    headers = [line for line in lines if line[0] not in policy.unstored]
    if body is not None and body != response.body:
        length = b"%d" % len(body)
        headers = [(name, length if name == b"content-length" else value) for name, value in headers]
    return StoredResponse(status, tuple(headers), body, completed_at_ms)
