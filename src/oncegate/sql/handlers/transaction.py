"""A delivery's transaction: begin, mark, call the handler, keep its result, commit.

Written once, for a synchronous session: an asynchronous one runs it in its ``run_sync``, where the handler's coroutine is
awaited by SQLAlchemy's ``await_only``. Whatever is raised on the way leaves the session to be closed, which rolls back.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, NoReturn, Protocol

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from oncegate.middleware.consumers.sql_interface import DeliveryContext, Executed, current
from oncegate.sql.database.errors import (
    CommitUnknown,
    InboxMisused,
    InboxUnavailable,
    is_unsettled,
    meaning,
)
from oncegate.sql.database.misuse import check_not_aborted, hold, is_committed, let_go, watch
from oncegate.sql.marking.entry import Entry, keep_all
from oncegate.sql.marking.statements import Message

log = logging.getLogger("oncegate.inbox")


class Marks(Protocol):
    """The part of an `Inbox` that a transaction needs."""

    consumer: str
    ordered: bool
    """It keeps an order, and knows a message without a key by its number."""
    max_attempts: int
    """The attempts that a parked message has."""

    def mark(self, session: Session, messages: Sequence[Message]) -> list[Entry]:
        """The entries of messages whose records' ids are known."""

    def on_unmarked(self, count: int) -> None:
        """Count messages without a key that are executed without a marker."""


def is_result(returned: Any) -> bool:
    """Whether a handler has returned something to be kept."""
    return returned is not None


def execute(
    session: Session, inbox: Marks, call: Callable[[], Any], keeps: Callable[[Any], bool] = is_result
) -> Executed:
    """The result of ``call``, or the kept one where the delivery that the hook executes here is not the first."""
    batch = current()
    if not batch:
        raise InboxMisused(
            "no delivery is being executed here: give the handler to a worker, to Subscription.execute or to FastStream, or"
            " call it within Subscription.once"
        )
    if len(batch) > 1:
        instead = "its handler needs transaction(..., batch=True)"
        if inbox.ordered:
            instead = "an inbox that keeps an order takes one message at a time, by Subscription.execute"
        raise InboxMisused(f"a batch is being executed here: {instead}")
    return execute_many(session, inbox, batch, lambda _: [call()], keeps)[0]


def execute_many(
    session: Session,
    inbox: Marks,
    batch: Sequence[DeliveryContext],
    call: Callable[[Sequence[int]], Sequence[Any]],
    keeps: Callable[[Any], bool] = is_result,
) -> list[Executed]:
    """Execute a ``batch`` in one transaction; ``call`` gives the results of those with the given numbers."""
    if any(inbox.consumer in each.committed for each in batch):
        raise InboxMisused(
            f"the inbox {inbox.consumer} has committed this delivery already, and would skip the rest: do all in one transaction"
        )
    watch(session)
    try:
        done = _execute(session, inbox, batch, call, keeps)
    except BaseException:  # a cancellation, too: nothing of this transaction can be committed any more
        for each in batch:
            each.rolled_back = not each.committed
        raise
    first = [each for each, executed in zip(batch, done, strict=True) if executed.first]
    for each in first:
        each.rolled_back = False
        each.committed.add(inbox.consumer)
    try:
        commit(session)
    except CommitUnknown:
        raise
    except Exception:  # a cancellation is none: it leaves open what the server does
        if not is_committed(session):
            for each in first:
                each.committed.discard(inbox.consumer)
                each.rolled_back = not each.committed
        raise
    return done


def message_of(context: DeliveryContext) -> Message:
    """The message that the hook executes, as the inbox marks it."""
    delivery = context.delivery
    place = delivery.aggregate, delivery.sequence
    return Message(context.record, context.fingerprint, delivery.sent_at, *place, other=context.other)


def _execute(
    session: Session,
    inbox: Marks,
    batch: Sequence[DeliveryContext],
    call: Callable[[Sequence[int]], Sequence[Any]],
    keeps: Callable[[Any], bool],
) -> list[Executed]:
    marked = [inbox.ordered or bool(each.record) for each in batch]
    found = iter(inbox.mark(session, [message_of(each) for each in compress(batch, marked)]))
    entries = [next(found) if is_marked else None for is_marked in marked]
    if unmarked := marked.count(False):
        inbox.on_unmarked(unmarked)
        log.warning("a message without a key is executed without a marker")
        try:
            session.connection()  # begins the transaction, as a marker does
        except Exception as error:  # noqa: BLE001  # raised again
            _raise(error)
    is_first = [entry is None or bool(entry) for entry in entries]
    first = list(compress(range(len(batch)), is_first))
    results = iter(call_within(session, lambda: call(first), [entries[each] for each in first], keeps) if first else ())
    return [
        Executed(
            next(results) if entry is None or runs else entry.result,
            first=runs,
            kept=entry is not None and entry.kept,
            waiting=entry is not None and entry.waiting,
        )
        for entry, runs in zip(entries, is_first, strict=True)
    ]


def call_within(
    session: Session,
    call: Callable[[], Sequence[Any]],
    entries: Sequence[Entry | None],
    keeps: Callable[[Any], bool] = is_result,
) -> Sequence[Any]:
    """The results of ``call`` for ``entries`` that are first, kept in their transaction."""
    transaction = hold(session)
    try:
        results = call()
        let_go(session, transaction, is_marked=any(entries))
        session.flush()
        kept = [(entry, result) for entry, result in zip(entries, results, strict=True) if keeps(result)]
        keep_all([(entry, result) for entry, result in kept if entry is not None])
        check_not_aborted(session)
    except SQLAlchemyError as error:
        _raise(error)
    return results


def commit(session: Session) -> None:
    """Commit. Raises `CommitUnknown`, and what the database's error means."""
    try:
        session.commit()
    except (SQLAlchemyError, OSError) as error:
        if is_unsettled(error):
            raise CommitUnknown(
                "the connection broke during COMMIT: the next delivery will show what came of it"
            ) from error
        _raise(error)


def _raise(error: Exception) -> NoReturn:
    """Raise ``error``, as `InboxUnavailable` if the database's state is to blame: then the attempt does not count."""
    found = meaning(error, "")
    if isinstance(found, InboxUnavailable):
        raise found from error
    raise error
