"""Has an inbox forget all of a consumer, so that everything it is sent again is applied again.

Strategy (PostgreSQL). Rows can't be set back that are not committed yet: a marker that commits while its row is being looked for
would stay, and its effect be emptied with the read model. So each transaction with a marker holds an advisory lock of its
consumer, shared; a reset takes it alone, which waits for them, and has those that come then wait. (A lock of the table would be
waited for before the statement has set how long.) SQLite has one writer at a time.

A statement that has waited so has read before the reset what it decides by. So numbers are set back, not deleted: the row that
it found is there, and is compared as it is now. What it takes for a duplicate came before the reset, and is sent again after it.

What a cleanup of all consumers has forgotten is every consumer's: it stays, and the instant of the reset is kept as a row in the
place of a message. Whatever was forgotten before that instant doesn't count for this consumer any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Table, delete, text, update

from oncegate.sql.database.errors import InboxMisused
from oncegate.sql.database.misuse import WRITTEN_BEFORE, has_written
from oncegate.sql.database.sessions import AnySync
from oncegate.sql.database.terms import clock, lock_alone, wait_limit
from oncegate.sql.database.types import insert_into
from oncegate.sql.marking.sequence_writer import SequenceWriter
from oncegate.sql.marking.table import NO_MESSAGE, RESET
from oncegate.sql.marking.writer import Writer
from oncegate.sql.order.parked import ParkedMessages


@dataclass(frozen=True, slots=True)
class ConsumerReset:
    """The reset of the consumer with these ``names``, which ``writer`` writes for; ``sequences`` are there with an order."""

    names: Sequence[str]
    wait_timeout: float
    writer: Writer
    table: Table
    sequences: SequenceWriter | None
    starts_at: int

    def reset(self, session: AnySync) -> None:
        """See `Inbox.reset`. Raises `InboxMisused` where the transaction has written before."""
        with self.writer.meanings():
            connection = self.writer.enter(session)
            self._lock(connection)
            if self.sequences is None:
                self._delete_markers(connection)
            else:
                self._set_back(connection, self.sequences.parked)

    def _delete_markers(self, connection: Connection) -> None:
        """Delete all markers, and have what was forgotten before not count."""
        table = self.table
        connection.execute(delete(table).where(table.c.consumer.in_(self.names), table.c.message != NO_MESSAGE))
        insert = insert_into(table, connection.dialect.name)
        values = {"received_at": clock(connection), "message": NO_MESSAGE, "result": RESET}
        for name in sorted(self.names):
            row = insert.values(consumer=name, **values)
            changed = {"received_at": row.excluded.received_at, "result": RESET}
            connection.execute(
                row.on_conflict_do_update(index_elements=[table.c.consumer, table.c.message], set_=changed)
            )

    def _set_back(self, connection: Connection, messages: ParkedMessages) -> None:
        """Set all aggregates' numbers back to the one before the first, and delete what is parked."""
        order, parked = messages.order, messages.parked
        emptied = dict.fromkeys(("message", "fingerprint", "result", "early", "early_since", "early_aggregate"))
        values = {"sequence": self.starts_at - 1, "parked": 0, **emptied}
        connection.execute(update(order).where(order.c.consumer.in_(self.names)).values(values))
        connection.execute(delete(parked).where(parked.c.consumer.in_(self.names)))

    def _lock(self, connection: Connection) -> None:
        """From now on nobody writes a marker of this consumer, until the transaction ends."""
        if has_written(connection):
            raise InboxMisused(WRITTEN_BEFORE)
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT {wait_limit(self.wait_timeout)}"))
            connection.execute(text(f"SELECT {lock_alone(self.names)}"))
