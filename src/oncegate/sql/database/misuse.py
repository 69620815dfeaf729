"""Refuses, before anything is committed, what a marker can't cover: autocommit, a second database, a commit halfway.

What is known of a session's transaction is kept in its ``info``, where SQLAlchemy's events find it. Whatever is of an earlier
transaction doesn't count.

Statements are looked at only on engines whose transactions are held: where a listener is there, SQLAlchemy takes a seventh
longer for a whole transaction of one statement.
"""

import logging
import re
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakSet

from sqlalchemy import Connection, Engine, ExceptionContext, event, select, text
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction

from oncegate.sql.database.errors import InboxMisused

log = logging.getLogger("oncegate.inbox")

_INFO: Final = "oncegate.sql"
_HELD: Final = "oncegate.sql.held"
_WATCHED_ENGINE: Final = "oncegate.sql.engine"
_WATCHED: Final[WeakSet[Engine]] = WeakSet()
"""Engines on whose connections statements are looked at."""
_BETWEEN: Final = r"(?:\s|;|--[^\n]*+|/\*.*?\*/)*+"
"""Statements. Possessive: comments can be divided in exponentially many ways."""
_END: Final = r"(?:COMMIT|END|ABORT|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b)|PREPARE\s+TRANSACTION)\b"
"""The statements that end a transaction; to go back to a savepoint is none."""
_ENDS: Final = re.compile(_BETWEEN + _END, re.IGNORECASE | re.DOTALL)
_NEXT: Final = re.compile(
    r"""(?<!\w)e'(?:[^'\\]|\\.)*+'?|'[^']*+'?|"[^"]*+"?|(?<!\w)\$((?!\d)\w*)\$(?:.*?\$\1\$|.*)|--[^\n]*+|/\*(?:.*?\*/|.*)|;"""
    rf"{_BETWEEN}(?P<end>{_END})?",
    re.IGNORECASE | re.DOTALL,
)
"""A quotation, a comment, or what is behind a statement. What is not closed goes to the end: nothing is read twice."""
_BODY: Final = re.compile(r"\bBEGIN\s+ATOMIC\b", re.IGNORECASE)
"""The begin of a function's body, whose END is none of a transaction's."""

_HAS_WRITTEN: Final = text("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
WRITTEN_BEFORE: Final = (
    "the transaction has written before: reset comes first in it, and then what empties the read model, or what is committed"
    " between the two stays there"
)
"""Why `reset` is refused."""


@dataclass(slots=True)
class _Watched:
    """A session's transaction, as far as it was watched."""

    transaction: SessionTransaction | None
    databases: list[Engine] = field(default_factory=list)
    strict: bool | None = None
    """The setting of the inbox whose marker is in it; ``None`` without one."""
    held: bool = False
    """It is not for the handler to commit."""
    committed: bool = False


def check_commits_nothing(connection: Connection) -> None:
    """Raises `InboxMisused` where each statement is committed by itself: the marker would stand without its effect."""
    pooled, dialect = connection.connection, connection.dialect
    bare = pooled.dbapi_connection
    found = bare is not None and dialect.detect_autocommit_setting(bare)
    if dialect.name == "sqlite":
        driver: Any = pooled.driver_connection
        # A usual recipe turns the driver's own transactions off, and begins them in an event of SQLAlchemy's.
        found = (found or getattr(driver, "autocommit", None) is True) and not driver.in_transaction
    if found:
        raise InboxMisused(
            "the connection is in AUTOCOMMIT: the marker would be committed without its effect; use an engine without it"
        )


def has_written(connection: Connection) -> bool:
    """Whether the transaction has written, or locked a row, before. Of SQLite it isn't known, which has one writer."""
    return connection.dialect.name == "postgresql" and bool(connection.scalar(_HAS_WRITTEN))


def marked(session: Session, *, strict: bool) -> None:
    """Note that a marker will be in the session's transaction. Raises `InboxMisused` if that has used two databases."""
    watched = _watched(session)
    watched.strict = strict
    if len(watched.databases) > 1:
        _refuse_another(watched)


def watch(session: Session) -> None:
    """Have the statements of a session looked at that is to be held, and has no connection yet."""
    if session.in_transaction():
        return
    try:
        bind = session.get_bind()
    except UnboundExecutionError:
        return  # raised again where it is connected
    if isinstance(bind, Engine):
        if bind not in _WATCHED:
            _listen(bind, bind)
            _WATCHED.add(bind)
        session.info[_WATCHED_ENGINE] = bind


def hold(session: Session) -> SessionTransaction | None:
    """Refuse a commit of this transaction, or a statement that ends it, from now on; the transaction."""
    watched = _watched(session)
    watched.held = True
    connection = session.connection()
    if session.info.get(_WATCHED_ENGINE) is not connection.engine:  # one that was there before, or is chosen each time
        _listen(connection, connection.engine)
    connection.info[_HELD] = connection.get_transaction()
    return watched.transaction


def let_go(session: Session, transaction: SessionTransaction | None, *, is_marked: bool) -> None:
    """Allow the commit. Raises `InboxMisused` where ``transaction``, in which the marker was written, has ended meanwhile."""
    connection = session.connection() if session.get_transaction() is transaction else None
    if connection is None or (is_marked and not _is_open(connection)):
        raise InboxMisused(
            "the handler has ended the transaction that its marker is in: let the inbox commit, and raise to roll back"
        )
    connection.info.pop(_HELD, None)
    _watched(session).held = False


def is_committed(session: Session) -> bool:
    """Whether the transaction that was last held is: an event behind a COMMIT may raise what looks like a failure of it."""
    watched: _Watched | None = session.info.get(_INFO)
    return watched is not None and watched.committed


def check_not_aborted(session: Session) -> None:
    """Raises the database's error where one that the handler went on after has undone its transaction.

    PostgreSQL answers such a COMMIT with a ROLLBACK, which drivers take for a success. Only after an error a query is sent.
    """
    connection = session.connection()
    if connection.info.get(_INFO) is connection.get_transaction():
        connection.execute(select(1))


def _is_open(connection: Connection) -> bool:
    """Whether the driver has a transaction, by its own state, without a query. Where that isn't known it has one."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        return bool(driver.in_transaction)
    if connection.dialect.driver == "asyncpg":
        return bool(driver.is_closed() or driver.is_in_transaction())
    if connection.dialect.driver == "psycopg":
        return bool(driver.info.transaction_status)  # 0: idle
    return True


def _watched(session: Session) -> _Watched:
    transaction = session.get_transaction()
    found: _Watched | None = session.info.get(_INFO)
    if found is None or found.transaction is not transaction:
        found = session.info[_INFO] = _Watched(transaction)
    return found


def _refuse_another(watched: _Watched) -> None:
    line = "the session has used a second database in this transaction, which its marker can't cover"
    if watched.strict:
        raise InboxMisused(f"{line}: use a session for each (strict=False only warns)")
    log.warning("%s", line)


def _listen(target: Engine | Connection, engine: Engine) -> None:
    """On an engine: to the connections that it makes from now on. Done twice, it counts once."""
    event.listen(engine, "handle_error", _on_error)  # no connection has one of its own
    event.listen(target, "before_cursor_execute", _on_statement)


def _on_error(context: ExceptionContext) -> None:
    if context.connection is not None and not context.is_disconnect:
        context.connection.info[_INFO] = context.connection.get_transaction()


def _on_statement(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
    """No event of SQLAlchemy's own tells of a COMMIT that is executed as a statement."""
    held = connection.info.get(_HELD)
    if held is not None and held is connection.get_transaction() and ends_transaction(statement):
        raise InboxMisused("the handler may not end its transaction: let the inbox commit, and raise to roll back")


def ends_transaction(statement: str) -> bool:
    """Whether one of the statements of this text does: psycopg sends several at once where there are no parameters."""
    if _ENDS.match(statement):
        return True
    if ";" not in statement or _BODY.search(statement):
        return False
    return any(part["end"] for part in _NEXT.finditer(statement))


@event.listens_for(Session, "after_begin")
def _on_begin(session: Session, transaction: SessionTransaction, connection: Connection) -> None:  # noqa: ARG001  # the event's parameters
    watched = _watched(session)
    if connection.engine not in watched.databases:
        watched.databases.append(connection.engine)
        if watched.strict is not None and len(watched.databases) > 1:
            _refuse_another(watched)


@event.listens_for(Session, "before_commit")
def _on_commit(session: Session) -> None:
    watched: _Watched | None = session.info.get(_INFO)
    if watched is None or not watched.held or session.in_nested_transaction():  # a savepoint commits nothing
        return
    if watched.transaction is session.get_transaction():
        raise InboxMisused("the handler may not commit: its marker would be committed before its effect is whole")


@event.listens_for(Session, "after_commit")
def _on_committed(session: Session) -> None:
    watched: _Watched | None = session.info.get(_INFO)
    if watched is not None and watched.transaction is session.get_transaction():
        watched.committed = True
