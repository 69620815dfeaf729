"""Advances the number of a message's aggregate in a session's transaction, which shows what becomes of this delivery."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, Table
from sqlalchemy.orm import Session

from oncegate.middleware.consumers.sql_interface import KeyText
from oncegate.sql.database.errors import InboxMisused, SequenceInvalid
from oncegate.sql.database.sessions import AnySync
from oncegate.sql.database.types import DIALECTS
from oncegate.sql.marking.entry import Entry, Keeping
from oncegate.sql.marking.statements import Message
from oncegate.sql.marking.writer import Writer
from oncegate.sql.order.guard import Guard, Order
from oncegate.sql.order.numbers import Numbered, checked, digest, shown
from oncegate.sql.order.parked import ParkedMessages, Parking, Storable
from oncegate.sql.order.table import parked_table
from oncegate.sql.order.waiting import parked_totals


class SequenceWriter(Writer):
    """See `Writer`: one row for each aggregate in the place of markers. ``limits`` are those of `limits_of`."""

    def __init__(
        self,
        table: Table,
        names: Sequence[str],
        limits: str,
        *,
        order: Order,
        starts_at: int,
        max_parked: int,
        **options: Any,
    ) -> None:
        super().__init__(table, names, **options)
        self.parks = order == "contiguous"
        self.parked = ParkedMessages(table, parked_table(table.metadata, table.schema), names, starts_at, max_parked)
        self._guards = {dialect: Guard(dialect, table, names, order, starts_at, limits) for dialect in DIALECTS}

    def mark(self, session: AnySync, messages: Sequence[Message]) -> list[Entry]:
        """See `Writer.mark`. Takes one message: two about one aggregate can't be decided about by one statement."""
        if len(messages) > 1:
            raise InboxMisused("an inbox that keeps an order takes one message at a time: call first for each")
        return [self.decide(session, _numbered(message)) for message in messages]

    def decide(self, session: AnySync, message: Numbered) -> Entry:
        """The entry of one message."""
        with self.meanings():
            connection = self.enter(session)
            guard = self._guards[connection.dialect.name]
            ruling = guard.decide(connection, message)
        stored = None
        if ruling.last is not None:
            self.check_fingerprint(message, ruling.last.fingerprint)
            stored = ruling.last.result
        self.count(ruling.decision.value)
        keeping, keys = Keeping(connection, guard.keep, self._max_result), [{"_aggregate": message.aggregate}]
        return Entry(message.record, ruling.decision, keeping, keys, stored=stored, waiting=ruling.waiting)

    def park(self, session: Session, message: Message, arguments: str, submitted: bool) -> Parking:
        """See `ParkedMessages.park`. Raises what `Inbox.first` raises."""
        with self.meanings():
            return self.parked.park(self.enter(session), _storable(message, arguments, submitted))

    def note(
        self,
        session: Session,
        message: Message,
        arguments: str,
        submitted: bool,
        attempts: int,
        reason: str,
        *,
        ended: bool,
    ) -> None:
        """See `ParkedMessages.note`."""
        stored = _storable(message, arguments, submitted)
        self.parked.note(self.enter(session), stored, attempts, reason, ended=ended)

    def lock(self, session: Session, row: Row[Any]) -> bool:
        """See `ParkedMessages.lock`. Raises what `Inbox.first` raises."""
        with self.meanings():
            return self.parked.lock(self.enter(session), row)

    def due(self, session: Session) -> list[bytes]:
        """See `ParkedMessages.due`; ``watch`` is notified of what waits, too. Raises SQLAlchemy's errors."""
        connection = session.connection()
        self.measure(connection)
        return self.parked.due(connection)

    def measure(self, connection: Connection) -> None:
        """Notify ``watch`` of what waits. Raises SQLAlchemy's errors."""
        found = next(iter(parked_totals(connection, self.parked.parked, self._consumer)), None)
        aggregates, messages, oldest = (
            (0, 0, None) if found is None else (found.aggregates, found.messages, found.oldest.timestamp())
        )
        self.notify(lambda watch: watch.order_measured(self._consumer, aggregates, messages, oldest))

    def seed(self, session: AnySync, aggregate: KeyText, sequence: int) -> bool:
        """See `Inbox.seed`."""
        digested, number = digest(aggregate), checked(sequence)
        with self.meanings():
            connection = self.enter(session)
            return self._guards[connection.dialect.name].seed(connection, digested, number)


def _numbered(message: Message) -> Numbered:
    """The message with its place. Raises `SequenceInvalid`."""
    try:
        aggregate, sequence = digest(message.aggregate), checked(message.sequence)
        return Numbered(aggregate, sequence, message.record, message.fingerprint, other=message.other)
    except SequenceInvalid as error:
        raise SequenceInvalid(f"record {message.record or '-'}: {error}") from None


def _storable(message: Message, arguments: str, submitted: bool) -> Storable:
    return Storable(_numbered(message), shown(message.aggregate), arguments, submitted)
