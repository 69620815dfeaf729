"""Makes of a handler of a payload and a session one of the payload alone, which begins and commits the session's transaction."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import sessionmaker
from sqlalchemy.util import await_only

from oncegate.middleware.consumers.transactional import Executed
from oncegate.sql.handlers.batch import Batch
from oncegate.sql.handlers.transaction import Marks, execute, is_result

Handler = Callable[..., Any]


def called(inbox: Marks, sessions: sessionmaker[Any], handler: Handler) -> Handler:
    """Of a plain function."""
    name = session_parameter(handler)

    def handle(*args: Any, **kwargs: Any) -> Any:
        with sessions() as session:
            return execute(session, inbox, with_session(handler, name, session, args, kwargs), is_result).result

    return handle


def awaited(inbox: Marks, sessions: async_sessionmaker[Any], handler: Handler) -> Handler:
    """Of a coroutine function."""
    name = session_parameter(handler)

    async def handle(*args: Any, **kwargs: Any) -> Any:
        def call(session: AsyncSession) -> Any:
            return with_session(handler, name, session, args, kwargs)()

        return (await execute_awaited(inbox, sessions, call, is_result)).result

    return handle


async def execute_awaited(
    inbox: Marks,
    sessions: async_sessionmaker[Any],
    handler: Callable[[Any], Awaitable[Any]],
    keeps: Callable[[Any], bool],
) -> Executed:
    """`execute` in a session of asyncio's."""
    async with sessions() as session:
        executed: Executed = await session.run_sync(execute, inbox, lambda: await_only(handler(session)), keeps)
        return executed


def called_batch(inbox: Marks, sessions: sessionmaker[Any], handler: Handler) -> Handler:
    """Of a plain function for batches."""
    session_parameter(handler)

    def handle(payloads: Sequence[Any], *args: Any) -> list[Any]:
        batch = Batch(inbox, payloads)
        for part in batch.parts():
            with sessions() as session:

                def call(chosen: list[Any], session: Any = session) -> Any:
                    return handler(chosen, session, *args)

                batch.execute(session, part, call)
        return batch.outcomes

    return handle


def awaited_batch(inbox: Marks, sessions: async_sessionmaker[Any], handler: Handler) -> Handler:
    """Of a coroutine function for batches."""
    session_parameter(handler)

    async def handle(payloads: Sequence[Any], *args: Any) -> list[Any]:
        batch = Batch(inbox, payloads)
        for part in batch.parts():
            async with sessions() as session:

                def call(chosen: list[Any], session: AsyncSession = session) -> Any:
                    return await_only(handler(chosen, session, *args))

                await session.run_sync(batch.execute, part, call)
        return batch.outcomes

    return handle


def without_session(handler: Handler, made: Handler) -> Handler:
    """``made`` with the name, and the signature without its session, of ``handler``."""
    functools.update_wrapper(made, handler)
    signature, session = inspect.signature(handler), session_parameter(handler)
    left = [each for each in signature.parameters.values() if each.name != session]
    made.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]  # inspect's own way
    annotations = getattr(handler, "__annotations__", {})
    made.__annotations__ = {name: kind for name, kind in annotations.items() if name != session}
    return made


def session_parameter(handler: Handler) -> str:
    """The name of a handler's second parameter. Raises ``TypeError`` where it has none."""
    parameters = inspect.signature(handler).parameters.values()
    positional = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2:
        raise TypeError(f"{getattr(handler, '__qualname__', handler)} has to take the payload and the session")
    return positional[1]


def with_session(
    handler: Handler, name: str, session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], Any]:
    """The call of ``handler`` with its session: the payload may be given by its name, as FastStream does."""
    if not args:
        return functools.partial(handler, **{name: session}, **kwargs)
    return functools.partial(handler, args[0], session, *args[1:], **kwargs)
