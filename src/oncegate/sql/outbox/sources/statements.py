"""The SQL of a relay.

Strategy (PostgreSQL). What is published next of an aggregate is its head: the waiting row with the lowest number. The index has
them in order of aggregates and numbers, so each head is one step in it from the one before, however many rows are behind (a loose
index scan, as a recursive query). The head's row is locked, and with it its aggregate: a relay that can't lock the head, for
another one has it, leaves the aggregate alone, and never goes on to the second row, as SKIP LOCKED by itself would. Whoever has
the head takes rows behind it along. Numbers are committed in their order, so none that is lower can appear later.

A head is looked up by its id once more where it is locked: if another relay has published it meanwhile it is gone, or marked, and
PostgreSQL looks at the newest version of a row that it locks.

SQLite has one relay at a time, which reads rows in the order of their ids: that of their commits, since it has one writer.
"""

from typing import Any, Final

from sqlalchemy import BigInteger, Float, Integer, LargeBinary, Table, Text, TextClause, bindparam, column, text

from oncegate.sql.database.types import DIALECTS
from oncegate.sql.outbox.tables import quoted

_COLUMNS: Final = "id, sequence, topic, key, aggregate, aggregate_id, correlation, headers, body, attempts"

LIMITS: Final = text(
    "SELECT set_config('idle_in_transaction_session_timeout', :_limit, true), set_config('jit', 'off', true),"
    " set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)"
).bindparams(bindparam("_limit", type_=Text()))
"""For one transaction. A plan that reads all that waits is a hundred times slower, and statistics of a queue are never right."""

_IN_LINE: Final = """\
WITH RECURSIVE heads AS (
    (SELECT id, aggregate FROM {table} WHERE published_at IS NULL AND aggregate > :_after AND aggregate <= :_until
        ORDER BY aggregate, sequence LIMIT 1)
    UNION ALL
    SELECT following.id, following.aggregate FROM heads CROSS JOIN LATERAL (
        SELECT id, aggregate FROM {table}
            WHERE published_at IS NULL AND aggregate > heads.aggregate AND aggregate <= :_until
            ORDER BY aggregate, sequence LIMIT 1) AS following
), taken AS MATERIALIZED (
    SELECT head.aggregate, head.sequence FROM heads CROSS JOIN LATERAL (
        SELECT aggregate, sequence FROM {table} WHERE id = heads.id AND published_at IS NULL AND {ready}
            FOR UPDATE SKIP LOCKED) AS head
)
SELECT {rows} FROM taken CROSS JOIN LATERAL (
    SELECT {columns} FROM {table} WHERE published_at IS NULL AND aggregate = taken.aggregate
        AND sequence >= taken.sequence ORDER BY sequence LIMIT :_each) AS message
LIMIT :_most
"""
"""Each part is evaluated as far as the next one needs it: no more heads are locked than give ``_most`` rows."""

_FREE: Final = """\
SELECT {columns} FROM {table} WHERE published_at IS NULL AND aggregate IS NULL AND {ready}
ORDER BY id LIMIT :_most FOR UPDATE SKIP LOCKED
"""

_SQLITE: Final = """\
SELECT {columns} FROM {table} AS message WHERE published_at IS NULL AND {ready} AND (aggregate IS NULL OR (
    SELECT {ready} FROM {table} AS head WHERE head.published_at IS NULL AND head.aggregate = message.aggregate
        ORDER BY head.sequence LIMIT 1))
ORDER BY id LIMIT :_most
"""

_NOW: Final = {"postgresql": "clock_timestamp()", "sqlite": "strftime('%Y-%m-%d %H\\:%M\\:%f000', 'now')"}
_AFTER: Final = {
    "postgresql": "clock_timestamp() + make_interval(secs => :_seconds)",
    "sqlite": "strftime('%Y-%m-%d %H\\:%M\\:%f000', 'now', :_seconds || ' seconds')",
}
_GIVEN: Final = {
    "postgresql": "id = ANY(ARRAY(SELECT CAST(json_array_elements_text(CAST(:_ids AS json)) AS bigint)))",
    "sqlite": "id IN (SELECT value FROM json_each(:_ids))",
}

_REMOVE: Final = "DELETE FROM {table} WHERE {given}"
_MARK: Final = "UPDATE {table} SET published_at = {now}, due_at = NULL WHERE {given}"
_REFUSE: Final = """\
UPDATE {table} SET attempts = attempts + 1, refusal = :_refusal, due_at = {after},
    dead = :_attempts > 0 AND attempts + 1 >= :_attempts
WHERE id = :_id
"""
MOST_TIDIED: Final = 5000
_TIDY: Final = (
    "DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE published_at < {after} LIMIT {most_tidied})"
)


class RelayStatements:
    """Those of one dialect. Instants are the database's; ``outboxes`` are the names whose messages are wanted, none for all."""

    def __init__(self, dialect: str, table: Table, outboxes: tuple[str, ...]) -> None:
        if dialect not in DIALECTS:
            raise ValueError(f"the database is {dialect}: a relay needs PostgreSQL or SQLite")
        ready = f"NOT dead AND (due_at IS NULL OR due_at <= {_NOW[dialect]})"
        if outboxes:
            names = ", ".join(f"'{name}'" for name in outboxes)  # of letters, digits, '.', '_' and '-'
            ready += f" AND outbox IN ({names})"
        rows = ", ".join(f"message.{name}" for name in _COLUMNS.split(", "))
        words = {"table": quoted(table, dialect), "ready": ready, "columns": _COLUMNS, "rows": rows}
        self.in_line = _rows(_IN_LINE.format(**words), _each=Integer(), _after=LargeBinary(), _until=LargeBinary())
        self.free = _rows(_FREE.format(**words))
        self.in_order = _rows(_SQLITE.format(**words))
        words |= {
            "given": _GIVEN[dialect],
            "now": _NOW[dialect],
            "after": _AFTER[dialect],
            "most_tidied": str(MOST_TIDIED),
        }
        ids = bindparam("_ids", type_=Text())
        self.remove = text(_REMOVE.format(**words)).bindparams(ids)
        self.mark = text(_MARK.format(**words)).bindparams(ids)
        self.refuse = text(_REFUSE.format(**words)).bindparams(
            bindparam("_refusal", type_=Text()),
            bindparam("_seconds", type_=Float()),
            bindparam("_attempts", type_=Integer()),
            bindparam("_id", type_=BigInteger()),
        )
        self.tidy = text(_TIDY.format(**words)).bindparams(bindparam("_seconds", type_=Float()))


def _rows(statement: str, **types: Any) -> Any:
    known: TextClause = text(statement)
    typed = {"_most": Integer(), **types}
    return known.bindparams(*[bindparam(name, type_=kind) for name, kind in typed.items()]).columns(
        *[column(name) for name in _COLUMNS.split(", ")]
    )
