"""A batch of deliveries in one transaction; where that fails, each in one of its own, so that a poison message fails alone."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy.orm import Session

from oncegate.middleware.consumers.batches import outcomes_of
from oncegate.middleware.consumers.executing import current
from oncegate.sql.database.errors import CommitUnknown, InboxMisused, InboxUnavailable
from oncegate.sql.handlers.transaction import Marks, execute_many, is_result

log = logging.getLogger("oncegate.inbox")

_NO_ONES_FAULT = (InboxUnavailable, InboxMisused, CommitUnknown)
"""Of no one message: each alone would fare no better, or wait as long."""


class Batch:
    """The batch that the hook executes here: `execute` is called for each of `parts`, in a session of its own.

    ``outcomes`` has what each message's handler returned or has kept before, or the exception that it failed with.
    """

    def __init__(self, inbox: Marks, payloads: Sequence[Any]) -> None:
        self._inbox = inbox
        self._payloads = payloads
        self._begun = current()
        if len(self._begun) != len(payloads):
            raise InboxMisused(
                f"{len(payloads)} messages for {len(self._begun)} deliveries: give the handler to Subscription.execute_many"
            )
        self.outcomes: list[Any] = [None] * len(payloads)
        self._again = False

    def parts(self) -> Iterator[Sequence[int]]:
        """The numbers of the messages that belong together: all, and then each, where all together have failed."""
        yield range(len(self._payloads))
        if self._again:
            for number in range(len(self._payloads)):
                yield (number,)

    def execute(self, session: Session, part: Sequence[int], handler: Callable[[list[Any]], Any]) -> None:
        """Execute ``part``, in a transaction of ``session``."""

        def call(first: Sequence[int]) -> Sequence[Any]:
            return outcomes_of(handler([self._payloads[part[number]] for number in first]), len(first))

        try:
            done = execute_many(session, self._inbox, [self._begun[number] for number in part], call, is_result)
        except Exception as error:  # noqa: BLE001  # whatever a handler raises is its messages' outcome
            self._again = len(part) > 1 and not isinstance(error, _NO_ONES_FAULT)
            if self._again:
                log.warning(
                    "a batch of %d has failed, and is done again one by one: %s", len(part), type(error).__name__
                )
            for number in part:
                self.outcomes[number] = error
        else:
            for number, executed in zip(part, done, strict=True):
                self.outcomes[number] = executed.result
