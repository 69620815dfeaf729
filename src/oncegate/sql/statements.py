"""The SQL of an inbox: a marker is written by one statement, for all of a consumer's names.

Strategy. ``INSERT ... ON CONFLICT DO NOTHING RETURNING`` decides in the database who is first: where another transaction has
written the marker and is still open, the statement waits for its end, then inserts nothing (committed), or the row (rolled back).
The rows are inserted in the order of the names, the same everywhere, so that two consumers that share names never wait for each
other.

On PostgreSQL the same statement sets the transaction's time limits, which count for its own wait already. A setting that the
session has stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Executable,
    LargeBinary,
    Table,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    insert,
    literal,
    select,
    true,
    union_all,
    update,
)

DIALECTS: Final = ("postgresql", "sqlite")
_KEY: Final = ("consumer", "message")


@dataclass(frozen=True, slots=True)
class Statements:
    """Those of one inbox for one dialect. Their parameters are ``_message``, ``_fingerprint`` and ``_result``."""

    mark: Executable
    """Returns the names whose marker it has written."""
    read: Executable
    """The markers of a message: name, fingerprint, result."""
    keep: Executable
    """Stores a result with the markers of a message."""


def statements(
    dialect: str, table: Table, names: Sequence[str], *, wait_timeout: float, idle_timeout: float
) -> Statements:
    """The statements for ``names``, of which the first is the consumer's own; time limits in seconds, for PostgreSQL."""
    of_message = and_(table.c.consumer.in_(list(names)), table.c.message == bindparam("_message", type_=Text()))
    return Statements(
        _mark(dialect, table, sorted(names), wait_timeout, idle_timeout),
        select(table.c.consumer, table.c.fingerprint, table.c.result).where(of_message),
        update(table).where(of_message).values(result=bindparam("_result", type_=Text())),
    )


def _mark(dialect: str, table: Table, names: Sequence[str], wait_timeout: float, idle_timeout: float) -> Executable:
    columns = [table.c.received_at, table.c.consumer, table.c.message, table.c.fingerprint]
    limits: ColumnElement[bool] = true()
    now: ColumnElement[Any] = func.current_timestamp()
    if dialect == "postgresql":
        # Not CURRENT_TIMESTAMP: a transaction may have begun long before the message came.
        now = func.statement_timestamp()
        limits = and_(
            _limited("lock_timeout", wait_timeout), _limited("idle_in_transaction_session_timeout", idle_timeout)
        )
    rows = [
        select(
            now,
            literal(name, Text()),
            bindparam("_message", type_=Text()),
            cast(
                bindparam("_fingerprint", type_=LargeBinary()), LargeBinary()
            ),  # psycopg doesn't, and in a UNION it counts
        )
        for name in names
    ]
    each = union_all(*rows).subquery("marker")
    # By name: without the key the statement fails, and nobody is taken for the first by mistake. As a suffix, since SQLAlchemy
    # compiles its own ON CONFLICT anew for each execution, which takes longer than executing it.
    source = select(*each.c).where(limits).suffix_with(f"ON CONFLICT ({', '.join(_KEY)}) DO NOTHING")
    return insert(table).from_select(columns, source, include_defaults=False).returning(table.c.consumer)


def _limited(setting: str, seconds: float) -> ColumnElement[bool]:
    """True, once ``setting`` is set for this transaction; one that the session has stays. 0 is "no limit" in PostgreSQL."""
    milliseconds = literal(str(max(1, round(seconds * 1000))), Text())
    chosen = case(
        (func.current_setting(setting) == "0", func.set_config(setting, milliseconds, true())),
        else_=func.current_setting(setting),
    )
    return chosen.is_not(None)
