"""Calls a user's function, ``async`` or plain, so that only what it returns or raises comes out of it."""

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from oncegate.middleware.outcome.raised import failure_of


async def call(function: Callable[..., Any], *arguments: Any, in_loop: bool, pool: Executor | None = None) -> Any:
    """The result of ``function``: called here (``in_loop``, for what `is_async`), or in a thread of ``pool``.

    A cancellation comes out where this task is being cancelled; one that begins in ``function`` is a ``RuntimeError``: see
    `failure_of`.
    """
    try:
        if in_loop:
            return await function(*arguments)
        run = contextvars.copy_context().run
        result = await asyncio.get_running_loop().run_in_executor(pool, run, _in_thread, function, arguments)
        # A plain callable around a coroutine function, a lambda or a decorator, has only begun.
        return await result if inspect.isawaitable(result) else result
    except asyncio.CancelledError as error:
        failure = failure_of(error)
        if failure is error:
            raise
        raise failure from error


def _in_thread(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except StopIteration as error:  # no future takes it: the call would never end
        raise RuntimeError("the function raised StopIteration") from error
