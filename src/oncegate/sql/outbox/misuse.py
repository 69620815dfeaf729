"""Refuses what numbers and messages can't be given for; and what a database's error says of their tables."""

from collections.abc import Callable
from typing import NoReturn, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session

from oncegate.middleware.outcome.errors import NotProcessed
from oncegate.sql.database.errors import InboxMisused, is_of_database, meaning
from oncegate.sql.database.misuse import check_commits_nothing
from oncegate.sql.database.types import DIALECTS

Result = TypeVar("Result")


class OutboxMisused(NotProcessed):
    """It is used in a way that can't hold its promise. Nothing was committed; the text says what to do."""


def in_transaction_of(session: Session | Connection, table: str, step: Callable[[Connection], Result]) -> Result:
    """The result of ``step`` in the session's transaction.

    Raises `OutboxMisused` for a transaction that commits each statement, for another database than those that are known, and
    without the tables; SQLAlchemy's errors as they are.
    """
    try:
        connection = session if isinstance(session, Connection) else session.connection()
        if connection.dialect.name not in DIALECTS:
            raise OutboxMisused(f"the database is {connection.dialect.name}: PostgreSQL or SQLite is needed")
        check_commits_nothing(connection)
        return step(connection)
    except UnboundExecutionError:
        raise OutboxMisused(
            "the session has no database of its own: give it one (bind=), or use a connection"
        ) from None
    except InboxMisused:
        raise OutboxMisused(
            "the connection is in AUTOCOMMIT: it would be committed without what it belongs to; use an engine without it"
        ) from None
    except Exception as error:
        if not is_of_database(error):
            raise
        _raise(error, table)


def _raise(error: Exception, table: str) -> NoReturn:
    if isinstance(meaning(error, table), InboxMisused):
        raise OutboxMisused(
            f"the table {table} is missing, not as it is needed, or not the role's to use: oncegate outbox create --database URL"
        ) from error
    raise error


def not_a_session(session: object) -> TypeError:
    """For what is given in place of one."""
    return TypeError(
        f"the session is a {type(session).__name__}: give a Session, AsyncSession, Connection or AsyncConnection"
    )
