"""Executes commands by Python handlers: imported by name, called as their signature asks, their results kept as JSON.

A handler is a function, ``async`` or not, of one or two parameters. The first is the payload: a dict by default, or what its
annotation says: a pydantic model, a dataclass, anything that pydantic can read from JSON; ``bytes``: the body as it was sent.
The second, if there is one, is the `CommandContext`.
"""

import asyncio
import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from oncegate.app.commands.executor import Confirm
from oncegate.cache.record import StoredResponse
from oncegate.cache.redis.streams.stream import Command
from oncegate.middleware.admission.observe import Watch
from oncegate.middleware.consumers.command_context import CommandContext
from oncegate.middleware.consumers.handlers.handling import current
from oncegate.middleware.consumers.handlers.sole_handler import check_kind
from oncegate.middleware.outcome.calling import call
from oncegate.middleware.outcome.errors import ENDS_PROCESS, NotRetryable
from oncegate.middleware.outcome.responses import now_ms
from oncegate.middleware.outcome.results import JsonCodec, dumped
from oncegate.middleware.rules.checks.arguments import excludes, is_async

_RESULT_HEADERS = ((b"content-type", b"application/json"),)


class HandlerError(ValueError):
    """The handler can't be used. The text is one line for the operator."""


class Handler:
    """The `Executor` that calls ``function``. ``threads`` is how many calls of one that is not ``async`` may run at once.

    A result that can't be kept as JSON is a success without a result.
    """

    loggable = False

    def __init__(self, function: Callable[..., Any], *, threads: int) -> None:
        try:
            check_kind(function)
        except TypeError as error:
            raise HandlerError(str(error)) from None
        self.function = function
        self.maintained: Callable[..., AbstractAsyncContextManager[None]] | None = getattr(function, "maintained", None)
        """Has its inbox forget old markers, where it has one: `oncegate.sql.Inbox.maintained`."""
        self.following: Callable[[], AbstractAsyncContextManager[None]] | None = getattr(function, "following", None)
        """Has its inbox run parked messages whose turn has come, where it has one: `oncegate.sql.Inbox.following`."""
        self.watched_by: Callable[[Watch], None] | None = getattr(function, "watched_by", None)
        """Has its inbox notify a watch, where it has an inbox, and that none of its own."""
        self._takes_context, payload = _signature(function)
        self._raw = payload is bytes
        try:
            self._payload: TypeAdapter[Any] = TypeAdapter(payload)
        except Exception as error:  # noqa: BLE001  # whatever pydantic makes of somebody's type
            raise HandlerError(f"its first parameter's type can't be read from JSON ({type(error).__name__})") from None
        self._results = JsonCodec(Any)
        self.can_be_cut = is_async(function)  # a thread can't be ended
        # A pool of its own: asyncio's has five threads more than the machine has processors, however many may run here.
        self._pool = None if self.can_be_cut else ThreadPoolExecutor(threads, thread_name_prefix="handler")

    async def execute(self, command: Command, context: CommandContext, confirm: Confirm) -> StoredResponse:
        """See `Executor.execute`. A payload that does not fit is a `NotRetryable`: it will not fit the next time either."""
        coding = context.request_header("content-encoding")
        if coding.lower() not in ("", "identity") and not self._raw:
            raise NotRetryable(f"the body is encoded ({coding[:40]}), which a handler can read that takes bytes")
        payload = self._read(command.body)
        arguments = (payload, context) if self._takes_context else (payload,)
        await confirm()
        result = await _in_a_task(call(self.function, *arguments, in_loop=self.can_be_cut, pool=self._pool))
        named = ", ".join(each.named for each in current()) or context.record
        return StoredResponse(200, _RESULT_HEADERS, dumped(self._results.dump, result, named), now_ms())

    async def close(self) -> None:
        """See `Executor.close`."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, body: bytes) -> Any:
        if self._raw:
            return body
        try:
            return self._payload.validate_json(body)
        except ValidationError as error:
            first, *rest = error.errors(include_input=False, include_url=False, include_context=False)
            where = ".".join(str(part) for part in first["loc"])
            more = f" (and {len(rest)} more)" if rest else ""
            text = f"the payload does not fit: {where}: {first['msg']}{more}" if where else first["msg"] + more
            raise NotRetryable(text) from None
        except RecursionError:
            raise NotRetryable("the payload nests too deep") from None


async def _in_a_task(work: Awaitable[Any]) -> Any:
    """Await ``work`` in a task of its own: a handler that cancels its task must not end its runner, nor those who wait for it."""
    ends: list[BaseException] = []

    async def working() -> Any:
        try:
            return await work
        except ENDS_PROCESS as error:  # out of a task, it would end the event loop
            ends.append(error)

    result = await asyncio.get_running_loop().create_task(working())
    if ends:
        raise ends.pop()
    return result


def imported(name: str) -> Any:
    """The object that ``package.module:name`` names, looked for in the working directory too.

    Raises `HandlerError`, with what the module raised where it can't be imported.
    """
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise HandlerError("is named package.module:function")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a console script's own folder comes first otherwise, and the project's not at all
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # whatever a module of the user's raises while it is imported
        reason = " ".join(str(error).split())
        raise HandlerError(f"{module_name} can't be imported: {type(error).__name__}: {reason}") from error
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise HandlerError(f"{module_name} has no {path}") from None
    return found


def find_handler(name: str) -> Callable[..., Any]:
    """The function that ``package.module:function`` names, looked for in the working directory too.

    Raises `HandlerError`, with what the module raised where it can't be imported.
    """
    found = imported(name)
    if not callable(found):
        raise HandlerError(f"{name} can't be called")
    return found  # type: ignore[no-any-return]  # callable, of whatever kind


def _signature(function: Callable[..., Any]) -> tuple[bool, Any]:
    """Whether it takes the context, and the type of its payload."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = get_type_hints(
            function if inspect.isroutine(function) else type(function).__call__, include_extras=True
        )
    except (TypeError, ValueError, NameError) as error:
        raise HandlerError(f"its signature can't be read: {error}") from None
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    required = [each for each in parameters if each.default is each.empty and each.kind is each.KEYWORD_ONLY]
    if not positional or required or sum(each.default is each.empty for each in positional) > 2:
        raise HandlerError("takes one or two parameters: the payload, and the command's context")
    payload = hints.get(positional[0].name, dict[str, Any])
    if payload is dict:
        payload = dict[str, Any]
    if payload is CommandContext:
        raise HandlerError(
            "its first parameter is the payload, its second one the command's context: change their places"
        )
    second = hints.get(positional[1].name, Any) if len(positional) > 1 else Any
    takes_context = len(positional) > 1 and (
        positional[1].default is positional[1].empty or CommandContext in (second, *get_args(second))
    )
    if takes_context and excludes(second, CommandContext):
        raise HandlerError(f"its second parameter is the command's context, and is annotated {_name(second)}")
    return takes_context, payload


def _name(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)
