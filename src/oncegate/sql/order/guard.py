"""The sequence guard: one statement advances an aggregate's last applied number, and so decides whether a message is applied.

Strategy. ``INSERT ... ON CONFLICT DO UPDATE ... WHERE ... RETURNING``, in the transaction of the effect: what it returns is
applied, and committed with the effect or not at all. A concurrent delivery about the same aggregate waits there for the end of
that transaction, and is then compared with the number that it has left. A row is inserted for the first number alone: for any
other, only where there is one already, so that no number is the first just because it came first.

The rows are one parameter, in JSON, one for each of the consumer's names, in their order. A name that has fallen behind (a former
one whose processes ended, a new one that has no row yet) is taken along by the one that has the number before.

What was not applied is read by the same statement on PostgreSQL. Where another transaction has moved on since it began, or on
SQLite, it is read by a second one.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson
from sqlalchemy import (
    BigInteger,
    Boolean,
    Connection,
    Integer,
    Row,
    Table,
    Text,
    TextualSelect,
    and_,
    bindparam,
    column,
    select,
    text,
    update,
)

from oncegate.sql.database.errors import InboxBusy
from oncegate.sql.database.terms import RECORD_BYTES, listed
from oncegate.sql.database.types import Digest, RecordId, quoted
from oncegate.sql.order.numbers import Numbered

Order = Literal["none", "latest", "contiguous"]


class Decision(enum.Enum):
    """An inbox's decision about a delivery. Only ``FIRST`` is to be executed."""

    FIRST = "first"
    DUPLICATE = "duplicate"
    """It was applied before."""
    STALE = "stale"
    """A later number was applied, and overwrites it (``order="latest"``)."""
    EARLY = "early"
    """A number before it was not applied yet (``order="contiguous"``)."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """A decision. ``last`` is the row of the highest number that was applied before; none for what is ``FIRST``.

    ``waiting``: messages are parked behind this number.
    """

    decision: Decision
    last: Row[Any] | None = None
    waiting: bool = False


_INSERT: Final = """\
INSERT INTO {table} AS applied (applied_at, sequence, parked, consumer, aggregate, message, fingerprint)
SELECT {now}, {of_sequence}, {of_parked}, {of_consumer}, {of_aggregate}, {of_message}, {of_fingerprint} FROM {given}
WHERE {limited} AND {insertable}
ON CONFLICT (consumer, aggregate) DO UPDATE SET
    applied_at = excluded.applied_at, sequence = excluded.sequence, message = excluded.message,
    fingerprint = excluded.fingerprint, result = NULL, parked = applied.parked + excluded.parked
    WHERE {updatable}
"""
_POSTGRESQL: Final = """\
WITH given AS (
    SELECT consumer, decode(aggregate, 'hex') AS aggregate, sequence, parked,
        {of_record} AS message, decode(fingerprint, 'hex') AS fingerprint
    FROM json_to_recordset(CAST(:_rows AS json))
        AS row (consumer text, aggregate text, sequence bigint, parked integer, message text, fingerprint text)
), there AS MATERIALIZED (
    SELECT consumer, aggregate, sequence, parked, message, fingerprint, result FROM {table}
    WHERE consumer IN ({names}) AND aggregate = ANY(ARRAY(SELECT aggregate FROM given))
), advanced AS (
    {insert}RETURNING consumer, parked
)
SELECT consumer, NULL, parked, NULL, NULL, NULL, true FROM advanced
UNION ALL
SELECT consumer, sequence, parked, message, fingerprint, result, false FROM there
    WHERE (SELECT count(*) FROM advanced) < (SELECT count(*) FROM given)
"""
"""An array, so that the key's index is searched; read once, for the conditions and for what was not applied. The limits are set
in a query of their own, which is done once. What was there is returned only where not all was applied."""
_SQLITE: Final = "{insert}RETURNING consumer, NULL, parked, NULL, NULL, NULL, true"
_CONDITIONS: Final[dict[Order, tuple[str, str]]] = {
    "latest": ("{of_sequence} >= {starts_at}", "applied.sequence < excluded.sequence"),
    "contiguous": (
        "({of_sequence} = {starts_at} OR EXISTS (SELECT 1 FROM {there} WHERE there.aggregate = {of_aggregate}"
        " AND (there.consumer = {of_consumer} OR there.sequence BETWEEN {of_sequence} - 1 AND {of_sequence})))",
        "applied.sequence = excluded.sequence - 1",
    ),
}
"""When a row may be inserted, if there is none, and when one that there is may be advanced. With one name the first of
``contiguous`` comes to: the first number, or where there is a row."""
_TAKEN_ALONG: Final = (
    " OR (applied.sequence < excluded.sequence - 1 AND EXISTS (SELECT 1 FROM {there}"
    " WHERE there.aggregate = excluded.aggregate AND there.sequence BETWEEN excluded.sequence - 1 AND excluded.sequence))"
)
"""The case that another name has the number before. (On SQLite that one may have been advanced by this very statement.)"""
_READ_COLUMNS: Final = ("consumer", "sequence", "parked", "message", "fingerprint", "result")
_COLUMNS: Final = ("consumer", "aggregate", "sequence", "parked", "message", "fingerprint")
_TERMS: Final[dict[str, dict[str, str]]] = {
    "postgresql": {
        "given": "given",
        "there": "there",
        "now": "statement_timestamp()",
        "limited": "(SELECT {limits})",
        **{f"of_{name}": f"given.{name}" for name in _COLUMNS},
    },
    "sqlite": {
        "given": "json_each(:_rows)",
        "there": "(SELECT * FROM {table} WHERE consumer IN ({names})) AS there",
        "now": "CURRENT_TIMESTAMP",
        "limited": "true",
        **{f"of_{name}": f"json_extract(value, '$.{name}')" for name in _COLUMNS},
    },
}
_SEED: Final = """\
INSERT INTO {table} AS applied (applied_at, sequence, parked, consumer, aggregate)
VALUES ({now}, :_sequence, 0, :_consumer, :_aggregate)
ON CONFLICT (consumer, aggregate) DO UPDATE SET
    applied_at = excluded.applied_at, sequence = excluded.sequence, message = NULL, fingerprint = NULL, result = NULL
    WHERE applied.sequence < excluded.sequence
RETURNING consumer
"""
"""Written as a text: SQLAlchemy would compile it for each execution."""


class Guard:
    """The guard of an inbox's order in one dialect, for the rows under ``names``; ``limits`` are those of `limits_of`."""

    def __init__(
        self, dialect: str, table: Table, names: Sequence[str], order: Order, starts_at: int, limits: str
    ) -> None:
        self._names = tuple(sorted(names))
        self._order = order
        self._starts_at = starts_at
        of_aggregate = bindparam("_aggregate", type_=Digest())
        its = and_(table.c.consumer.in_(self._names), table.c.aggregate == of_aggregate)
        self._read = select(*[table.c[name] for name in _READ_COLUMNS]).where(its)
        terms = {
            "table": quoted(table, dialect),
            "names": listed(self._names),
            "starts_at": str(starts_at),
            "limits": limits,
            "of_record": RECORD_BYTES.format("message"),
        }
        terms |= {name: term.format(**terms) for name, term in _TERMS[dialect].items()}
        self._advance = _advance(dialect, terms, order, with_aliases=len(names) > 1)
        self._seed = text(_SEED.format(**terms)).bindparams(
            bindparam("_sequence", type_=BigInteger()), bindparam("_consumer", type_=Text()), of_aggregate
        )
        self.keep = update(table).where(its).values(result=bindparam("_result", type_=Text()))
        """Stores ``_result`` with the rows of ``_aggregate``."""

    def seed(self, connection: Connection, aggregate: bytes, sequence: int) -> bool:
        """Set the last applied number without a message. Whether it is that now, and was lower; a higher one stays."""
        given = {"_aggregate": aggregate, "_sequence": sequence}
        rows = [connection.execute(self._seed, given | {"_consumer": name}).first() for name in self._names]
        return all(rows)

    def decide(self, connection: Connection, message: Numbered) -> Ruling:
        """Advance the number of the message's aggregate to its own, where it is the next one; what was decided.

        Raises `SequenceForked` and `InboxBusy`.
        """
        fingerprint = None if message.fingerprint is None else message.fingerprint.hex()
        given: dict[str, str | int | None] = {
            "aggregate": message.aggregate.hex(),
            "sequence": message.sequence,
            "message": message.record or None,
            "fingerprint": fingerprint,
        }
        rows = [given | {"consumer": name, "parked": -1 if name == message.parked else 0} for name in self._names]
        parameters = {"_rows": orjson.dumps(rows).decode()}
        for _ in range(2):
            written: list[Row[Any]] = []
            there: list[Row[Any]] = []
            for row in connection.execute(self._advance, parameters):
                (written if row.written else there).append(row)
            if len(written) == len(self._names):
                return Ruling(Decision.FIRST, waiting=any(row.parked > 0 for row in written))
            if (ruling := self._behind(message, there)) is not None:
                return ruling
            taken = {row.consumer for row in written}
            there = list(connection.execute(self._read, {"_aggregate": message.aggregate}))
            there = [row for row in there if row.consumer not in taken]
            if (ruling := self._behind(message, there)) is not None:
                return ruling
            if taken:  # one name without the others: what was read of those was out of date
                raise InboxBusy("another transaction was in the way (an aggregate under several names)")
            if max((row.sequence for row in there), default=self._starts_at - 1) < message.sequence - 1:
                break  # else the one before was committed meanwhile: then it is the next one now
        if self._order == "latest":  # in a transaction that sees less than what it waits for
            raise InboxBusy("another transaction was in the way (an aggregate's number)")
        return Ruling(Decision.EARLY)

    def _behind(self, message: Numbered, rows: Sequence[Row[Any]]) -> Ruling | None:
        """The decision about a number that was applied already; ``None`` if it was not."""
        last = max(rows, key=lambda row: int(row.sequence), default=None)
        if last is None or last.sequence < message.sequence:
            skipped = message.sequence < self._starts_at
            return Ruling(Decision.STALE if self._order == "latest" else Decision.DUPLICATE) if skipped else None
        if last.sequence == message.sequence:
            for row in rows:
                if row.sequence == last.sequence:
                    message.check_same(row.message)
            return Ruling(Decision.DUPLICATE, last, waiting=last.parked > 0)
        return Ruling(Decision.STALE if self._order == "latest" else Decision.DUPLICATE)


def _advance(dialect: str, terms: dict[str, str], order: Order, *, with_aliases: bool) -> TextualSelect:
    """The statement that advances the numbers. Its parameter is ``_rows``."""
    insertable, updatable = _CONDITIONS[order]
    if order == "contiguous" and with_aliases:
        updatable += _TAKEN_ALONG
    conditions = {"insertable": insertable.format(**terms), "updatable": updatable.format(**terms)}
    written = _POSTGRESQL if dialect == "postgresql" else _SQLITE
    statement = text(written.format(insert=_INSERT.format(**terms, **conditions), **terms))
    return statement.bindparams(bindparam("_rows", type_=Text())).columns(
        column("consumer", Text),
        column("sequence", BigInteger),
        column("parked", Integer),
        column("message", RecordId),
        column("fingerprint", Digest),
        column("result", Text),
        column("written", Boolean),
    )
