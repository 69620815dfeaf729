"""A delivery's transaction: begin, mark, call the handler, keep its result, commit.

Written once, for a synchronous session: an asynchronous one runs it in its ``run_sync``, where the handler's coroutine is
awaited by SQLAlchemy's ``await_only``. Whatever is raised on the way leaves the session to be closed, which rolls back.
"""

import inspect
import logging
from collections.abc import Callable
from typing import Any, NoReturn

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from oncegate.middleware.consumers.executing import current
from oncegate.sql.entry import Entry
from oncegate.sql.errors import CommitUnknown, InboxMisused, InboxUnavailable, is_of_database, is_unsettled, meaning
from oncegate.sql.guard import check_not_aborted, hold, let_go
from oncegate.sql.statements import Message

log = logging.getLogger("oncegate.inbox")

Mark = Callable[[Session, Message], Entry]


def execute(session: Session, mark: Mark, call: Callable[[], Any]) -> Any:
    """The result of ``call``, or the kept one where the delivery that the hook executes here is not the first."""
    begun = current()
    if begun is None:
        raise InboxMisused(
            "no delivery is being executed here: give the handler to a worker or to Subscription.execute"
        )
    entry = mark(session, Message(begun.record, begun.fingerprint, begun.sent_at)) if begun.record else None
    if entry is not None and not entry:
        _commit(session)
        return entry.result
    if entry is None:
        log.warning("a message without a key is executed without a marker")
        _begin(session)
    transaction = hold(session)
    try:
        result = call()
        let_go(session, transaction)
        session.flush()
        if entry is not None and result is not None:
            entry.keep(result)
        check_not_aborted(session)
    except SQLAlchemyError as error:
        _raise(error)
    _commit(session)
    return result


def _begin(session: Session) -> None:
    """Begin the transaction, as a marker does."""
    try:
        session.connection()
    except Exception as error:
        if is_of_database(error):
            _raise(error)
        raise


def _commit(session: Session) -> None:
    try:
        session.commit()
    except (SQLAlchemyError, OSError) as error:
        if is_unsettled(error):
            raise CommitUnknown(
                "the connection broke during COMMIT: the next delivery will show what came of it"
            ) from error
        _raise(error)


def _raise(error: Exception) -> NoReturn:
    """What is the database's state, and no fault of the handler's, does not count as an attempt."""
    found = meaning(error, "")
    if isinstance(found, InboxUnavailable):
        raise found from error
    raise error


def without_session(handler: Callable[..., Any], shown: Callable[..., Any]) -> None:
    """Give ``shown`` the signature of ``handler`` without its second parameter. Raises ``TypeError`` where it takes none."""
    signature = inspect.signature(handler)
    parameters = list(signature.parameters.values())
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2:
        raise TypeError(f"{getattr(handler, '__qualname__', handler)} has to take the payload and the session")
    left = [each for each in parameters if each is not positional[1]]
    shown.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]  # inspect's own way
    annotations = getattr(handler, "__annotations__", {})
    shown.__annotations__ = {name: kind for name, kind in annotations.items() if name != positional[1].name}
