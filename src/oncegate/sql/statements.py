"""The SQL of an inbox: the markers of any number of messages are written by one statement, for all of a consumer's names.

Strategy. ``INSERT ... ON CONFLICT DO NOTHING RETURNING`` decides in the database who is first: where another transaction has
written the marker and is still open, the statement waits for its end, then inserts nothing (committed), or the row (rolled back).
The rows are inserted in the order of names and messages, the same everywhere, so that two such statements never wait for each
other.

The rows are one parameter, in JSON. So the statement is the same for any number of them, and is compiled and planned once.

On PostgreSQL the same statement sets the transaction's time limits, which count for its own wait already. A setting that the
session has stays.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Row,
    Table,
    Text,
    and_,
    bindparam,
    case,
    cast,
    column,
    func,
    insert,
    literal,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql

DIALECTS: Final = ("postgresql", "sqlite")
_KEY: Final = ("consumer", "message")


@dataclass(frozen=True, slots=True)
class Message:
    """A message to be marked: its record's id, the fingerprint of a payload that is to be compared, and when it was sent."""

    record: str
    fingerprint: bytes | None = None
    sent_at: datetime | None = None

    def row(self, name: str) -> dict[str, str | None]:
        """Its marker under ``name``, as a row of the statement's parameter."""
        fingerprint = None if self.fingerprint is None else self.fingerprint.hex()
        return {"consumer": name, "message": self.record, "fingerprint": fingerprint}


@dataclass(frozen=True, slots=True)
class Statements:
    """Those of one inbox for one dialect, for the markers under ``names``, which are sorted."""

    names: tuple[str, ...]
    insert: Executable
    """Returns name and message of each marker that it has written. Its parameter is ``_rows``."""
    read: Executable
    """The markers of ``_messages``, records' ids in JSON: message, name, fingerprint, result."""
    keep: Executable
    """Stores ``_result`` with the markers of ``_message``."""

    def mark(self, connection: Connection, messages: Sequence[Message]) -> list[frozenset[str]]:
        """Write the markers of ``messages``; for each of them the names under which it has got one: all, if it is the first.

        What stands among them twice gets none the second time.
        """
        distinct = {message.record: message for message in reversed(messages)}
        rows = [distinct[record].row(name) for name in self.names for record in sorted(distinct)]
        written: defaultdict[str, list[str]] = defaultdict(list)
        for name, record in connection.execute(self.insert, {"_rows": orjson.dumps(rows).decode()}):
            written[record].append(name)
        return [frozenset(written.pop(message.record, ())) for message in messages]

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
    of_message = and_(table.c.consumer.in_(list(names)), table.c.message == bindparam("_message", type_=Text()))
    return Statements(
        tuple(sorted(names)),
        _insert(dialect, table, wait_timeout, idle_timeout),
        _read(dialect, table, names),
        update(table).where(of_message).values(result=bindparam("_result", type_=Text())),
    )


def _insert(dialect: str, table: Table, wait_timeout: float, idle_timeout: float) -> Executable:
    columns = [table.c.received_at, table.c.consumer, table.c.message, table.c.fingerprint]
    given = bindparam("_rows", type_=Text())
    # By name: without the key the statement fails, and nobody is taken for the first by mistake.
    if dialect == "postgresql":
        fields = [column(each.name, Text) for each in columns[1:]]
        rows = func.json_to_recordset(cast(given, postgresql.JSON))
        row = rows.table_valued(*fields).render_derived(name="marker", with_types=True).c
        limits = and_(
            _limited("lock_timeout", wait_timeout), _limited("idle_in_transaction_session_timeout", idle_timeout)
        )
        # Not CURRENT_TIMESTAMP: a transaction may have begun long before the message came.
        values = select(
            func.statement_timestamp(), row.consumer, row.message, func.decode(row.fingerprint, "hex")
        ).where(select(limits).scalar_subquery())  # once, and not for each row
    else:
        each = func.json_each(given).table_valued("value", name="marker").c.value
        fields_sqlite = [func.json_extract(each, f"$.{name.name}") for name in columns[1:]]
        values = select(func.current_timestamp(), *fields_sqlite).where(true())
    # A suffix, since SQLAlchemy compiles its own ON CONFLICT anew for each execution, which takes longer than executing it.
    values = values.suffix_with(f"ON CONFLICT ({', '.join(_KEY)}) DO NOTHING")
    marking = insert(table).from_select(columns, values, include_defaults=False)
    return marking.returning(table.c.consumer, table.c.message)


def _read(dialect: str, table: Table, names: Sequence[str]) -> Executable:
    given = bindparam("_messages", type_=Text())
    columns = select(table.c.message, table.c.consumer, table.c.fingerprint, table.c.result)
    of_consumer = columns.where(table.c.consumer.in_(list(names)))
    if dialect == "postgresql":  # by an array: the primary key's index is searched for each of them
        records = func.array(select(func.json_array_elements_text(cast(given, postgresql.JSON))).scalar_subquery())
        return of_consumer.where(table.c.message == func.any(records))
    return of_consumer.where(table.c.message.in_(select(func.json_each(given).table_valued("value").c.value)))


def _limited(setting: str, seconds: float) -> ColumnElement[bool]:
    """True, once ``setting`` is set for this transaction; one that the session has stays. 0 is "no limit" in PostgreSQL."""
    milliseconds = literal(str(max(1, round(seconds * 1000))), Text())
    chosen = case(
        (func.current_setting(setting) == "0", func.set_config(setting, milliseconds, true())),
        else_=func.current_setting(setting),
    )
    return chosen.is_not(None)
