"""A delivery's transaction: begin, mark, call the handler, keep its result, commit.

Written once, for a synchronous session: an asynchronous one runs it in its ``run_sync``, where the handler's coroutine is
awaited by SQLAlchemy's ``await_only``. Whatever is raised on the way leaves the session to be closed, which rolls back.
"""

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from oncegate.middleware.consumers.executing import current
from oncegate.middleware.consumers.transactional import Executed
from oncegate.sql.entry import Entry
from oncegate.sql.errors import CommitUnknown, InboxMisused, InboxUnavailable, is_unsettled, meaning
from oncegate.sql.guard import check_not_aborted, hold, let_go

log = logging.getLogger("oncegate.inbox")


class Marks(Protocol):
    """What is needed of an `Inbox`."""

    consumer: str
    unmarked: int

    def mark(self, session: Session, message: str, fingerprint: bytes | None) -> Entry:
        """The entry of a message, by its record's id and the fingerprint of its payload."""


def execute(session: Session, inbox: Marks, call: Callable[[], Any], keeps: Callable[[Any], bool]) -> Executed:
    """The result of ``call``, or the kept one where the delivery that the hook executes here is not the first."""
    begun = current()
    if begun is None:
        raise InboxMisused(
            "no delivery is being executed here: give the handler to a worker, to Subscription.execute or to FastStream, or"
            " call it within Subscription.once"
        )
    if inbox.consumer in begun.committed:
        raise InboxMisused(
            f"the inbox {inbox.consumer} has committed this delivery already, and would skip the rest: do all in one transaction"
        )
    try:
        entry = inbox.mark(session, begun.record, begun.fingerprint) if begun.record else None
        if entry is not None and not entry:
            _commit(session)
            return Executed(entry.result, first=False, kept=entry.kept)
        if entry is None:
            inbox.unmarked += 1
            log.warning("a message without a key is executed without a marker")
            session.connection()  # begins the transaction, as the marker does
        result = _call(session, entry, call, keeps)
    except BaseException:  # a cancellation, too: nothing of this transaction can be committed any more
        begun.rolled_back = not begun.committed
        raise
    begun.rolled_back = False
    begun.committed.add(inbox.consumer)
    _commit(session)
    return Executed(result, first=True, kept=entry is not None and entry.kept)


def is_result(returned: Any) -> bool:
    """Whether a handler has returned something to be kept."""
    return returned is not None


def _call(session: Session, entry: Entry | None, call: Callable[[], Any], keeps: Callable[[Any], bool]) -> Any:
    transaction = hold(session)
    try:
        result = call()
        let_go(session, transaction)
        session.flush()
        if entry is not None and keeps(result):
            entry.keep(result)
        check_not_aborted(session)
    except SQLAlchemyError as error:
        _raise(error)
    return result


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
    """Give ``shown`` the signature of ``handler`` without its session."""
    signature, session = inspect.signature(handler), session_parameter(handler)
    left = [each for each in signature.parameters.values() if each.name != session]
    shown.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]  # inspect's own way
    annotations = getattr(handler, "__annotations__", {})
    shown.__annotations__ = {name: kind for name, kind in annotations.items() if name != session}


def session_parameter(handler: Callable[..., Any]) -> str:
    """The name of a handler's second parameter. Raises ``TypeError`` where it has none."""
    parameters = inspect.signature(handler).parameters.values()
    positional = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2:
        raise TypeError(f"{getattr(handler, '__qualname__', handler)} has to take the payload and the session")
    return positional[1]


def with_session(
    handler: Callable[..., Any], name: str, session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], Any]:
    """The call of ``handler`` with its session: the payload may be given by its name, as FastStream does."""
    if not args:
        return functools.partial(handler, **{name: session}, **kwargs)
    return functools.partial(handler, args[0], session, *args[1:], **kwargs)
