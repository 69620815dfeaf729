"""The executor interface: what a worker hands a command to, the command's context, and the errors it may raise."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from oncegate.cache.record import StoredResponse
from oncegate.cache.redis.streams.stream import Command
from oncegate.middleware.outcome.errors import NotProcessed, NotRetryable
from oncegate.middleware.rules.key import caller_of_id, key_line

Confirm = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class CommandContext:
    """What a handler may know about the command, besides its payload.

    ``key`` is the caller's idempotency key: pass it on to whatever is called on the command's behalf (see ``headers``).
    ``record`` is the record's id, fit for logs, and ``entry`` the id in the stream. ``attempt`` counts from 1. ``method`` and
    ``target`` are those of the request, as they were sent, and ``route`` is the pattern that it matched; ``caller`` is the digest
    of the scope's headers, which are unchecked unless something in front of the gateway did that. ``request_headers`` are the
    lines that travelled with the command, names in lower case: ``content-*``, the key's, those of ``forward_request_headers``.
    ``aggregate`` is the id of what the command is about, and ``sequence`` its number among the commands about that, ``None``
    where its route has no ``aggregate``.
    What the request didn't have is empty.
    """

    key: str
    record: str
    entry: str
    attempt: int
    method: str
    target: str
    content_type: str = ""
    correlation: str = ""
    traceparent: str = ""
    route: str = ""
    caller: str = ""
    request_headers: tuple[tuple[str, str], ...] = ()
    aggregate: str = ""
    sequence: int | None = None

    def request_header(self, name: str) -> str:
        """The value of one of ``request_headers``, of several lines joined by commas; empty without one."""
        return ", ".join(value for found, value in self.request_headers if found == name.lower())

    @property
    def headers(self) -> dict[str, str]:
        """The fields to send along to a service that is called for this command: by the key, it can recognise a repetition."""
        fields = {
            "Idempotency-Key": key_line(self.key),
            "Idempotency-Attempt": str(self.attempt),
            "X-Correlation-ID": self.correlation,
            "traceparent": self.traceparent,
        }
        return {name: value for name, value in fields.items() if value}


def context_of(command: Command, entry: str, attempt: int, nameless: Collection[str]) -> CommandContext:
    """The context of ``command``, which is in the stream as ``entry``. ``nameless`` is how no caller is spelled in ids."""
    caller = caller_of_id(command.command)
    return CommandContext(
        key=command.key,
        record=command.command,
        entry=entry,
        attempt=attempt,
        method=command.method,
        target=command.target,
        content_type=command.content_type,
        correlation=command.correlation,
        traceparent=command.traceparent,
        route=command.route,
        caller="" if caller in nameless else caller,
        request_headers=command.headers,
        aggregate=command.aggregate,
        sequence=command.sequence,
    )


class CommandRefused(NotRetryable):
    """The executor has refused this command for good. ``status`` is recorded, as that of a response."""

    def __init__(self, text: str, *, status: int) -> None:
        super().__init__(text)
        self.status = status


class CommandPutOff(NotProcessed):
    """Nothing was executed, and that counts as no attempt: try it again ``after`` seconds from now at the earliest."""

    def __init__(self, text: str, *, after: float = 0.0) -> None:
        super().__init__(text)
        self.after = after


class CommandFailed(Exception):
    """The command was not processed, and is to be tried again: ``after`` seconds from now at the earliest."""

    def __init__(self, text: str, *, status: int = 500, after: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.after = after


class Executor(Protocol):
    """Executes commands, several at a time.

    ``can_be_cut``: an execution can be cancelled when its time is over. ``loggable``: the texts of its errors are ours, and
    hold nothing of a command.
    """

    can_be_cut: bool
    loggable: bool

    async def execute(self, command: Command, context: CommandContext, confirm: Confirm) -> StoredResponse:
        """Execute the command. What is returned is kept as its result.

        ``confirm`` is awaited right before the effect; it raises `NotProcessed` where another owner has taken over.
        Raises that too where nothing was begun (it counts as no attempt), `NotRetryable` (never again), `OutcomeUnknown`, or
        anything else: tried again. ``KeyboardInterrupt`` and ``SystemExit`` end the worker: the outcome is unknown.
        """
        ...

    async def close(self) -> None:
        """Release its resources. Does not wait for what still runs."""
        ...
