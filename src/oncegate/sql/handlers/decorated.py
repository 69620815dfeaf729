"""An inbox's handler from a function of a payload and a session: of one message, of a batch, or in the order of numbers."""

import inspect
from typing import Any

from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker

from oncegate.sql.handlers.batch import of_batches
from oncegate.sql.handlers.handler import Handler, Maker, Sweep, awaited, called, without_session
from oncegate.sql.handlers.ordered import in_order
from oncegate.sql.handlers.transaction import Marks
from oncegate.sql.marking.sequence_writer import SequenceWriter


def check_maker(sessions: object) -> None:
    """Raises ``TypeError`` for what makes no sessions."""
    if not isinstance(sessions, async_sessionmaker | sessionmaker):
        raise TypeError(f"sessions is a {type(sessions).__name__}: give a sessionmaker or an async_sessionmaker")


def decorated(
    inbox: Marks, sequences: SequenceWriter | None, sessions: Maker, handler: Handler, *, batch: bool
) -> tuple[Handler, Sweep | None]:
    """The handler, with the name of ``handler`` and its signature without the session; and what sweeps for it under an order.

    Raises ``TypeError`` for sessions of the other kind than the function is.
    """
    of_asyncio = isinstance(sessions, async_sessionmaker)
    if inspect.iscoroutinefunction(handler) is not of_asyncio:
        raise TypeError("an async_sessionmaker is for a coroutine function, a sessionmaker for a plain one")
    sweep: Sweep | None = None
    if sequences is not None:
        made, sweep = in_order(inbox, sequences, sessions, handler)
    else:
        make: Any = of_batches if batch else awaited if of_asyncio else called
        made = make(inbox, sessions, handler)
    return without_session(handler, made), sweep
