"""Messages that came early and stay with their broker: noted in their aggregate's row, so that operators see what waits.

Strategy. A delivery that is early is rolled back, and with it all that it has written. So its number is kept in this process, and
written in a transaction of its own by whoever looks every few seconds: never by the delivery, which holds a connection already.
What is lost with a process comes with the next delivery.
"""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, Select, Table, Text, and_, bindparam, case, select, update
from sqlalchemy.dialects import postgresql, sqlite

from oncegate.sql.database.terms import clock
from oncegate.sql.order.numbers import Numbered

MOST_NOTED: Final = 100
"""Aggregates that a process notes at a time: the others come again."""


@dataclass(frozen=True, slots=True)
class EarlyNumber:
    """The highest number of an aggregate that came early, with the aggregate's digest and id."""

    aggregate: bytes
    aggregate_id: str
    sequence: int


class EarlyMessages:
    """Those of this process for the consumer ``name``."""

    def __init__(self, order: Table, name: str, starts_at: int) -> None:
        self._order = order
        self._name = name
        self._starts_at = starts_at
        self._seen: dict[bytes, EarlyNumber] = {}

    def add(self, message: Numbered, aggregate_id: str) -> None:
        """A delivery came early."""
        seen = self._seen.get(message.aggregate)
        if seen is None and len(self._seen) >= MOST_NOTED:
            return
        if seen is None or seen.sequence < message.sequence:
            self._seen[message.aggregate] = EarlyNumber(message.aggregate, aggregate_id, message.sequence)

    def drop(self, message: Numbered) -> None:
        """It is parked, and seen there."""
        self._seen.pop(message.aggregate, None)

    def take(self) -> list[EarlyNumber]:
        """The messages that came early since the last time."""
        seen, self._seen = self._seen, {}
        return [*seen.values()]

    def note(self, connection: Connection, early: EarlyNumber) -> None:
        """Write one into its aggregate's row, unless its turn has come meanwhile. It waits for who applies a number there."""
        columns = self._order.c
        insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        now = clock(connection)
        given = {
            "applied_at": now, "sequence": self._starts_at - 1, "parked": 0, "consumer": self._name,
            "aggregate": early.aggregate, "early": early.sequence, "early_since": now,
            "early_aggregate": bindparam("_id", early.aggregate_id, type_=Text()),
        }  # fmt: skip
        is_new = columns.early.is_(None) | (columns.early <= columns.sequence + 1)
        noted = insert(self._order).values(given)
        written = {
            "early": noted.excluded.early,
            "early_since": case((is_new, noted.excluded.early_since), else_=columns.early_since),
            "early_aggregate": noted.excluded.early_aggregate,
        }
        waits = and_(columns.sequence < early.sequence - 1, is_new | (columns.early < early.sequence))
        keys = [columns.consumer, columns.aggregate]
        connection.execute(noted.on_conflict_do_update(index_elements=keys, set_=written, where=waits))

    def is_over(self, connection: Connection) -> bool:
        """Whether something is noted that waits no more."""
        return connection.execute(self._over().limit(1)).first() is not None

    def clear(self, connection: Connection) -> None:
        """Take out what waits no more, of rows that nobody is at."""
        columns = self._order.c
        found = self._over().limit(MOST_NOTED).with_for_update(skip_locked=True)
        for aggregate in connection.scalars(found).all():
            its = and_(columns.consumer == self._name, columns.aggregate == aggregate)
            connection.execute(
                update(self._order).where(its).values(early=None, early_since=None, early_aggregate=None)
            )

    def _over(self) -> Select[tuple[bytes]]:
        columns = self._order.c
        over = and_(columns.consumer == self._name, columns.early.is_not(None), columns.early <= columns.sequence + 1)
        return select(columns.aggregate).where(over)
