"""Executes commands by forwarding them to an HTTP service with the gateway's own forwarder, which knows whether the service
can have acted.

What an answer means for a command (``[routes.status]`` overrides the kind of a status, or of a class):

| kind | by default | the command |
| --- | --- | --- |
| success | 2xx, 3xx but for 307, 308 | is done; the answer is its result |
| failure | 4xx | is refused for good: a dead letter |
| failure | 5xx | is tried again |
| release, unknown | 307, 308, 401, 403, 408, 425, 429; 502, 504 | is tried again |
| no connection | | is tried again, and it counts as no attempt |
| no answer | | is tried again: whether it was executed, the service knows, by the key |

A service may have a gateway of its own. A problem with a ``code`` comes from that gateway, not from the service: the table
does not apply to it.

| its problem | the command |
| --- | --- |
| ``in-flight``, and others after which nothing was executed | is tried again, and it counts as no attempt |
| ``duplicate`` | ended there before: its original result is judged instead |
| any other that is ``retryable`` | is tried again, whatever its status |
"""

import asyncio
from base64 import b64decode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

import orjson

from oncegate.app.commands.executor import CommandFailed, CommandPutOff, CommandRefused, Confirm
from oncegate.app.upstream.forward import Forwarder
from oncegate.cache.record import State, StoredResponse
from oncegate.cache.redis.streams.stream import Command
from oncegate.middleware.consumers.command_context import CommandContext
from oncegate.middleware.http.asgi import SCOPE_EXTENSION, AttemptView, Message, Receive
from oncegate.middleware.http.capture import Capture
from oncegate.middleware.outcome import responses
from oncegate.middleware.outcome.errors import OutcomeUnknown
from oncegate.middleware.rules.keys.key import key_line
from oncegate.middleware.rules.policies import Policies
from oncegate.middleware.rules.policy import Policy

_VISIBLE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
"""Characters that stand for themselves in the field that names the aggregate: blanks at its ends, say, would be lost."""


class ForwardedCommands:
    """The `oncegate.app.commands.executor.Executor` that sends each command on by ``forwarder``, with ``headers`` added.

    ``policies`` say what an answer means, and how large a result may be.
    """

    can_be_cut = True
    loggable = True

    def __init__(self, forwarder: Forwarder, policies: Policies, headers: Mapping[str, str]) -> None:
        self._forwarder = forwarder
        self._policies = policies
        self._headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def execute(self, command: Command, context: CommandContext, confirm: Confirm) -> StoredResponse:
        """See `oncegate.app.commands.executor.Executor.execute`."""
        path, _, query = command.target.partition("?")
        policy = self._policies.match(command.method, unquote(path), path.encode()) or self._policies.all()[-1]
        capture = Capture(policy.settings.max_result)
        capture.leave()  # there is no client: the answer is read at the service's pace
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": command.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode("latin-1"),
            "query_string": query.encode("latin-1"),
            "headers": self._fields(command, context, policy),
            "extensions": {SCOPE_EXTENSION: AttemptView(context.attempt, context.record, confirm)},
        }
        await self._forwarder(scope, _once(command.body), capture.send)
        if not capture.whole:
            raise OutcomeUnknown("the service's answer broke off")
        if _only_accepted(capture, command):
            raise CommandRefused(
                "forward names the gateway that accepted the command, not the service behind it", status=202
            )
        return judge(capture, policy)

    async def close(self) -> None:
        """See `oncegate.app.commands.executor.Executor.close`."""
        await self._forwarder.close()

    def _fields(self, command: Command, context: CommandContext, policy: Policy) -> list[tuple[bytes, bytes]]:
        travelled = command.headers or (("content-type", command.content_type),)
        if context.traceparent != command.traceparent:  # traced here: what the service does is a part of this attempt
            travelled = tuple([field for field in travelled if field[0] != "traceparent"])
        fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in travelled]
        names = {name for name, _ in fields}
        others = [
            (b"x-correlation-id", command.correlation.encode("latin-1")),
            (b"traceparent", context.traceparent.encode("latin-1")),
        ]
        if names.isdisjoint(policy.key_names):  # else it goes on as it came, quoted or not
            others.append((policy.key_names[0], key_line(command.key).encode()))
        if command.sequence is not None:
            numbered = [
                (b"oncegate-aggregate", quote(command.aggregate, safe=_VISIBLE).encode()),
                (b"oncegate-sequence", b"%d" % command.sequence),
            ]
            fields = [field for field in fields if field[0] not in dict(numbered)] + numbered
        own = {name for name, _ in self._headers}
        return [
            *[field for field in fields if field[1] and field[0] not in own],
            *[field for field in others if field[1] and field[0] not in names | own],
            (b"idempotency-attempt", b"%d" % context.attempt),
            (b"content-length", b"%d" % len(command.body)),
            *self._headers,
        ]


def _only_accepted(capture: Capture, command: Command) -> bool:
    """Whether this is the gateway's own 202 for the very same command: to take that for its result would lose it."""
    place = f"/commands/{command.command}".encode()
    return capture.status == 202 and any(
        name == b"location" and value.endswith(place) for name, value in capture.headers
    )


def _once(body: bytes) -> Receive:
    """ASGI ``receive`` for a whole body: there is no client that could leave after it."""
    given = False

    async def receive() -> Message:
        nonlocal given
        if given:
            await asyncio.get_running_loop().create_future()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


_LONGEST_DELAY = 86400
_PROBLEM = b"application/problem+json"
_NOTHING_EXECUTED = frozenset(
    ("in-flight", "overloaded", "too-many-keys", "cache-unavailable", "request-timeout", "upstream-unreachable")
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
    stored = responses.stored(capture.status, capture.headers, capture.body, policy.unstored)
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
