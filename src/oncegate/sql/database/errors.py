"""The errors of an inbox, by which the hook knows what came of a command; and what a driver's errors mean for it."""

import re
import sqlite3
from typing import Final

from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError, UnboundExecutionError

from oncegate.middleware.consumers.sql_interface import NotProcessed, NotRetryable, OutcomeUnknown


class InboxUnavailable(NotProcessed):
    """The database can't be reached, or ended the connection: nothing was done. Deliver the message again."""


class InboxBusy(InboxUnavailable):
    """Another transaction was in the way (lock time-out, serialization failure, deadlock): nothing was done. Deliver it again."""


class InboxMisused(NotProcessed):
    """The inbox is used in a way that can't hold its promise. Refused before anything is committed; the text says what to do."""


class CommitUnknown(OutcomeUnknown):
    """The connection broke during COMMIT: nobody knows whether it took place. The next delivery's marker will show it."""


class KeyReused(NotRetryable):
    """The message's key was used for another payload: this one is never executed."""


class Forgotten(NotRetryable):
    """The message was sent before the instant up to which the inbox has forgotten: its marker, if it had one, is gone."""


class SequenceInvalid(NotRetryable):
    """The inbox keeps an order, and the message has no aggregate, no number, or one that is none."""


class SequenceForked(NotRetryable):
    """Another message has the same number of the same aggregate: two producers gave out one number."""


class SequenceEarly(NotProcessed):
    """A message about the same aggregate, with a lower number, is not applied yet: nothing was done. Deliver this one again."""


_BUSY: Final = frozenset({"55P03", "40001", "40P01"})
"""lock_not_available, serialization_failure, deadlock_detected."""
_CROSSED: Final = frozenset({"40001", "40P01"})
"""Those after which the same transaction can succeed at once: the one in the way goes on, or has ended."""
_GONE: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "53300"})
"""The server shuts down or starts, has ended a connection that stood idle, or has no connection left."""
_MISSING: Final = frozenset({"42P01", "3F000"})
_OTHER_TABLE: Final = frozenset({"42P10", "42703"})
"""Without its primary key, or a column."""
_DENIED: Final = "42501"
"""insufficient_privilege."""
_SQLITE_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_CLASS: Final = re.compile(r"<class '[^']*'>: ")
"""The text that SQLAlchemy puts before that of an error of asyncpg's."""
_CREATE: Final = "create it with: oncegate inbox create --database URL"


def is_of_database(error: BaseException) -> bool:
    """Whether SQLAlchemy raised it, or a driver: where the server refuses a connection, asyncpg's own error comes through."""
    return isinstance(error, SQLAlchemyError | OSError) or bool(getattr(error, "sqlstate", None))


def is_denied(error: BaseException) -> bool:
    """Whether the role lacks a privilege."""
    return _state_of(error) == _DENIED


def is_crossed(error: BaseException) -> bool:
    """Whether another transaction and this one were in each other's way: nothing was done, and it may be done again at once."""
    return _state_of(error) in _CROSSED


def _state_of(error: BaseException) -> str:
    return str(getattr(getattr(error, "orig", None) or error, "sqlstate", None) or "")


def reason_of(error: BaseException) -> str:
    """The database's or its driver's reason, in one line for people: without the statement, and without classes' names."""
    text = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
    return _CLASS.sub("", text.splitlines()[0], count=1)


def meaning(error: Exception, table: str) -> Exception:
    """The error that one of SQLAlchemy's or of the driver's means for an inbox; ``error`` itself where it means nothing for it.

    Of the driver's own errors only what has an SQLSTATE is known, and ``OSError``: asyncpg's attempts to connect raise those.
    """
    if not is_of_database(error):
        return error
    if isinstance(error, UnboundExecutionError):
        return InboxMisused("the session has no database of its own: give it one (bind=), or use a connection")
    found = getattr(error, "orig", None) or error
    state = str(getattr(found, "sqlstate", None) or "")
    code = getattr(found, "sqlite_errorcode", 0) & 0xFF
    text = str(found)
    if state in _BUSY or code in _SQLITE_BUSY:
        return InboxBusy(f"another transaction was in the way ({state or 'SQLITE_BUSY'})")
    if _is_gone(state) or _is_away(error, state):
        return InboxUnavailable(f"the database can't be reached ({state or type(found).__name__})")
    if state in _MISSING or "no such table" in text:
        return InboxMisused(f"there is no table {table}: {_CREATE}")
    if state in _OTHER_TABLE or "ON CONFLICT clause does not match" in text or "has no column named" in text:
        return InboxMisused(f"the table {table} is not as an inbox needs it: {_CREATE}")
    if state == _DENIED:
        return InboxMisused(f"the role may not use the table {table}: it needs INSERT, SELECT and UPDATE")
    return error


def _is_away(error: Exception, state: str) -> bool:
    if isinstance(error, OperationalError) and not state and not isinstance(error.orig, sqlite3.Error):
        return True  # psycopg's attempts to connect have no SQLSTATE
    return isinstance(error, OSError) or (isinstance(error, DBAPIError) and error.connection_invalidated)


def is_unsettled(error: Exception) -> bool:
    """Whether an error out of a COMMIT leaves open what the server did: it has not answered, or was ending."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, OSError)
    state = str(getattr(error.orig, "sqlstate", None) or "")
    return not isinstance(error.orig, sqlite3.Error) and (not state or _is_gone(state))


def _is_gone(state: str) -> bool:
    return state in _GONE or state[:2] == "08"
