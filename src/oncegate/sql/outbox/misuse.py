"""Refuses ids and headers that can't be, and transactions that numbers and messages can't be written in."""

import re
from collections.abc import Callable
from typing import Final, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import UnboundExecutionError

from oncegate.middleware.consumers.sql_interface import NotProcessed, aggregate_digest
from oncegate.sql.database.errors import InboxMisused, is_denied, is_of_database, meaning, reason_of
from oncegate.sql.database.misuse import check_commits_nothing
from oncegate.sql.database.sessions import AnySync
from oncegate.sql.database.types import DIALECTS
from oncegate.sql.outbox.tables import MESSAGES, SEQUENCES, TO_ADD

Result = TypeVar("Result")

_HEADER_TEXT: Final = re.compile(r"[^\x00-\x1f\x7f\s]([^\x00-\x1f\x7f]*[^\x00-\x1f\x7f\s])?")


class OutboxMisused(NotProcessed):
    """The outbox is used in a way that can't hold its promise. Nothing was committed; the text says what to do."""


def digest_of(aggregate: object) -> bytes:
    """`aggregate_digest` of an aggregate's id. Raises ``TypeError`` for what is no ``str``, ``ValueError`` for an empty one."""
    if not isinstance(aggregate, str):
        raise TypeError(f"the aggregate is a {type(aggregate).__name__}: give its id as a str")
    if not aggregate:
        raise ValueError("the aggregate's id is empty")
    return aggregate_digest(aggregate)


def check_header(what: str, value: str) -> None:
    """Raises ``ValueError`` where a header of a message would not bring ``value`` to its consumer as it is."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} holds half of a surrogate pair, which no header carries") from None
    if not _HEADER_TEXT.fullmatch(value):
        raise ValueError(
            f"{what} is empty, holds control characters, or begins or ends with white space: no header carries it"
        )


def in_transaction_of(session: AnySync, table: str, step: Callable[[Connection], Result]) -> Result:
    """The result of ``step`` in the session's transaction.

    Raises `OutboxMisused` for a transaction that commits each statement, for a database that is not known, and without the
    tables; SQLAlchemy's errors as they are.
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
        if is_denied(error):
            tables = TO_ADD if table.endswith(MESSAGES) else (SEQUENCES,)
            needed = ", and ".join(f"{TO_ADD[name]} on {name}" for name in tables)
            raise OutboxMisused(f"the role may not: {reason_of(error)}; it needs {needed}") from error
        if is_of_database(error) and isinstance(meaning(error, table), InboxMisused):
            raise OutboxMisused(
                f"the table {table} is missing, or not as it is needed: oncegate outbox create --database URL"
            ) from error
        raise
