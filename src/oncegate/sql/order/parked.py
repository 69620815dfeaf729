"""Parked messages: stored until the number before theirs is applied, and taken from there in their order.

Strategy. Parking a message locks its aggregate's row first, as applying a number does: they take turns. Either the number before
was applied meanwhile, and nothing is parked; or the parked row is counted there, and the statement that applies that number
returns the count. So nothing is left behind, and where nothing is parked no further statement is needed. A row whose outcome a
hook is still to record stays, and is counted, until that is done by whoever comes next. Wherever a parked row is taken, rows of
both tables are locked in one order: that one first, then its aggregate's.
"""

import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    text,
    update,
)

from oncegate.middleware.consumers.sql_interface import Backoff, LateOutcome, State, error_form
from oncegate.sql.database.terms import clock
from oncegate.sql.database.types import DIALECTS, Digest, quoted
from oncegate.sql.order.numbers import Numbered

MOST_FOLLOWED: Final = 100
"""Aggregates that one sweep follows."""
_PAUSES: Final = Backoff(1.0, 60.0, least=1.0)
"""Between two tries of a parked message that fails."""
_RECORDED_AGAIN: Final = 5.0
"""Seconds between two tries of recording an outcome."""
_SHARE: Final = 16
"""A process stores a sixteenth of what is left before it counts again: others park beside it."""
_COUNTED_SECONDS: Final = 1.0
"""The time for which a count holds."""
UNENDED: Final = "its last attempt has not ended: it is at work, or its process has died"
"""The reason that operators see of one that may never get another."""


class Parking(enum.Enum):
    """The answer to a message that was to be parked."""

    PARKED = "parked"
    """It is stored, now or before."""
    READY = "ready"
    """The number before it was applied meanwhile: apply it."""
    FULL = "full"
    """The consumer has as many as it may."""


@dataclass(frozen=True, slots=True)
class Storable:
    """A message with what is stored of it: its aggregate's id for operators, and the handler's arguments in JSON.

    ``submitted``: it came through the gateway.
    """

    message: Numbered
    aggregate_id: str
    arguments: str
    submitted: bool


_LOCK: Final = """\
INSERT INTO {table} AS applied (applied_at, sequence, parked, consumer, aggregate)
VALUES (CURRENT_TIMESTAMP, :_before, 0, :_consumer, :_aggregate)
ON CONFLICT (consumer, aggregate) DO UPDATE SET parked = applied.parked
"""
"""Written as a text: SQLAlchemy would compile it for each execution."""


class ParkedMessages:
    """The parked messages of a consumer under ``names``, the first of which is its own; in a transaction of the caller's."""

    def __init__(self, order: Table, parked: Table, names: Sequence[str], starts_at: int, most: int) -> None:
        self.order = order
        self.parked = parked
        self._names = names
        self._starts_at = starts_at
        self._most = most
        self._may_store = 0
        """The rows that may be stored before they are counted again; in any case at ``_count_at`` (`time.monotonic`)."""
        self._count_at = 0.0
        given = (bindparam("_before", type_=BigInteger()), bindparam("_consumer", type_=Text()))
        self._lock_statements = {
            dialect: text(_LOCK.format(table=quoted(order, dialect))).bindparams(
                *given, bindparam("_aggregate", type_=Digest())
            )
            for dialect in DIALECTS
        }

    def park(self, connection: Connection, early: Storable) -> Parking:
        """Store a message that came early. Raises `SequenceForked` where another one is stored under its number."""
        message = early.message
        if self._lock(connection, message.aggregate) >= message.sequence - 1:
            return Parking.READY
        stored = select(self.parked.c.message).where(self._at(self._names[0], message))
        if (found := connection.execute(stored).first()) is not None:
            message.check_same(found.message)
            return Parking.PARKED
        if self._is_full(connection):
            return Parking.FULL
        self._store(connection, early)
        return Parking.PARKED

    def note(self, connection: Connection, failed: Storable, attempts: int, reason: str, *, ended: bool = True) -> None:
        """Store for operators a message that has failed for good when its turn had come: its aggregate waits for it.

        Without ``ended`` it may yet be applied: one that is stored already stays as it is.
        """
        message = failed.message
        its, values = self._at(self._names[0], message), {"attempts": attempts, "dead": True, "reason": reason}
        if ended and connection.execute(update(self.parked).where(its).values(values)).rowcount:
            return
        if self._lock(connection, message.aggregate) != message.sequence - 1:
            return
        if ended or connection.execute(select(self.parked.c.sequence).where(its)).first() is None:
            self._store(connection, failed, **values)

    def _is_full(self, connection: Connection) -> bool:
        """Whether the consumer has as many rows as it may; they are not counted anew for each."""
        if self._may_store <= 0 or time.monotonic() >= self._count_at:
            own = select(literal(1)).where(self.parked.c.consumer == self._names[0]).limit(self._most).subquery()
            left = self._most - int(connection.scalars(select(func.count()).select_from(own)).one())
            if left <= 0:
                return True
            self._may_store, self._count_at = max(1, left // _SHARE), time.monotonic() + _COUNTED_SECONDS
        self._may_store -= 1
        return False

    def _store(self, connection: Connection, stored: Storable, **values: Any) -> None:
        message, now = stored.message, clock(connection)
        row = {
            "parked_at": now, "due_at": now, "sequence": message.sequence, "attempts": 0, "dead": False, "applied": False,
            "consumer": self._names[0], "aggregate": message.aggregate, "aggregate_id": stored.aggregate_id,
            "message": message.record or None, "fingerprint": message.fingerprint, "arguments": stored.arguments,
            "submitted": stored.submitted,
        }  # fmt: skip
        connection.execute(insert(self.parked).values(row | values))
        self._count(connection, self._names[0], message.aggregate, 1)

    def next(self, connection: Connection, aggregate: bytes) -> Row[Any] | None:
        """The message whose turn it is, or whose number was applied without it, locked; ``last`` is the last applied number.

        ``None`` without one, while it pauses, and while another process has it.
        """
        columns = select(self.parked, self.order.c.sequence.label("last"))
        query = self._ready(connection, columns).where(self.parked.c.aggregate == aggregate)
        query = query.order_by(self.parked.c.sequence).limit(1)
        return connection.execute(query.with_for_update(of=self.parked, skip_locked=True)).first()

    def begin(self, connection: Connection, row: Row[Any]) -> None:
        """Count an attempt at a row of `next`, to be committed before it runs: where its process dies, the next one pauses."""
        attempts = row.attempts + 1
        values = {"attempts": attempts, "reason": UNENDED, "due_at": clock(connection, _PAUSES.pause(attempts))}
        connection.execute(update(self.parked).where(self._is(row)).values(values))

    def lock(self, connection: Connection, row: Row[Any]) -> bool:
        """Lock a row of `next` that this process has begun; false where another one has begun it since."""
        begun = and_(self._is(row), self.parked.c.attempts == row.attempts + 1)
        query = select(literal(1)).where(begun).with_for_update(of=self.parked, skip_locked=True)
        return connection.execute(query).first() is not None

    def remove(self, connection: Connection, row: Row[Any], *, counted: bool) -> None:
        """Delete a row of `next`. ``counted``: the statement that has applied it has counted it off."""
        if connection.execute(delete(self.parked).where(self._is(row))).rowcount and not counted:
            self._count(connection, row.consumer, row.aggregate, -1)

    def put_off(
        self, connection: Connection, row: Row[Any], *, failed: bool, dead: bool, reason: str, outcome: str | None
    ) -> None:
        """Have a row of `next` tried again later, after a pause that grows with each attempt that has ``failed``.

        A ``dead`` one is not tried again; its ``outcome`` is for the hook.
        """
        attempts = row.attempts + failed
        due_at = clock(connection, 0.0 if dead else _PAUSES.pause(attempts))
        values = {"attempts": attempts, "dead": dead, "reason": reason, "due_at": due_at}
        values["outcome"] = outcome if row.message and row.fingerprint else None
        connection.execute(update(self.parked).where(self._is(row)).values(values))

    def owe(self, connection: Connection, row: Row[Any], result: str | None) -> None:
        """Keep a row of `next`, which was applied, until that is recorded with its ``result``, in JSON, if it could be kept."""
        outcome = orjson.dumps([State.SUCCEEDED.value, result]).decode()
        values = {"applied": True, "outcome": outcome, "due_at": clock(connection)}
        connection.execute(update(self.parked).where(self._is(row)).values(values))

    def owed(self, connection: Connection, aggregate: bytes | None) -> Sequence[Row[Any]]:
        """Rows with outcomes to be recorded now, of one aggregate or of all, not more than `MOST_FOLLOWED`."""
        columns = self.parked.c
        query = select(self.parked).where(columns.consumer.in_(self._names), columns.outcome.is_not(None))
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
        """Have the outcome of a row of `owed`, which can't be recorded now, recorded after a pause."""
        values = {"due_at": clock(connection, _RECORDED_AGAIN)}
        connection.execute(update(self.parked).where(self._is(row)).values(values))

    def due(self, connection: Connection) -> list[bytes]:
        """The digests of aggregates that have a message whose turn it is, not more than `MOST_FOLLOWED`."""
        query = self._ready(connection, select(self.parked.c.aggregate)).distinct().limit(MOST_FOLLOWED)
        return list(connection.scalars(query))

    def _lock(self, connection: Connection, aggregate: bytes) -> int:
        """The last number of an aggregate, whose row is locked, and made where there is none."""
        row = {"_before": self._starts_at - 1, "_consumer": self._names[0], "_aggregate": aggregate}
        connection.execute(self._lock_statements[connection.dialect.name], row)
        highest = select(func.max(self.order.c.sequence)).where(
            self.order.c.consumer.in_(self._names), self.order.c.aggregate == aggregate
        )
        return int(connection.scalars(highest).one() or 0)

    def _count(self, connection: Connection, consumer: str, aggregate: bytes, change: int) -> None:
        chosen = and_(self.order.c.consumer == consumer, self.order.c.aggregate == aggregate)
        connection.execute(update(self.order).where(chosen).values(parked=self.order.c.parked + change))

    def _is(self, row: Row[Any]) -> ColumnElement[bool]:
        return self._at(row.consumer, row)

    def _at(self, consumer: str, placed: Numbered | Row[Any]) -> ColumnElement[bool]:
        columns = self.parked.c
        its = and_(columns.consumer == consumer, columns.aggregate == placed.aggregate)
        return and_(its, columns.sequence == placed.sequence)

    def _ready(self, connection: Connection, query: Select[Any]) -> Select[Any]:
        """``query`` for those whose turn it is; and for those whose number was applied without them, by another delivery."""
        order, parked = self.order.c, self.parked.c
        same = and_(order.consumer == parked.consumer, order.aggregate == parked.aggregate)
        is_due = and_(parked.dead.is_(False), parked.due_at <= clock(connection))
        ready = or_(parked.sequence <= order.sequence, and_(parked.sequence == order.sequence + 1, is_due))
        return query.join(self.order, same).where(parked.consumer.in_(self._names), parked.outcome.is_(None), ready)


def outcome_of_error(error: Exception | str) -> str:
    """A failure for good, stored for the hook that is to record it."""
    return orjson.dumps([State.FAILED.value, error_form(error, dead=True).decode()]).decode()


def late_outcome(row: Row[Any]) -> LateOutcome:
    """The outcome that a hook is to record, of a row of `ParkedMessages.owed`."""
    state, body = orjson.loads(row.outcome)
    body = None if body is None else body.encode()
    return LateOutcome(row.message, row.fingerprint, row.submitted, State(state), body)
