"""Parked messages: stored until the number before theirs is applied, and taken from there in their order.

Strategy. Who parks a message locks its aggregate's row first, so that he takes turns with who applies a number: either he finds
there that the number before has come meanwhile, and parks nothing; or his row is counted there, and who applies that number
afterwards gets the count back, from the very statement that applies it. So nothing stays behind, and who finds none parked asks
nothing. One whose outcome a hook is to record stays, counted, until that is done: whoever comes next does it, too. Rows of both
tables are locked in one order wherever a parked one is taken: that one first, its aggregate's after it.
"""

import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    DateTime,
    Row,
    Select,
    Table,
    and_,
    cast,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from oncegate.sql.database.errors import SequenceForked
from oncegate.sql.order.numbers import Numbered

MOST_FOLLOWED: Final = 100
"""Aggregates that one sweep follows."""
LONGEST_PAUSE: Final = 60.0
"""Seconds between two tries of a parked message that fails; the first pause is one of 1 s."""
_RECORDED_AGAIN: Final = 5.0
"""Seconds between two tries of recording an outcome."""
_SHARE: Final = 16
"""A process takes this part of what is left to it before it counts again: others park beside it."""
_COUNTED_SECONDS: Final = 1.0
"""For how long a count holds."""


class Parking(enum.Enum):
    """What came of a message that was to be parked."""

    PARKED = "parked"
    """It is stored, now or before."""
    READY = "ready"
    """The number before it was applied meanwhile: apply it."""
    FULL = "full"
    """The consumer has as many as it may."""


@dataclass(slots=True)
class _Room:
    """So many ``rows`` may be stored before they are counted again, and that ``until`` then."""

    rows: int
    until: float


@dataclass(frozen=True, slots=True)
class ParkedMessages:
    """Those of a consumer under ``names``, the first of which is its own; in a transaction of the caller's."""

    order: Table
    parked: Table
    names: tuple[str, ...]
    starts_at: int
    most: int
    _room: list[_Room] = field(default_factory=list)
    """None before rows are first counted."""

    def park(
        self, connection: Connection, message: Numbered, aggregate_id: str, arguments: str, submitted: bool
    ) -> Parking:
        """Store a message that came early. Raises `SequenceForked` where another one is stored under its number."""
        if self._lock(connection, message.aggregate) >= message.sequence - 1:
            return Parking.READY
        own = self._own(self.parked, message.aggregate)
        stored = select(self.parked.c.message).where(own, self.parked.c.sequence == message.sequence)
        if (found := connection.execute(stored).first()) is not None:
            if message.is_another(found.message):
                raise SequenceForked(
                    f"record {message.record}: record {found.message} has the same number of the same aggregate"
                )
            return Parking.PARKED
        if self._is_full(connection):
            return Parking.FULL
        self._store(connection, message, aggregate_id, arguments, submitted=submitted)
        return Parking.PARKED

    def note(
        self,
        connection: Connection,
        message: Numbered,
        aggregate_id: str,
        arguments: str,
        submitted: bool,
        attempts: int,
        reason: str,
    ) -> None:
        """Store a message whose turn it is and that has failed for good, for operators: its aggregate waits for it."""
        its = and_(self._own(self.parked, message.aggregate), self.parked.c.sequence == message.sequence)
        values = {"attempts": attempts, "dead": True, "reason": reason}
        if connection.execute(update(self.parked).where(its).values(values)).rowcount:
            return
        if self._lock(connection, message.aggregate) == message.sequence - 1:
            self._store(connection, message, aggregate_id, arguments, submitted=submitted, **values)

    def _is_full(self, connection: Connection) -> bool:
        """Whether the consumer has as many rows as it may; they are not counted anew for each."""
        room = self._room
        if not room or time.monotonic() >= room[0].until or room[0].rows <= 0:
            own = select(literal(1)).where(self.parked.c.consumer == self.names[0]).limit(self.most).subquery()
            left = self.most - int(connection.scalars(select(func.count()).select_from(own)).one())
            if left <= 0:
                return True
            room[:] = [_Room(max(1, left // _SHARE), time.monotonic() + _COUNTED_SECONDS)]
        room[0].rows -= 1
        return False

    def _store(
        self, connection: Connection, message: Numbered, aggregate_id: str, arguments: str, **values: Any
    ) -> None:
        now = clock(connection)
        row = {
            "parked_at": now, "due_at": now, "sequence": message.sequence, "attempts": 0, "dead": False, "applied": False,
            "consumer": self.names[0], "aggregate": message.aggregate, "aggregate_id": aggregate_id,
            "message": message.record or None, "fingerprint": message.fingerprint, "arguments": arguments,
        }  # fmt: skip
        connection.execute(insert(self.parked).values(row | values))
        self._count(connection, self.names[0], message.aggregate, 1)

    def next(self, connection: Connection, aggregate: bytes) -> Row[Any] | None:
        """The message whose turn it is, locked; ``None`` without one, while it pauses, and where another one has it.

        Or one whose number was applied without it; ``last`` is the last applied number.
        """
        columns = select(self.parked, self.order.c.sequence.label("last"))
        query = self._ready(connection, columns).where(self.parked.c.aggregate == aggregate)
        query = query.order_by(self.parked.c.sequence).limit(1)
        return connection.execute(query.with_for_update(of=self.parked, skip_locked=True)).first()

    def remove(self, connection: Connection, row: Row[Any], *, counted: bool) -> None:
        """Delete a row of `next`. ``counted``: the statement that has applied it has counted it off."""
        if connection.execute(delete(self.parked).where(self._is(row))).rowcount and not counted:
            self._count(connection, row.consumer, row.aggregate, -1)

    def put_off(
        self, connection: Connection, row: Row[Any], *, failed: bool, reason: str, outcome: str | None = None
    ) -> None:
        """Have a row of `next` tried again later, after a pause that grows with each attempt that has ``failed``.

        With an ``outcome``, never: that is for the hook.
        """
        attempts, dead = row.attempts + failed, outcome is not None
        pause = 0.0 if dead else min(LONGEST_PAUSE, 2.0 ** max(0, attempts - 1))
        values = {"attempts": attempts, "dead": dead, "reason": reason, "due_at": clock(connection, pause)}
        values["outcome"] = outcome if row.message and row.fingerprint else None
        connection.execute(update(self.parked).where(self._is(row)).values(values))

    def owe(self, connection: Connection, row: Row[Any], outcome: str) -> None:
        """Keep a row of `next`, which was applied, until its ``outcome`` is recorded."""
        values = {"applied": True, "outcome": outcome, "due_at": clock(connection)}
        connection.execute(update(self.parked).where(self._is(row)).values(values))

    def owed(self, connection: Connection, aggregate: bytes | None) -> Sequence[Row[Any]]:
        """Rows with outcomes to be recorded now, of one aggregate or of all, not more than `MOST_FOLLOWED`."""
        columns = self.parked.c
        query = select(self.parked).where(columns.consumer.in_(self.names), columns.outcome.is_not(None))
        query = query.where(columns.due_at <= clock(connection))
        if aggregate is None:
            query = query.order_by(columns.due_at)
        else:
            query = query.where(columns.aggregate == aggregate).order_by(columns.sequence)
        return connection.execute(query.limit(MOST_FOLLOWED)).all()

    def recorded(self, connection: Connection, row: Row[Any]) -> None:
        """The outcome of a row of `owed` is recorded: it goes, unless its number waits for an operator."""
        if row.applied:
            self.remove(connection, row, counted=False)
        else:
            same = and_(self._is(row), self.parked.c.outcome == row.outcome)  # it may have been tried again meanwhile
            connection.execute(update(self.parked).where(same).values(outcome=None))

    def record_later(self, connection: Connection, row: Row[Any]) -> None:
        """The outcome of a row of `owed` can't be recorded now."""
        values = {"due_at": clock(connection, _RECORDED_AGAIN)}
        connection.execute(update(self.parked).where(self._is(row)).values(values))

    def due(self, connection: Connection) -> list[bytes]:
        """The digests of aggregates that have a message whose turn it is, not more than `MOST_FOLLOWED`."""
        query = self._ready(connection, select(self.parked.c.aggregate)).distinct().limit(MOST_FOLLOWED)
        return list(connection.scalars(query))

    def _lock(self, connection: Connection, aggregate: bytes) -> int:
        """The last number of an aggregate, whose row is locked, and made where there is none."""
        column = self.order.c
        its = and_(column.consumer == self.names[0], column.aggregate == aggregate)
        if not connection.execute(update(self.order).where(its).values(parked=column.parked)).rowcount:
            # Not at once by this one, which SQLAlchemy compiles each time anew.
            row = {"applied_at": clock(connection), "sequence": self.starts_at - 1, "parked": 0, "aggregate": aggregate}
            make = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(self.order)
            connection.execute(
                make.values(row | {"consumer": self.names[0]}).on_conflict_do_update(
                    index_elements=[column.consumer, column.aggregate], set_={"parked": column.parked}
                )
            )
        highest = select(func.max(self.order.c.sequence)).where(
            self.order.c.consumer.in_(self.names), self.order.c.aggregate == aggregate
        )
        return int(connection.scalars(highest).one() or 0)

    def _count(self, connection: Connection, consumer: str, aggregate: bytes, change: int) -> None:
        chosen = and_(self.order.c.consumer == consumer, self.order.c.aggregate == aggregate)
        connection.execute(update(self.order).where(chosen).values(parked=self.order.c.parked + change))

    def _own(self, table: Table, aggregate: bytes) -> ColumnElement[bool]:
        return and_(table.c.consumer == self.names[0], table.c.aggregate == aggregate)

    def _is(self, row: Row[Any]) -> ColumnElement[bool]:
        columns = self.parked.c
        return and_(
            columns.consumer == row.consumer, columns.aggregate == row.aggregate, columns.sequence == row.sequence
        )

    def _ready(self, connection: Connection, query: Select[Any]) -> Select[Any]:
        """``query`` for those whose turn it is; and for those whose number was applied without them, by another delivery."""
        not_owed = self.parked.c.outcome.is_(None)
        same = and_(self.order.c.consumer == self.parked.c.consumer, self.order.c.aggregate == self.parked.c.aggregate)
        return query.join(self.order, same).where(
            self.parked.c.consumer.in_(self.names),
            not_owed,
            or_(
                self.parked.c.sequence <= self.order.c.sequence,
                and_(
                    self.parked.c.sequence == self.order.c.sequence + 1,
                    self.parked.c.dead.is_(False),
                    self.parked.c.due_at <= clock(connection),
                ),
            ),
        )


def clock(connection: Connection, seconds: float = 0.0) -> Any:
    """The database's time, so many seconds later, as both databases write and compare it."""
    if connection.dialect.name == "postgresql":
        return func.clock_timestamp(type_=DateTime(timezone=True)) + cast(
            timedelta(seconds=seconds), postgresql.INTERVAL
        )
    return func.strftime("%Y-%m-%d %H:%M:%f000", "now", f"+{seconds:.3f} seconds", type_=DateTime(timezone=True))
