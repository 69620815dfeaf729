"""The SQL of an inbox: the markers of any number of messages are written by one statement, for all of a consumer's names.

Strategy. ``INSERT ... ON CONFLICT DO NOTHING RETURNING`` decides in the database who is first: where another transaction has
written the marker and is still open, the statement waits for its end, then inserts nothing (committed), or the row (rolled back).
The rows are inserted in the order of names and messages, the same everywhere, so that two such statements never wait for each
other.

The rows of a batch are one parameter, in JSON. So the statement is the same for any number of them, and is compiled and planned
once. One message, as most deliveries are, has a statement of its own: its columns are parameters, and it is compiled once for
each driver, instead of being looked up among SQLAlchemy's compiled statements for each delivery.

On PostgreSQL the same statement sets the transaction's time limits, which count for its own wait already. A setting that the
session has stays.

It leaves out messages that were sent before the instant up to which the inbox has forgotten: one of them that has no marker
may have lost it. That instant is committed `LEAD_SECONDS` before a marker behind it is deleted (oncegate.sql.inbox.cleanup), and
a statement that has taken longer than `STATEMENT_SECONDS` is refused: so none that did not see the instant yet writes
a marker after the one before it was deleted. On SQLite nobody writes by what is out of date.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import orjson
from sqlalchemy import Boolean, Connection, Dialect, Table, Text, and_, bindparam, column, or_, text, update

from oncegate.middleware.consumers.sql_interface import KeyText
from oncegate.sql.database.errors import InboxBusy
from oncegate.sql.database.terms import RECORD_BYTES, listed
from oncegate.sql.database.types import Digest, RecordId, quoted
from oncegate.sql.marking.table import ALL_CONSUMERS

CLOCK_MARGIN: Final = timedelta(minutes=5)
"""The most that the clock of a broker, or of a sender, may differ from the database's."""
STATEMENT_SECONDS: Final = 25.0
LEAD_SECONDS: Final = 30.0
"""See above. The one is shorter by more than a database's clock may be slewed meanwhile."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message to be marked: its record's id, the fingerprint of a payload that is to be compared, and when it was sent.

    Without ``sent_at`` it is not taken for forgotten. Its aggregate and its number count where the inbox keeps an order.
    ``other`` is its id and its fingerprint by the other secret, while two are in use.
    """

    record: str
    fingerprint: bytes | None = None
    sent_at: datetime | None = None
    aggregate: KeyText = ""
    sequence: int | None = None
    other: tuple[str, bytes | None] | None = None

    def by_each_secret(self) -> "tuple[Message, ...]":
        """Itself, and as it is marked by the other secret; an id that it has brought is the same by both."""
        if self.other is None or self.other[0] == self.record:
            return (self,)
        record, fingerprint = self.other
        return self, replace(self, record=record, fingerprint=fingerprint, other=(self.record, self.fingerprint))

    def values(self) -> dict[str, str | None]:
        """The message as parameters of the statement that writes it."""
        fingerprint = None if self.fingerprint is None else self.fingerprint.hex()
        sent_at = None if self.sent_at is None else _by_a_late_clock(self.sent_at)
        return {"message": self.record, "fingerprint": fingerprint, "sent_at": sent_at}


def _by_a_late_clock(sent_at: datetime) -> str:
    """In UTC, as both databases write and compare it."""
    try:
        sent = sent_at.astimezone(UTC) - CLOCK_MARGIN
    except OverflowError:
        sent = datetime.min.replace(tzinfo=UTC)
    return sent.isoformat(" ")


class MarkerRow(NamedTuple):
    """A marker of a message, as it is in the table."""

    consumer: str
    fingerprint: bytes | None
    result: str | None


class Marked(NamedTuple):
    """A message's names under which it has got a marker now, and the markers that were there before, under others."""

    written: Collection[str]
    earlier: Sequence[MarkerRow]


_UNTIL: Final = """\
(SELECT max(received_at) FROM {table} AS forgotten WHERE consumer IN ({all}) AND message = '' AND result IS NULL
        AND NOT EXISTS (SELECT 1 FROM {table} AS reset WHERE reset.consumer IN ({names}) AND reset.message = ''
            AND reset.result IS NOT NULL AND reset.received_at >= forgotten.received_at))"""
"""The instant up to which it was forgotten, where that is later than the last reset."""
_LATE: Final = """\
clock_timestamp() - CASE current_setting('transaction_isolation')
        WHEN 'read committed' THEN statement_timestamp() ELSE transaction_timestamp() END > interval '{seconds:g} s'"""
"""Whether the statement has taken too long. What it sees is as old as itself, or as its transaction."""

_MANY_POSTGRESQL: Final = """\
WITH given AS (
    SELECT consumer, {of_given} AS message, decode(fingerprint, 'hex') AS fingerprint, sent_at
    FROM json_to_recordset(CAST(:_rows AS json))
        AS row (consumer text, message text, fingerprint text, sent_at timestamp with time zone)
), marked AS (
    INSERT INTO {table} (received_at, consumer, message, fingerprint)
    SELECT statement_timestamp(), consumer, message, fingerprint FROM given
    WHERE (SELECT {limits})
        AND coalesce(sent_at >= {until}, true)
    ON CONFLICT (consumer, message) DO NOTHING
    RETURNING consumer, message, {late} AS late
)
SELECT consumer, message, late, NULL, NULL, true FROM marked
UNION ALL
SELECT given.consumer, given.message, false, there.fingerprint, there.result, false
FROM given CROSS JOIN LATERAL (
    SELECT fingerprint, result FROM {table} AS kept
    WHERE kept.consumer = given.consumer AND kept.message = given.message
    OFFSET 0
) AS there
WHERE NOT EXISTS (SELECT FROM marked WHERE marked.consumer = given.consumer AND marked.message = given.message)
"""
"""Not CURRENT_TIMESTAMP: a transaction may have begun long before the message came. The key's columns are named: without the
key it fails, and nobody is taken for the first by mistake. What it returns is written, or was there before it began.

Markers that are there are looked up one by one, and only those that were not written. PostgreSQL plans a prepared statement for
as long as a connection lives, maybe before it has statistics of the table: of a join, or of an array of messages, it then reads
all of a consumer's markers, for each message. OFFSET keeps the look-up what it is."""

_MANY_SQLITE: Final = """\
INSERT INTO {table} (received_at, consumer, message, fingerprint)
SELECT CURRENT_TIMESTAMP,
    json_extract(value, '$.consumer'), json_extract(value, '$.message'), json_extract(value, '$.fingerprint')
FROM json_each(:_rows)
WHERE coalesce(json_extract(value, '$.sent_at') >= {until}, 1)
ON CONFLICT (consumer, message) DO NOTHING
RETURNING consumer, message, 0, NULL, NULL, 1
"""


_ONE_POSTGRESQL: Final = """\
WITH marked AS (
    INSERT INTO {table} (received_at, consumer, message, fingerprint)
    SELECT statement_timestamp(), name, {message}, decode(:fingerprint, 'hex') FROM (VALUES {rows}) AS named (name)
    WHERE (SELECT {limits}) AND CASE WHEN :sent_at IS NULL THEN true
        ELSE coalesce(CAST(:sent_at AS timestamp with time zone) >= {until}, true) END
    ON CONFLICT (consumer, message) DO NOTHING
    RETURNING consumer, {late} AS late
)
SELECT CAST(json_build_array(consumer, late, NULL, NULL) AS text) FROM marked
UNION ALL
SELECT CAST(json_build_array(consumer, NULL, encode(fingerprint, 'hex'), result) AS text)
FROM {table} WHERE consumer IN ({names}) AND message = {message}
"""
"""As the one above. What was forgotten is looked up only for a message that has the time at which it was sent."""

_ONE_SQLITE: Final = """\
INSERT INTO {table} (received_at, consumer, message, fingerprint)
SELECT CURRENT_TIMESTAMP, column1, {message}, :fingerprint FROM (VALUES {rows})
WHERE coalesce(:sent_at >= {until}, 1)
ON CONFLICT (consumer, message) DO NOTHING
RETURNING json_array(consumer, 0, NULL, NULL)
"""

_READ_POSTGRESQL: Final = """\
SELECT kept.message, kept.consumer, kept.fingerprint, kept.result
FROM json_array_elements_text(CAST(:_messages AS json)) AS given (record)
CROSS JOIN unnest(ARRAY[{names}]) AS named (consumer)
CROSS JOIN LATERAL (
    SELECT * FROM {table} WHERE consumer = named.consumer AND message = {of_record}
    OFFSET 0
) AS kept
"""
"""Looked up one by one, too."""

_READ_SQLITE: Final = """\
SELECT message, consumer, fingerprint, result
FROM {table} WHERE consumer IN ({names}) AND message IN (SELECT value FROM json_each(:_messages))
"""

_TEXTS: Final = {
    "postgresql": (_MANY_POSTGRESQL, _ONE_POSTGRESQL, _READ_POSTGRESQL),
    "sqlite": (_MANY_SQLITE, _ONE_SQLITE, _READ_SQLITE),
}
"""Writes the markers of several messages, ``_rows`` in JSON; those of one, whose `Message.values` are parameters; reads those of
``_messages``, records' ids in JSON.

The second one returns rows of one column, in JSON, since SQLAlchemy describes each column of such a result anew: a name, and
whether that took too long; on PostgreSQL also what was there: name, null, fingerprint in hex digits, result."""


class MarkerStatements:
    """The statements of one inbox for one dialect, for the markers under ``names``; ``limits`` are those of `limits_of`."""

    def __init__(self, dialect: str, table: Table, names: Sequence[str], limits: str) -> None:
        self.names = tuple(sorted(names))
        terms = {
            "table": quoted(table, dialect),
            "names": listed(self.names),
            "all": listed([*self.names, ALL_CONSUMERS]),
            "rows": ", ".join([f"('{name}')" for name in self.names]),
            "message": RECORD_BYTES.format(":message") if dialect == "postgresql" else ":message",
            "of_given": RECORD_BYTES.format("message"),
            "of_record": RECORD_BYTES.format("record"),
            "limits": limits,
            "late": _LATE.format(seconds=STATEMENT_SECONDS),
        }
        terms["until"] = _UNTIL.format(**terms)
        many, one, read = (text(each.format(**terms)) for each in _TEXTS[dialect])
        consumer, message = column("consumer", Text), column("message", RecordId)
        there = column("fingerprint", Digest), column("result", Text)
        self._insert_many = many.bindparams(bindparam("_rows", type_=Text())).columns(
            consumer, message, column("late", Boolean), *there, column("written", Boolean)
        )
        self._insert_one = one.bindparams(
            *[bindparam(name, type_=Text()) for name in ("message", "fingerprint", "sent_at")]
        )
        self._read = read.bindparams(bindparam("_messages", type_=Text())).columns(message, consumer, *there)
        self._of_driver: dict[tuple[str, str], tuple[str, Sequence[str] | None]] = {}
        # No IN, which SQLAlchemy doesn't execute for several messages at once.
        of_names = or_(*[table.c.consumer == name for name in names])
        of_message = and_(of_names, table.c.message == bindparam("_message", type_=RecordId()))
        self.keep = update(table).where(of_message).values(result=bindparam("_result", type_=Text()))
        """Stores ``_result`` with the markers of ``_message``."""

    def mark(self, connection: Connection, messages: Sequence[Message]) -> list[Marked]:
        """Write the markers of ``messages``: under all names, where a message is the first.

        What stands among them twice gets none the second time, and what may be forgotten gets none. Raises `InboxBusy`.
        """
        found = (
            [self._mark_one(connection, messages[0])] if len(messages) == 1 else self._mark_many(connection, messages)
        )
        count = len(self.names)
        unseen = [
            message.record
            for message, marked in zip(messages, found, strict=True)
            if len(marked.written) + len(marked.earlier) < count
        ]
        if not unseen:
            return found
        rows = self.rows(connection, unseen)  # of a transaction that was open when the statement began, and has ended
        return [
            Marked(written, [row for row in rows.get(message.record, earlier) if row.consumer not in written])
            for message, (written, earlier) in zip(messages, found, strict=True)
        ]

    def _mark_one(self, connection: Connection, message: Message) -> Marked:
        statement, order = self._written_for(connection.dialect)
        values = message.values()
        parameters = values if order is None else tuple([values[name] for name in order])
        written: list[str] = []
        there: list[MarkerRow] = []
        for (row,) in connection.exec_driver_sql(statement, parameters).all():
            consumer, late, fingerprint, result = orjson.loads(row)
            if late is None:
                there.append(MarkerRow(consumer, None if fingerprint is None else bytes.fromhex(fingerprint), result))
                continue
            _check_in_time(message, late)
            written.append(consumer)
        if written and there:  # a marker was deleted meanwhile
            there = [marker for marker in there if marker.consumer not in written]
        return Marked(written, there)

    def _written_for(self, dialect: Dialect) -> tuple[str, Sequence[str] | None]:
        driver = (dialect.driver, dialect.paramstyle)
        if (found := self._of_driver.get(driver)) is None:
            compiled = self._insert_one.compile(dialect=dialect)
            found = self._of_driver[driver] = (str(compiled), compiled.positiontup if compiled.positional else None)
        return found

    def _mark_many(self, connection: Connection, messages: Sequence[Message]) -> list[Marked]:
        distinct = {message.record: message for message in reversed(messages)}
        values = [distinct[record].values() for record in sorted(distinct)]
        rows = [{"consumer": name, **each} for name in self.names for each in values]
        written: defaultdict[str, list[str]] = defaultdict(list)
        there: defaultdict[str, list[MarkerRow]] = defaultdict(list)
        for row in connection.execute(self._insert_many, {"_rows": orjson.dumps(rows).decode()}):
            if not row.written:
                there[row.message].append(MarkerRow(row.consumer, row.fingerprint, row.result))
                continue
            _check_in_time(distinct[row.message], row.late)
            written[row.message].append(row.consumer)
        return [Marked(written.pop(message.record, ()), there.get(message.record, ())) for message in messages]

    def rows(self, connection: Connection, records: Sequence[str]) -> Mapping[str, Sequence[MarkerRow]]:
        """The markers of messages, by their records' ids; none of a message without one."""
        found: defaultdict[str, list[MarkerRow]] = defaultdict(list)
        for row in connection.execute(self._read, {"_messages": orjson.dumps(records).decode()}):
            found[row.message].append(MarkerRow(row.consumer, row.fingerprint, row.result))
        return found


def _check_in_time(message: Message, late: bool) -> None:
    if late and message.sent_at is not None:
        raise InboxBusy("the marker's statement has waited too long to know what was forgotten meanwhile")
