"""Executes commands by forwarding them to an HTTP service with the gateway's own forwarder, which knows whether the service
can have acted.

What an answer means for a command (``[routes.status]`` overrides the kind of a status):

| kind | by default | the command |
| --- | --- | --- |
| success | 2xx, 3xx | is done; the answer is its result |
| failure | 4xx | is refused for good: a dead letter |
| failure | 5xx | is tried again |
| release, unknown | 401, 403, 408, 425, 429; 502, 504 | is tried again |
| no connection | | is tried again, and it counts as no attempt |
| no answer | | is tried again: whether it was executed, the service knows, by the key |
"""

import asyncio
from collections.abc import Mapping
from urllib.parse import unquote

from oncegate.app.commands.executor import CommandContext, CommandRefused, Confirm
from oncegate.app.commands.forwarded_answer import judge
from oncegate.app.upstream.forward import Forwarder
from oncegate.cache.record import StoredResponse
from oncegate.cache.redis.streams.stream import Command
from oncegate.middleware.http.asgi import Message, Receive
from oncegate.middleware.http.capture import Capture
from oncegate.middleware.http.extensions import SCOPE_EXTENSION, AttemptView
from oncegate.middleware.outcome.errors import OutcomeUnknown
from oncegate.middleware.rules.key import key_line
from oncegate.middleware.rules.policy import Policies, Policy


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
        capture = Capture(policy.settings.max_response_body)
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
        fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in travelled]
        names = {name for name, _ in fields}
        others = [
            (b"x-correlation-id", command.correlation.encode("latin-1")),
            (b"traceparent", command.traceparent.encode("latin-1")),
        ]
        if names.isdisjoint(policy.key_names):  # else it goes on as it came, quoted or not
            others.append((policy.key_names[0], key_line(command.key).encode()))
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
