"""The SQL of an inbox: the markers of any number of messages are written by one statement, for all of a consumer's names.

Strategy. ``INSERT ... ON CONFLICT DO NOTHING RETURNING`` decides in the database who is first: where another transaction has
written the marker and is still open, the statement waits for its end, then inserts nothing (committed), or the row (rolled back).
The rows are inserted in the order of names and messages, the same everywhere, so that two such statements never wait for each
other.

The rows are one parameter, in JSON. So the statement is the same for any number of them, and is compiled and planned once.

On PostgreSQL the same statement sets the transaction's time limits, which count for its own wait already. A setting that the
session has stays.

It leaves out messages that were sent before the instant up to which the inbox has forgotten: one of them that has no marker
may have lost it. That instant is committed `LEAD_SECONDS` before a marker behind it is deleted (oncegate.sql.inbox.cleanup), and
a statement that has taken longer than `STATEMENT_SECONDS` tells that it has: so none that did not see the instant yet writes
a marker after the one before it was deleted. On SQLite nobody writes by what is out of date.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson
from sqlalchemy import (
    Boolean,
    Connection,
    Executable,
    Row,
    Table,
    Text,
    and_,
    bindparam,
    column,
    func,
    or_,
    select,
    text,
    update,
)

from oncegate.middleware.rules.key_text import KeyText
from oncegate.sql.database.errors import InboxBusy
from oncegate.sql.database.limits import limits_of
from oncegate.sql.database.types import RecordId, quoted
from oncegate.sql.marking.table import ALL_CONSUMERS

CLOCK_MARGIN: Final = timedelta(minutes=5)
"""By which the clock of a broker, or of who sends, may differ from the database's."""
STATEMENT_SECONDS: Final = 25.0
LEAD_SECONDS: Final = 30.0
"""See above. The one is shorter by more than a database's clock may be slewed meanwhile."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message to be marked: its record's id, the fingerprint of a payload that is to be compared, and when it was sent.

    Without ``sent_at`` it is taken for one that is not forgotten. Its aggregate and its number count where the inbox keeps
    an order. ``other`` is its id and its fingerprint by the other secret, while two are in use.
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

    def row(self, name: str) -> dict[str, str | None]:
        """Its marker under ``name``, as a row of the statement's parameter."""
        fingerprint = None if self.fingerprint is None else self.fingerprint.hex()
        return {"consumer": name, "message": self.record, "fingerprint": fingerprint, "sent_at": self._sent()}

    def _sent(self) -> str | None:
        """By a clock that may be late, in UTC, as both databases write and compare it."""
        if self.sent_at is None:
            return None
        try:
            sent = self.sent_at.astimezone(UTC) - CLOCK_MARGIN
        except OverflowError:
            sent = datetime.min.replace(tzinfo=UTC)
        return sent.isoformat(" ")


@dataclass(frozen=True, slots=True)
class Statements:
    """Those of one inbox for one dialect, for the markers under ``names``, which are sorted."""

    names: tuple[str, ...]
    insert: Executable
    """Writes markers. Its parameter is ``_rows``.

    Returns those that it has ``written``: name, message, and whether that took too long. On PostgreSQL also those that were
    there before it began, with their fingerprint and result, so that a duplicate costs no second statement.
    """
    read: Executable
    """The markers of ``_messages``, records' ids in JSON: message, name, fingerprint, result."""
    keep: Executable
    """Stores ``_result`` with the markers of ``_message``."""

    def mark(
        self, connection: Connection, messages: Sequence[Message]
    ) -> tuple[list[frozenset[str]], Mapping[str, Sequence[Row[Any]]]]:
        """Write the markers of ``messages``; for each of them the names under which it has got one: all, if it is the first.

        What stands among them twice gets none the second time, and what may be forgotten gets none. Besides, by records' ids,
        markers that were there before: not those that another transaction has written meanwhile. Raises `InboxBusy`.
        """
        distinct = {message.record: message for message in reversed(messages)}
        rows = [distinct[record].row(name) for name in self.names for record in sorted(distinct)]
        written: defaultdict[str, list[str]] = defaultdict(list)
        seen: defaultdict[str, list[Row[Any]]] = defaultdict(list)
        for row in connection.execute(self.insert, {"_rows": orjson.dumps(rows).decode()}):
            if not row.written:
                seen[row.message].append(row)
                continue
            if row.late and distinct[row.message].sent_at is not None:
                raise InboxBusy("the marker's statement has waited too long to know what was forgotten meanwhile")
            written[row.message].append(row.consumer)
        return [frozenset(written.pop(message.record, ())) for message in messages], seen

    def rows(self, connection: Connection, records: Sequence[str]) -> Mapping[str, Sequence[Row[Any]]]:
        """The markers of messages, by their records' ids; none of a message without one."""
        found: defaultdict[str, list[Row[Any]]] = defaultdict(list)
        if records:
            for row in connection.execute(self.read, {"_messages": orjson.dumps(records).decode()}):
                found[row.message].append(row)
        return found


def statements(
    dialect: str, table: Table, names: Sequence[str], *, wait_timeout: float, idle_timeout: float
) -> Statements:
    """The statements for ``names``; time limits in seconds, for PostgreSQL."""
    # No IN, which SQLAlchemy doesn't execute for several messages at once.
    of_names = or_(*[table.c.consumer == name for name in names])
    of_message = and_(of_names, table.c.message == bindparam("_message", type_=RecordId()))
    return Statements(
        tuple(sorted(names)),
        _insert(dialect, table, names, wait_timeout, idle_timeout),
        _read(dialect, table, names),
        update(table).where(of_message).values(result=bindparam("_result", type_=Text())),
    )


_POSTGRESQL: Final = """\
WITH given AS (
    SELECT consumer,
        decode(translate(message, '._\\:', '+/'), 'base64') AS message,
        decode(fingerprint, 'hex') AS fingerprint,
        sent_at
    FROM json_to_recordset(CAST(:_rows AS json))
        AS row (consumer text, message text, fingerprint text, sent_at timestamp with time zone)
), marked AS (
    INSERT INTO {table} (received_at, consumer, message, fingerprint)
    SELECT statement_timestamp(), consumer, message, fingerprint FROM given
    WHERE (SELECT {limits})
        AND coalesce(sent_at >= (SELECT max(received_at) FROM {table} WHERE consumer IN ({all}) AND message = ''), true)
    ON CONFLICT (consumer, message) DO NOTHING
    RETURNING consumer, message, clock_timestamp() - CASE current_setting('transaction_isolation')
        WHEN 'read committed' THEN statement_timestamp() ELSE transaction_timestamp() END > interval '{seconds:g} s' AS late
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
"""Not CURRENT_TIMESTAMP: a transaction may have begun long before the message came. The limits are set in a query of their
own, which is done once, and not for each row. What it sees is as old as the statement, or the transaction. The key's columns
are named: without the key it fails, and nobody is taken for the first by mistake.

Markers that are there are looked up one by one, and only those that were not written. PostgreSQL plans a prepared statement for
as long as a connection lives, maybe before it has statistics of the table: of a join, or of an array of messages, it then reads
all of a consumer's markers, for each message. OFFSET keeps the look-up what it is."""

_SQLITE: Final = """\
INSERT INTO {table} (received_at, consumer, message, fingerprint)
SELECT CURRENT_TIMESTAMP,
    json_extract(value, '$.consumer'), json_extract(value, '$.message'), json_extract(value, '$.fingerprint')
FROM json_each(:_rows)
WHERE coalesce(
    json_extract(value, '$.sent_at') >= (SELECT max(received_at) FROM {table} WHERE consumer IN ({all}) AND message = ''), 1)
ON CONFLICT (consumer, message) DO NOTHING
RETURNING consumer, message, 0, NULL, NULL, 1
"""


def _insert(dialect: str, table: Table, names: Sequence[str], wait_timeout: float, idle_timeout: float) -> Executable:
    written = (_POSTGRESQL if dialect == "postgresql" else _SQLITE).format(
        table=quoted(table, dialect),
        all=", ".join(f"'{name}'" for name in [*names, ALL_CONSUMERS]),  # of letters, digits, '.', '_' and '-'
        limits=limits_of(wait_timeout, idle_timeout),
        seconds=STATEMENT_SECONDS,
    )
    statement = text(written).bindparams(bindparam("_rows", type_=Text()))
    return statement.columns(
        column("consumer", Text),
        column("message", RecordId),
        column("late", Boolean),
        column("fingerprint", table.c.fingerprint.type),
        column("result", Text),
        column("written", Boolean),
    )


_READ_POSTGRESQL: Final = """\
SELECT kept.message, kept.consumer, kept.fingerprint, kept.result
FROM json_array_elements_text(CAST(:_messages AS json)) AS given (record)
CROSS JOIN unnest(ARRAY[{names}]) AS named (consumer)
CROSS JOIN LATERAL (
    SELECT * FROM {table} WHERE consumer = named.consumer AND message = decode(translate(record, '._\\:', '+/'), 'base64')
    OFFSET 0
) AS kept
"""
"""Looked up one by one, too."""


def _read(dialect: str, table: Table, names: Sequence[str]) -> Executable:
    given = bindparam("_messages", type_=Text())
    columns = (table.c.message, table.c.consumer, table.c.fingerprint, table.c.result)
    if dialect == "postgresql":
        listed = ", ".join(f"'{name}'" for name in names)
        read = text(_READ_POSTGRESQL.format(table=quoted(table, dialect), names=listed)).bindparams(given)
        return read.columns(*[column(each.name, each.type) for each in columns])
    of_consumer = select(*columns).where(table.c.consumer.in_(list(names)))
    return of_consumer.where(table.c.message.in_(select(func.json_each(given).table_valued("value").c.value)))
