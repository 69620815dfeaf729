"""The executor interface: what a worker hands a command to, how the command's context is made, and the errors it may raise."""

from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from oncegate.cache.record import StoredResponse
from oncegate.cache.redis.streams.stream import Command
from oncegate.middleware.consumers.command_context import CommandContext
from oncegate.middleware.outcome.errors import NotProcessed, NotRetryable
from oncegate.middleware.rules.keys.key import caller_of_id

Confirm = Callable[[], Awaitable[None]]


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
    """An executor of commands, several at a time.

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
