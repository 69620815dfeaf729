"""Aggregates that wait for a number: which, for which one, since when; and what an operator does about it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    MetaData,
    Row,
    Table,
    and_,
    delete,
    func,
    inspect,
    literal,
    or_,
    select,
    tuple_,
    update,
)

from oncegate.middleware.consumers.sql_interface import NotRetryable
from oncegate.sql.database.access import Database, NotDone, check_there, command_line, in_database
from oncegate.sql.database.errors import SequenceInvalid
from oncegate.sql.database.findings import LONG_SECONDS, DatabaseFinding, table_findings, unreadable
from oncegate.sql.database.terms import clock
from oncegate.sql.database.types import utc
from oncegate.sql.order.numbers import digest
from oncegate.sql.order.parked import outcome_of_error
from oncegate.sql.order.table import ORDER, PARKED, order_table, parked_table

_TASKS: Final = {
    "consume by first": {ORDER: "SELECT, INSERT, UPDATE"},
    "consume by transaction": {ORDER: "SELECT, INSERT, UPDATE", PARKED: "SELECT, INSERT, UPDATE, DELETE"},
    "see what waits": {ORDER: "SELECT", PARKED: "SELECT"},
    "skip and retry": {ORDER: "SELECT, UPDATE", PARKED: "SELECT, UPDATE, DELETE"},
}
_SKIPPED: Final = outcome_of_error(NotRetryable("skipped by an operator"))
MOST_SHOWN: Final = 1000
"""Aggregates in one listing: those that have waited the longest."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An aggregate that waits for the message of the number ``waits_for``, and how many are parked ``behind`` that.

    Where that message has failed for good, ``record`` is its id (empty without a key), ``reason`` its last error; both are
    ``None`` where it is not here. ``early`` is the highest number that came early and stays with its broker; 0 where what came is
    parked. ``digest`` is that of the aggregate's id.
    """

    consumer: str
    aggregate: str
    waits_for: int
    since: datetime
    behind: int
    record: str | None = None
    attempts: int = 0
    reason: str | None = None
    early: int = 0
    digest: bytes = field(default=b"", repr=False)

    def as_json(self) -> dict[str, Any]:
        """The members of an aggregate that waits."""
        members = asdict(self) | {"since": self.since.isoformat()}
        del members["digest"]
        return members

    @property
    def place(self) -> "WaitingPlace":
        """Its place among all that wait: those that have waited the longest come first."""
        return self.since, self.consumer, self.digest


WaitingPlace = tuple[datetime, str, bytes]
"""Since when an aggregate waits, its consumer, and its digest."""


@dataclass(frozen=True, slots=True)
class WaitingTotals:
    """A consumer's totals: how many aggregates wait, how many ``messages`` are parked, and since when the ``oldest`` waits."""

    consumer: str
    aggregates: int
    messages: int
    oldest: datetime

    def finding(self, schema: str | None) -> DatabaseFinding:
        """A line for operators."""
        age = (datetime.now(UTC) - self.oldest).total_seconds()
        line = f"{self.consumer}: {self.aggregates} aggregates wait, {self.messages} messages are parked"
        if age <= LONG_SECONDS:
            return DatabaseFinding("order", "good", f"{line}, none for long")
        line += f", the oldest since {self.oldest:%Y-%m-%d %H:%M:%S} UTC, for {age:.0f} s:"
        return DatabaseFinding("order", "advice", f"{line} {command_line('inbox waiting', schema)}")


class OrderTables:
    """An order's tables in a schema, for operators."""

    def __init__(self, schema: str | None) -> None:
        metadata = MetaData()
        self._order = order_table(metadata, schema)
        self._parked = parked_table(metadata, schema)

    def waiting(
        self,
        database: Database,
        *,
        most: int = MOST_SHOWN,
        after: WaitingPlace | None = None,
        aggregate: str | bytes | None = None,
    ) -> list[Waiting]:
        """Aggregates that wait, in a database, the one with the oldest message first; those behind ``after``, or of one
        ``aggregate``, by its id or by the digest of that. Raises `NotDone`.
        """
        chosen = None if aggregate is None else _digest(aggregate)
        return in_database(database, lambda connection: self._waiting(connection, most, after, chosen))

    def skip(self, database: Database, consumer: str, aggregate: str | bytes, sequence: int) -> int:
        """Count a number as applied that never comes; how many are parked behind it. Raises `NotDone`."""
        chosen = _digest(aggregate)
        return in_database(database, lambda connection: self._skip(connection, consumer, chosen, sequence))

    def retry(self, database: Database, consumer: str, aggregate: str | bytes) -> int:
        """Have a parked message that has failed for good tried again; its number. Raises `NotDone`."""
        chosen = _digest(aggregate)
        return in_database(database, lambda connection: self._retry(connection, consumer, chosen))

    def _waiting(
        self, connection: Connection, most: int, after: WaitingPlace | None, aggregate: bytes | None
    ) -> list[Waiting]:
        check_there(connection, self._order, self._parked)
        order, parked = self._order.c, self._parked.c
        same = and_(order.consumer == parked.consumer, order.aggregate == parked.aggregate, parked.applied.is_(False))
        grouped = (order.consumer, order.aggregate, order.sequence)
        behind = func.count().filter(parked.sequence > order.sequence + 1)
        since, name = func.min(parked.parked_at), func.min(parked.aggregate_id)
        query = select(*grouped, since.label("since"), name.label("name"), behind.label("behind"))
        query = query.join_from(self._parked, self._order, same).group_by(*grouped)
        columns = (
            order.consumer,
            order.aggregate,
            order.early_aggregate,
            order.sequence,
            order.early_since,
            order.early,
        )
        early = select(*columns).where(_stays_early(self._order))
        if aggregate is not None:
            query, early = query.where(order.aggregate == aggregate), early.where(order.aggregate == aggregate)
        if after is not None:
            query, early = (
                query.having(_behind(after, since, order)),
                early.where(_behind(after, order.early_since, order)),
            )
        rows = connection.execute(query.order_by(since, order.consumer, order.aggregate).limit(most)).all()
        found = self._shown(connection, rows)
        early = early.order_by(order.early_since, order.consumer, order.aggregate).limit(most)
        found += [
            Waiting(consumer, name, sequence + 1, utc(since), 0, early=number, digest=digest)
            for consumer, digest, name, sequence, since, number in connection.execute(early)
        ]
        return sorted(found, key=lambda each: each.place)[:most]

    def _shown(self, connection: Connection, rows: Sequence[Row[Any]]) -> list[Waiting]:
        """Aggregates with parked messages; one that waits for a message that is here, too, with what has become of that."""
        parked = self._parked.c
        place = tuple_(parked.consumer, parked.aggregate, parked.sequence)
        wanted = [(row.consumer, row.aggregate, row.sequence + 1) for row in rows]
        columns = (parked.consumer, parked.aggregate, parked.message, parked.attempts, parked.reason)
        heads = {
            (head.consumer, head.aggregate): {
                "record": head.message or "", "attempts": head.attempts, "reason": head.reason,
            }
            for head in (connection.execute(select(*columns).where(place.in_(wanted))) if wanted else ())
        }  # fmt: skip
        return [
            Waiting(
                row.consumer,
                row.name,
                row.sequence + 1,
                utc(row.since),
                row.behind,
                digest=row.aggregate,
                **heads.get((row.consumer, row.aggregate), {}),
            )
            for row in rows
        ]

    def _skip(self, connection: Connection, consumer: str, aggregate: bytes, sequence: int) -> int:
        check_there(connection, self._order, self._parked)
        order, parked, clocked = self._order.c, self._parked.c, clock(connection)
        its = and_(self._of(self._parked, consumer, aggregate), parked.sequence == sequence)
        connection.execute(  # the hook is still to record that it failed
            update(self._parked)
            .where(its, parked.fingerprint.is_not(None), or_(parked.dead.is_(False), parked.outcome.is_not(None)))
            .values(applied=True, due_at=clocked, outcome=func.coalesce(parked.outcome, _SKIPPED))
        )
        gone = connection.execute(delete(self._parked).where(its, parked.applied.is_(False))).rowcount
        skipped = (
            update(self._order)
            .where(self._of(self._order, consumer, aggregate), order.sequence == sequence - 1)
            .values(sequence=sequence, parked=order.parked - gone, message=None, fingerprint=None, result=None)
            .returning(order.sequence)
        )
        if connection.scalars(skipped).first() is None:
            raise NotDone(self._why_not(connection, consumer, aggregate))
        behind = and_(self._of(self._parked, consumer, aggregate), parked.sequence > sequence)
        return int(connection.scalars(select(func.count()).select_from(self._parked).where(behind)).one())

    def _retry(self, connection: Connection, consumer: str, aggregate: bytes) -> int:
        check_there(connection, self._order, self._parked)
        retried = (
            update(self._parked)
            .where(self._of(self._parked, consumer, aggregate), self._parked.c.dead)
            .values(dead=False, attempts=0, due_at=clock(connection), outcome=None)
            .returning(self._parked.c.sequence)
        )
        if (number := connection.scalars(retried).first()) is None:
            raise NotDone("no message about this aggregate has failed for good here")
        return int(number)

    def _why_not(self, connection: Connection, consumer: str, aggregate: bytes) -> str:
        last = connection.scalar(select(self._order.c.sequence).where(self._of(self._order, consumer, aggregate)))
        if last is None:
            return f"{consumer} knows no such aggregate"
        return f"the last applied number of this aggregate is {last}: only {last + 1} can be skipped"

    @staticmethod
    def _of(table: Table, consumer: str, aggregate: bytes) -> Any:
        return and_(table.c.consumer == consumer, table.c.aggregate == aggregate)


def _behind(place: WaitingPlace, since: ColumnElement[Any], order: Any) -> ColumnElement[bool]:
    """Whether an aggregate that waits ``since`` comes behind ``place``."""
    at, consumer, aggregate = place
    last = and_(order.consumer == consumer, order.aggregate > aggregate)
    return or_(since > at, and_(since == at, or_(order.consumer > consumer, last)))


def _stays_early(order: Table) -> ColumnElement[bool]:
    """Rows of aggregates that wait for a number, and have nothing parked: what came early stays with its broker."""
    columns = order.c
    return and_(columns.early.is_not(None), columns.early > columns.sequence + 1, columns.parked == 0)


def waiting_totals(
    connection: Connection, order: Table, parked: Table, consumer: str | None = None
) -> Sequence[WaitingTotals]:
    """The totals of each consumer of which aggregates wait, or of the one that is named; that which waits the longest first."""
    columns = parked.c
    oldest = func.min(columns.parked_at)
    query = select(columns.consumer, func.count(columns.aggregate.distinct()), func.count(), oldest)
    query = query.where(columns.applied.is_(False)).group_by(columns.consumer).order_by(oldest)
    if consumer is not None:  # then not more rows are read than it may have parked
        query = query.where(columns.consumer == consumer)
    early = select(order.c.consumer, func.count(), literal(0), func.min(order.c.early_since))
    early = early.where(_stays_early(order)).group_by(order.c.consumer)
    if consumer is not None:
        early = early.where(order.c.consumer == consumer)
    found: dict[str, WaitingTotals] = {}
    for name, aggregates, rows, since in [*connection.execute(query), *connection.execute(early)]:
        other = found.get(name, WaitingTotals(name, 0, 0, utc(since)))
        found[name] = WaitingTotals(
            name, other.aggregates + aggregates, other.messages + rows, min(other.oldest, utc(since))
        )
    return sorted(found.values(), key=lambda each: each.oldest)


def order_findings(connection: Connection, schema: str | None) -> list[DatabaseFinding]:
    """The tables, what the role may, and for each consumer the aggregates that wait; nothing where no order is kept."""
    order, parked = order_table(MetaData(), schema), parked_table(MetaData(), schema)
    if not inspect(connection).has_table(ORDER, schema=schema):
        return []
    found = table_findings(connection, [order, parked], _TASKS, group="inbox")
    if any(each.severity == "failed" for each in found):
        return found
    if closed := unreadable(connection, "order", "which aggregates wait", order, parked):
        return found + closed
    waiting = [each.finding(schema) for each in waiting_totals(connection, order, parked)]
    return found + (waiting or [DatabaseFinding("order", "good", "no aggregate waits for a number")])


def _digest(aggregate: str | bytes) -> bytes:
    """The digest of an id; what is one already, itself. Raises `NotDone`."""
    if isinstance(aggregate, bytes):
        return aggregate
    try:
        return digest(aggregate)
    except SequenceInvalid as error:
        raise NotDone(str(error), usage=True) from None
