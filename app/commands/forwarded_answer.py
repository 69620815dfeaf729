"""Interprets a service's answer to a forwarded command. Pure: it awaits nothing.

A service may have a gateway of its own. A problem with a ``code`` comes from that gateway, not from the service: the table
of statuses (`oncegate.app.commands.forward`) does not apply to it.

| its problem | the command |
| --- | --- |
| ``in-flight``, and others after which nothing was executed | is tried again, and it counts as no attempt |
| ``duplicate`` | ended there before: its original result is judged instead |
| any other that is ``retryable`` | is tried again, whatever its status |
"""

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import orjson

from oncegate.app.commands.executor import CommandFailed, CommandPutOff, CommandRefused
from oncegate.cache.record import State, StoredResponse
from oncegate.middleware.http.capture import Capture
from oncegate.middleware.outcome import responses
from oncegate.middleware.rules.policy import Policy

_LONGEST_DELAY = 86400
_PROBLEM = b"application/problem+json"
_NOTHING_EXECUTED = frozenset(
    ("in-flight", "overloaded", "cache-unavailable", "request-timeout", "upstream-unreachable")
)
"""The codes after which this request was not executed: an earlier one is, or none."""


def judge(capture: Capture, policy: Policy) -> StoredResponse:
    """The result, where ``policy`` takes the answer for one. Raises `CommandPutOff`, `CommandRefused` or `CommandFailed`."""
    problem = _problem(capture)
    code, after = problem.get("code"), _delay(capture)
    if code == "duplicate":
        original = _original(problem.get("original_result"))
        if original is not None:
            return _judged(original.status, original, policy, after)
    if problem.get("retryable") is True:
        text = f"the service answered with status {capture.status}"
        if code in _NOTHING_EXECUTED:
            raise CommandPutOff(f"{text}, {code}", after=after)
        raise CommandFailed(text, status=capture.status, after=after)
    stored = responses.stored(capture.status, capture.headers, capture.body, policy)
    return _judged(capture.status, stored, policy, after)


def _judged(status: int, stored: StoredResponse, policy: Policy, after: float) -> StoredResponse:
    state = policy.state(status)
    if state is State.SUCCEEDED:
        return stored
    if state is State.FAILED and 400 <= status < 500:
        raise CommandRefused(f"the service refused the command with status {status}", status=status)
    raise CommandFailed(f"the service answered with status {status}", status=status, after=after)


def _problem(capture: Capture) -> Mapping[str, Any]:
    """The members of a problem (RFC 9457); nothing where the answer is none."""
    kinds = [value.partition(b";")[0].strip().lower() for name, value in capture.headers if name == b"content-type"]
    if kinds != [_PROBLEM] or capture.status < 400 or not capture.body:
        return {}
    try:
        members = orjson.loads(capture.body)
    except ValueError:
        return {}
    return members if isinstance(members, dict) else {}


def _original(result: object) -> StoredResponse | None:
    """The response in a problem's original result (`oncegate.middleware.outcome.problems`); ``None``: it can't be read."""
    if not isinstance(result, dict):
        return None
    try:
        headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in result["headers"])
        status = int(result["status"])
        return StoredResponse(status, headers, _body(result), responses.now_ms())
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _body(result: Mapping[str, Any]) -> bytes | None:
    if "body" not in result:
        return None
    body = result["body"]
    if result.get("body_encoding") == "base64":
        return b64decode(body, validate=True)
    return body.encode() if isinstance(body, str) else orjson.dumps(body)


def _delay(capture: Capture) -> float:
    """The seconds of a Retry-After field (RFC 9110 section 10.2.3); its other form, a date, is not read."""
    for name, value in capture.headers:
        if name == b"retry-after" and value.isdigit():
            return float(min(int(value[:9]), _LONGEST_DELAY))
    return 0.0
