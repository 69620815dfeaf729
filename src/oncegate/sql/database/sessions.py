"""Sessions and connections of users, of asyncio or not, in which numbers, messages and markers are written."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

AnySync = Session | Connection
AnyAsync = AsyncSession | AsyncConnection
Result = TypeVar("Result")


def in_session(session: AnySync | AnyAsync, step: Callable[[AnySync], Result]) -> Result | Coroutine[Any, Any, Result]:
    """The result of ``step`` on the session, to be awaited where it is of asyncio. Raises ``TypeError`` for what is none."""
    if isinstance(session, AsyncSession | AsyncConnection):
        return session.run_sync(step)
    check_session(session)
    return step(session)


def check_session(session: object) -> None:
    """Raises ``TypeError`` for what is neither of SQLAlchemy's sessions nor one of its connections."""
    if not isinstance(session, Session | Connection):
        raise TypeError(
            f"the session is a {type(session).__name__}: give a Session, AsyncSession, Connection or AsyncConnection"
        )
