"""Makes of a handler of a payload and a session one whose messages are applied in their order, with asyncio and without."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import await_only, greenlet_spawn

from oncegate.middleware.consumers.executing import current
from oncegate.middleware.consumers.transactional import set_takes_late
from oncegate.sql.handlers.background import Sweep
from oncegate.sql.handlers.handler import Handler, session_parameter, with_session
from oncegate.sql.handlers.ordered import Await, Ordered, OrderedHandler
from oncegate.sql.handlers.parked_arguments import ParkedArguments
from oncegate.sql.marking.sequence_writer import SequenceWriter

_PATIENCE: Final = 60.0
"""Seconds for an outcome to be recorded, which takes no longer than ``record_timeout``."""


def called_in_order(
    inbox: Ordered, sequences: SequenceWriter, sessions: sessionmaker[Any], handler: Handler
) -> tuple[Handler, Sweep]:
    """Of a plain function; and what sweeps for it."""
    name = session_parameter(handler)

    def call(session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return with_session(handler, name, session, args, kwargs)()

    def in_session(step: Callable[[Session, Any], Any], _: float | None) -> Any:
        with sessions() as session:
            return step(session, session)

    ordered = OrderedHandler(inbox, sequences, ParkedArguments(handler, name), call, in_session)

    def handle(*args: Any, **kwargs: Any) -> Any:
        return ordered.deliver(args, kwargs, _from_a_thread(next((begun.loop for begun in current()), None)))

    async def sweep() -> None:
        await asyncio.to_thread(ordered.sweep, _from_a_thread(asyncio.get_running_loop()))

    set_takes_late(handle, ordered.take_late_outcomes)
    return handle, sweep


def awaited_in_order(
    inbox: Ordered, sequences: SequenceWriter, sessions: async_sessionmaker[Any], handler: Handler
) -> tuple[Handler, Sweep]:
    """Of a coroutine function; and what sweeps for it."""
    name = session_parameter(handler)

    def call(session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await_only(with_session(handler, name, session, args, kwargs)())

    def in_session(step: Callable[[Session, Any], Any], seconds: float | None) -> Any:
        return await_only(within(step, seconds))

    async def within(step: Callable[[Session, Any], Any], seconds: float | None) -> Any:
        async with asyncio.timeout(seconds), sessions() as session:
            return await session.run_sync(step, session)

    ordered = OrderedHandler(inbox, sequences, ParkedArguments(handler, name), call, in_session)

    async def handle(*args: Any, **kwargs: Any) -> Any:
        return await greenlet_spawn(ordered.deliver, args, kwargs, await_only)

    async def sweep() -> None:
        await greenlet_spawn(ordered.sweep, await_only)

    set_takes_late(handle, ordered.take_late_outcomes)
    return handle, sweep


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
