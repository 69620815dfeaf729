"""A delivery's transaction: begin, mark, call the handler, keep its result, commit.

Written once, for a synchronous session: an asynchronous one runs it in its ``run_sync``, where the handler's coroutine is
awaited by SQLAlchemy's ``await_only``. Whatever is raised on the way leaves the session to be closed, which rolls back.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from oncegate.middleware.consumers.begun import Begun
from oncegate.middleware.consumers.executing import current
from oncegate.middleware.consumers.transactional import Executed
from oncegate.sql.entry import Entry, keep_all
from oncegate.sql.errors import CommitUnknown, InboxMisused, InboxUnavailable, is_of_database, is_unsettled, meaning
from oncegate.sql.guard import check_not_aborted, hold, let_go
from oncegate.sql.statements import Message

log = logging.getLogger("oncegate.inbox")


class Marks(Protocol):
    """What is needed of an `Inbox`."""

    consumer: str
    unmarked: int

    def mark(self, session: Session, messages: Sequence[Message]) -> list[Entry]:
        """The entries of messages whose records' ids are known."""


def execute(session: Session, inbox: Marks, call: Callable[[], Any], keeps: Callable[[Any], bool]) -> Executed:
    """The result of ``call``, or the kept one where the delivery that the hook executes here is not the first."""
    begun = current()
    if begun is None:
        raise InboxMisused(
            "no delivery is being executed here: give the handler to a worker, to Subscription.execute or to FastStream, or"
            " call it within Subscription.once"
        )
    return execute_many(session, inbox, [begun], lambda _: [call()], keeps)[0]


def execute_many(
    session: Session,
    inbox: Marks,
    batch: Sequence[Begun],
    call: Callable[[Sequence[int]], Sequence[Any]],
    keeps: Callable[[Any], bool],
) -> list[Executed]:
    """What came of each of ``batch``, all in one transaction; ``call`` gives the results of those with the given numbers."""
    if any(inbox.consumer in begun.committed for begun in batch):
        raise InboxMisused(
            f"the inbox {inbox.consumer} has committed this delivery already, and would skip the rest: do all in one transaction"
        )
    try:
        done = _execute(session, inbox, batch, call, keeps)
    except BaseException:  # a cancellation, too: nothing of this transaction can be committed any more
        for begun in batch:
            begun.rolled_back = not begun.committed
        raise
    for begun, executed in zip(batch, done, strict=True):
        if executed.first:
            begun.rolled_back = False
            begun.committed.add(inbox.consumer)
    _commit(session)
    return done


def is_result(returned: Any) -> bool:
    """Whether a handler has returned something to be kept."""
    return returned is not None


def _execute(
    session: Session,
    inbox: Marks,
    batch: Sequence[Begun],
    call: Callable[[Sequence[int]], Sequence[Any]],
    keeps: Callable[[Any], bool],
) -> list[Executed]:
    marked = [begun for begun in batch if begun.record]
    entries = inbox.mark(session, [Message(begun.record, begun.fingerprint, begun.sent_at) for begun in marked])
    entry_of = {id(begun): entry for begun, entry in zip(marked, entries, strict=True)}
    found = [entry_of.get(id(begun)) for begun in batch]
    if unmarked := len(batch) - len(marked):
        inbox.unmarked += unmarked
        log.warning("a message without a key is executed without a marker")
        _begin(session)
    first = [number for number, entry in enumerate(found) if entry is None or entry]
    results = dict(zip(first, _call(session, lambda: call(first), found, first, keeps), strict=True)) if first else {}
    return [
        Executed(results[number], first=True, kept=entry is not None and entry.kept)
        if entry is None or entry
        else Executed(entry.result, first=False, kept=entry.kept)
        for number, entry in enumerate(found)
    ]


def _call(
    session: Session,
    call: Callable[[], Sequence[Any]],
    entries: Sequence[Entry | None],
    first: Sequence[int],
    keeps: Callable[[Any], bool],
) -> Sequence[Any]:
    transaction = hold(session)
    try:
        results = call()
        let_go(session, transaction)
        session.flush()
        kept = [(entries[number], result) for number, result in zip(first, results, strict=True) if keeps(result)]
        keep_all([(entry, result) for entry, result in kept if entry is not None])
        check_not_aborted(session)
    except SQLAlchemyError as error:
        _raise(error)
    return results


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
