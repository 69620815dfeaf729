"""Redaction: an app's own function changes a response before it is recorded, not the one that the first client gets.

The first client gets the response as the app made it; a retry gets what was kept. What the function returns is checked,
since it is replayed as it is. Where it raises, or returns no response, the record says only that the
attempt has ended: no retry executes it again, and nothing is kept that should not be.
"""

import inspect
import logging
import re
from collections.abc import Callable
from typing import Any, Final

from oncegate.cache.codec import BODILESS
from oncegate.cache.record import StoredResponse
from oncegate.middleware.outcome.errors import ENDS_PROCESS
from oncegate.middleware.outcome.raised import kind_and_place
from oncegate.middleware.rules.policy import Policy

log = logging.getLogger("oncegate.http")

Redact = Callable[[dict[str, Any], StoredResponse], StoredResponse | None]
"""Gives what is to be kept of a response to a request, by its ASGI scope: the same, another one, or ``None``, for nothing but
that the request was executed. Called in the event loop; must be quick, and await nothing."""

_is_name: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
_is_value: Final = re.compile(rb"(?:[!-~\x80-\xff](?:[ \t!-~\x80-\xff]*[!-~\x80-\xff])?)?").fullmatch
"""RFC 9110 section 5.5: no CR, LF or NUL, and no white space around it."""


def redacted(
    redact: Redact, scope: dict[str, Any], response: StoredResponse, policy: Policy, record: str
) -> StoredResponse | None:
    """The response to keep: that of ``redact`` for ``response``, ``None`` where it fails. Raises only what ends the process."""
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
        log.error("record %s: nothing of its response is kept: redact raised %s", record, kind_and_place(error))
        return None


def _checked(given: object, response: StoredResponse, policy: Policy) -> StoredResponse:
    """``given`` as it can be replayed. Raises ``TypeError`` or ``ValueError`` for what can't."""
    if not isinstance(given, StoredResponse):
        raise TypeError("give a StoredResponse, or None")
    status = given.status
    if type(status) is not int or not 200 <= status <= 599:
        raise ValueError("its status is none")
    body = None if given.body is None else bytes(memoryview(given.body))
    if body and status in BODILESS:
        raise ValueError("it can have no body")
    if body is not None and len(body) > policy.max_response_body:
        body = None
    headers = [_line(name, value) for name, value in given.headers]
    # As of the app's own response: what is of the moment, or ours, is not kept.
    headers = [line for line in headers if line[0] not in policy.unstored]
    if body is not None and body != response.body:
        length = b"%d" % len(body)
        headers = [(name, length if name == b"content-length" else value) for name, value in headers]
    return StoredResponse(status, tuple(headers), body, response.completed_at_ms)


def _line(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    if not _is_name(name) or not _is_value(value):
        raise ValueError("a header is not one")
    return bytes(name).lower(), bytes(value)
