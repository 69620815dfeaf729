"""Advances the number of a message's aggregate in a session's transaction, and says what that makes of this delivery."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.orm import Session

from oncegate.middleware.rules.key_text import KeyText
from oncegate.sql.database.errors import InboxMisused, SequenceForked, SequenceInvalid, is_of_database
from oncegate.sql.database.types import DIALECTS
from oncegate.sql.marking.entry import Entry, Kept
from oncegate.sql.marking.statements import Message
from oncegate.sql.marking.writer import Writer
from oncegate.sql.order.guard import Order, guard
from oncegate.sql.order.numbers import Numbered, checked, digest, shown
from oncegate.sql.order.parked import ParkedMessages, Parking
from oncegate.sql.order.position import set_to
from oncegate.sql.order.table import parked_table
from oncegate.sql.order.waiting import backlog


class SequenceWriter(Writer):
    """Of an `Inbox` with an order, in the place of its markers: one row for each aggregate. See `Writer`."""

    def __init__(
        self,
        table: Table,
        names: Sequence[str],
        *,
        order: Order,
        starts_at: int,
        max_parked: int,
        wait_timeout: float,
        idle_timeout: float,
        **options: Any,
    ) -> None:
        super().__init__(table, names, **options)
        self._names = tuple(names)
        self.parks = order == "contiguous"
        self.parked = ParkedMessages(
            table, parked_table(table.metadata, table.schema), self._names, starts_at, max_parked
        )
        self._guards = {
            dialect: guard(
                dialect, table, names, order, starts_at, wait_timeout=wait_timeout, idle_timeout=idle_timeout
            )
            for dialect in DIALECTS
        }

    def mark(self, session: Session | Connection, messages: Sequence[Message]) -> list[Entry]:
        """See `Writer.mark`. Takes one message: two about one aggregate can't be decided about by one statement."""
        if len(messages) > 1:
            raise InboxMisused("an inbox that keeps an order takes one message at a time: call first for each")
        return [self.decide(session, _numbered(message)) for message in messages]

    def park(self, session: Session, message: Message, arguments: str, submitted: bool) -> Parking:
        """See `ParkedMessages.park`. Raises what `Inbox.first` raises."""
        try:
            connection = self.enter(session)
            return self.parked.park(connection, _numbered(message), shown(message.aggregate), arguments, submitted)
        except SequenceForked:
            self.count("forked")
            raise
        except Exception as error:
            if not is_of_database(error):
                raise
            self.raise_meaning(error)

    def note(
        self, session: Session, message: Message, arguments: str, submitted: bool, attempts: int, reason: str
    ) -> None:
        """See `ParkedMessages.note`."""
        connection, aggregate_id = self.enter(session), shown(message.aggregate)
        self.parked.note(connection, _numbered(message), aggregate_id, arguments, submitted, attempts, reason)

    def due(self, session: Session) -> list[bytes]:
        """See `ParkedMessages.due`; ``watch`` is notified of the backlog, too. Raises SQLAlchemy's errors."""
        connection = session.connection()
        self.measure(connection)
        return self.parked.due(connection)

    def measure(self, connection: Connection) -> None:
        """Notify ``watch`` of what waits. Raises SQLAlchemy's errors."""
        found = backlog(connection, self.parked.parked, self._consumer)
        oldest = None if found.oldest is None else found.oldest.timestamp()
        self.notify(lambda watch: watch.order_measured(self._consumer, found.aggregates, found.parked, oldest))

    def decide(self, session: Session | Connection, message: Numbered) -> Entry:
        """The entry of one message."""
        try:
            connection = self.enter(session)
            known = self._guards[connection.dialect.name]
            ruling = known.decide(connection, message)
        except SequenceForked:
            self.count("forked")
            raise
        except Exception as error:
            if not is_of_database(error):
                raise
            self.raise_meaning(error)
        stored = None
        if ruling.last is not None:
            self.check_fingerprint(message, ruling.last.fingerprint)
            stored = ruling.last.result

        def store(kept: list[Kept]) -> None:
            connection.execute(known.keep, {"_aggregate": message.aggregate, "_result": kept[0].stored})

        self.count(ruling.decision.value)
        return Entry(
            message.record,
            decision=ruling.decision,
            stored=stored,
            store=store,
            max_result=self._max_result,
            waiting=ruling.waiting,
        )

    def seed(self, session: Session | Connection, aggregate: KeyText, sequence: int) -> bool:
        """See `Inbox.seed`."""
        digested, number = digest(aggregate), checked(sequence)
        try:
            return set_to(self.enter(session), self._table, self._names, digested, number)
        except Exception as error:
            if not is_of_database(error):
                raise
            self.raise_meaning(error)


def _numbered(message: Message) -> Numbered:
    """The message with its place. Raises `SequenceInvalid`."""
    try:
        aggregate, sequence = digest(message.aggregate), checked(message.sequence)
        return Numbered(aggregate, sequence, message.record, message.fingerprint, other=message.other)
    except SequenceInvalid as error:
        raise SequenceInvalid(f"record {message.record or '-'}: {error}") from None
