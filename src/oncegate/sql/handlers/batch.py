"""A batch of deliveries in one transaction; where that fails, each in one of its own, so that a poison message fails alone."""

import functools
import logging
from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from oncegate.middleware.consumers.sql_interface import current, outcomes_of
from oncegate.sql.database.errors import CommitUnknown, InboxMisused, InboxUnavailable
from oncegate.sql.handlers.handler import Handler, Maker, Sessions, session_parameter
from oncegate.sql.handlers.transaction import Marks, execute_many

log = logging.getLogger("oncegate.inbox")

_NO_ONES_FAULT = (InboxUnavailable, InboxMisused, CommitUnknown)
"""Errors that no one message has caused: each alone would fare no better, or wait as long."""


def of_batches(inbox: Marks, maker: Maker, handler: Handler) -> Handler:
    """A handler for batches: it returns for each message what was returned or kept before, or the exception."""
    session_parameter(handler)
    sessions = Sessions(maker)

    def handle(payloads: Sequence[Any], *args: Any) -> list[Any]:
        return Batch(inbox, sessions, handler, payloads, args).execute()

    return sessions.handler(handle)


class Batch:
    """The batch that the hook executes here."""

    def __init__(
        self, inbox: Marks, sessions: Sessions, handler: Handler, payloads: Sequence[Any], args: tuple[Any, ...]
    ) -> None:
        self._inbox = inbox
        self._sessions = sessions
        self._handler = handler
        self._payloads = payloads
        self._args = args
        self._contexts = current()
        if len(self._contexts) != len(payloads):
            raise InboxMisused(
                f"{len(payloads)} messages for {len(self._contexts)} deliveries: give the handler to Subscription.execute_many"
            )
        self._outcomes: list[Any] = [None] * len(payloads)

    def execute(self) -> list[Any]:
        """Execute the batch; the outcomes, one for each message. Raises what `Sessions.within` raises."""
        numbers = range(len(self._payloads))
        if not self._are_done(numbers):
            for number in numbers:
                self._are_done((number,))
        return self._outcomes

    def _are_done(self, part: Sequence[int]) -> bool:
        """Execute the messages of these numbers in one transaction; whether each has an outcome that stands."""
        done: bool = self._sessions.within(functools.partial(self._execute, part))
        return done

    def _execute(self, part: Sequence[int], session: Session, of_handler: Any) -> bool:
        def call(first: Sequence[int]) -> Sequence[Any]:
            payloads = [self._payloads[part[number]] for number in first]
            return outcomes_of(self._sessions.call(self._handler, payloads, of_handler, *self._args), len(first))

        try:
            done = execute_many(session, self._inbox, [self._contexts[number] for number in part], call)
        except Exception as error:  # noqa: BLE001  # whatever a handler raises is its messages' outcome
            for number in part:
                self._outcomes[number] = error
            if len(part) == 1 or isinstance(error, _NO_ONES_FAULT):
                return True
            log.warning("a batch of %d has failed, and is done again one by one: %s", len(part), type(error).__name__)
            return False
        for number, executed in zip(part, done, strict=True):
            self._outcomes[number] = executed.result
        return True
