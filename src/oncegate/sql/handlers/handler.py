"""A handler of a payload and a session: its sessions, with asyncio and without, its call, and what is made of it for the hook."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.util import await_only, greenlet_spawn

from oncegate.middleware.consumers.sql_interface import Executed, annotations_of, current, excludes
from oncegate.sql.handlers.transaction import Marks, execute, is_result

Handler = Callable[..., Any]
Maker = sessionmaker[Any] | async_sessionmaker[Any]
Step = Callable[[Session, Any], Any]
"""Is called with a synchronous session, and with the one for the handler."""
Await = Callable[[Coroutine[Any, Any, bool]], bool]
"""Waits for what is to be done in the hook's event loop; false, too, where nobody can wait for it."""
Sweep = Callable[[], Awaitable[None]]

_SESSIONS: Final = (Session, AsyncSession, scoped_session, async_scoped_session)
"""Classes that a second parameter may be annotated with, or a base of it."""
_PATIENCE: Final = 60.0
"""Seconds for an outcome to be recorded, which takes no longer than ``record_timeout``."""


class Sessions:
    """The sessions that ``maker`` makes. Code for them is written without asyncio, and runs in SQLAlchemy's greenlet with it."""

    def __init__(self, maker: Maker) -> None:
        self.of_asyncio = isinstance(maker, async_sessionmaker)
        self._maker: Any = maker

    def within(self, step: Step, seconds: float | None = None) -> Any:
        """The result of ``step`` in a session of its own; with asyncio, after so many seconds at most."""
        if self.of_asyncio:
            return await_only(self._within(step, seconds))
        with self._maker() as session:
            return step(session, session)

    async def _within(self, step: Step, seconds: float | None) -> Any:
        async with asyncio.timeout(seconds), self._maker() as session:
            return await session.run_sync(step, session)

    def call(self, handler: Handler, *args: Any, **kwargs: Any) -> Any:
        """Call the handler; its result."""
        result = handler(*args, **kwargs)
        return await_only(result) if self.of_asyncio else result

    def handler(self, work: Handler) -> Handler:
        """``work`` as a handler of their kind."""

        def handle(*args: Any, **kwargs: Any) -> Any:
            return work(*args, **kwargs)

        async def handle_with_asyncio(*args: Any, **kwargs: Any) -> Any:
            return await greenlet_spawn(work, *args, **kwargs)

        return handle_with_asyncio if self.of_asyncio else handle

    def awaits(self) -> Await:
        """How the delivery that is executed here waits for its hook."""
        return await_only if self.of_asyncio else _from_a_thread(next((context.loop for context in current()), None))

    def sweep(self, work: Callable[[Await], None]) -> Sweep:
        """``work``, to be awaited in an event loop."""

        async def sweep() -> None:
            await asyncio.to_thread(work, _from_a_thread(asyncio.get_running_loop()))

        return functools.partial(greenlet_spawn, work, await_only) if self.of_asyncio else sweep


def session_parameter(handler: Handler) -> str:
    """The name of a handler's second parameter, the session.

    Raises ``TypeError`` where it has none, or where annotations say that it is another one: it is bound by its place.
    """
    name = getattr(handler, "__qualname__", handler)
    parameters = inspect.signature(handler).parameters.values()
    positional = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2:
        raise TypeError(f"{name} has to take the payload and the session")
    annotations = annotations_of(handler)
    payload, session = (annotations.get(each, Any) for each in positional[:2])
    if excludes(session, *_SESSIONS) or (isinstance(payload, type) and issubclass(payload, _SESSIONS)):
        raise TypeError(
            f"{name} gets the payload as its first parameter and the session as its second one, and is annotated otherwise:"
            " change their places"
        )
    return positional[1]


def signature_without(handler: Handler, session: str) -> inspect.Signature:
    """The signature of ``handler`` without its parameter ``session``."""
    signature = inspect.signature(handler)
    return signature.replace(parameters=[each for each in signature.parameters.values() if each.name != session])


def with_session(
    handler: Handler, name: str, session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], Any]:
    """The call of ``handler`` with its session: the payload may be given by its name, as FastStream does."""
    if not args:
        return functools.partial(handler, **{name: session}, **kwargs)
    return functools.partial(handler, args[0], session, *args[1:], **kwargs)


def called(inbox: Marks, sessions: sessionmaker[Any], handler: Handler) -> Handler:
    """The handler, in a transaction, of a plain function."""
    name = session_parameter(handler)

    def handle(*args: Any, **kwargs: Any) -> Any:
        with sessions() as session:
            return execute(session, inbox, with_session(handler, name, session, args, kwargs)).result

    return handle


def awaited(inbox: Marks, sessions: async_sessionmaker[Any], handler: Handler) -> Handler:
    """The handler, in a transaction, of a coroutine function."""
    name = session_parameter(handler)

    async def handle(*args: Any, **kwargs: Any) -> Any:
        def call(session: AsyncSession) -> Any:
            return with_session(handler, name, session, args, kwargs)()

        return (await execute_awaited(inbox, sessions, call)).result

    return handle


async def execute_awaited(
    inbox: Marks,
    sessions: async_sessionmaker[Any],
    handler: Callable[[Any], Awaitable[Any]],
    keeps: Callable[[Any], bool] = is_result,
) -> Executed:
    """`execute` in a session of asyncio's."""
    async with sessions() as session:
        executed: Executed = await session.run_sync(execute, inbox, lambda: await_only(handler(session)), keeps)
        return executed


def without_session(handler: Handler, made: Handler) -> Handler:
    """``made`` with the name, and the signature without its session, of ``handler``."""
    functools.update_wrapper(made, handler)
    session = session_parameter(handler)
    made.__signature__ = signature_without(handler, session)  # type: ignore[attr-defined]  # inspect's own way
    annotations = getattr(handler, "__annotations__", {})
    made.__annotations__ = {name: kind for name, kind in annotations.items() if name != session}
    return made


def _from_a_thread(loop: asyncio.AbstractEventLoop | None) -> Await:
    """Waits for what is done in ``loop``, which is another thread's: in its own, called by hand, that would wait for ever."""

    def wait(work: Coroutine[Any, Any, bool]) -> bool:
        if loop is None or loop.is_closed() or _runs_here(loop):
            work.close()
            return False
        return asyncio.run_coroutine_threadsafe(work, loop).result(_PATIENCE)

    return wait


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
