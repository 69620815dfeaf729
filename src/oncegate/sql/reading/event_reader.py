"""Which rows of an append-only table come next: behind a checkpoint, and each behind all lower numbers of its aggregate.

Strategy. An order says which rows follow the checkpoint: that of transactions (exact), or a look-back window. Neither is the
order of an aggregate's numbers: a transaction that is older than an open one may have written number 2, and one that is not may
have committed number 1 before. So a row waits while a lower number of its aggregate is not ready, and all behind it wait, too;
and a lower number that is ready, but stands behind it, goes first.

Lower numbers are looked for downwards, from the highest one that was read, until one is in front of the checkpoint: since an
aggregate's rows go in their order, whatever is below that one has gone before it.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import orjson
from sqlalchemy import BigInteger, Connection, Row, Table, Text, bindparam, text

from oncegate.sql.database.types import dialect_of, quoted
from oncegate.sql.reading.checkpoint import Place, TransactionOrder
from oncegate.sql.reading.window import Window

MOST_COUNTED: Final = 100_000
"""Rows that wait; as many stand for more."""

PLANNER: Final = ("jit", "enable_seqscan", "enable_bitmapscan")
"""Of PostgreSQL; ``off`` where rows are read: a plan that reads all that waits is a hundred times slower, and the statistics of
what grows by the second are never right."""
PLANNED: Final = ", ".join([f"set_config('{setting}', 'off', true)" for setting in PLANNER])
"""Sets it so for one transaction, as columns of a query."""

_BY_TRANSACTION: Final = {
    "number": "CAST(CAST(t.{transaction} AS text) AS bigint)",
    "ready": "t.{transaction} < pg_snapshot_xmin(pg_current_snapshot())",
    "behind": "(t.{transaction}, t.{position}) > (CAST(CAST(:_transaction AS text) AS xid8), :_position)",
    "order": "t.{transaction}, t.{position}",
}
_BY_POSITION: Final = {"number": "0", "ready": "true", "behind": "t.{position} > :_position", "order": "t.{position}"}
_NEXT: Final = """\
SELECT {number} AS _transaction_number, true AS _is_ready, t.* FROM {table} AS t
WHERE {behind} AND {ready} ORDER BY {order} LIMIT :_most
"""
_LOWER: Final = """\
WITH RECURSIVE lower AS (
    {first}
    UNION ALL
    {further}
)
SELECT * FROM lower ORDER BY {sequence}
"""
_STEPS: Final = {
    "postgresql": """\
SELECT t.* FROM {above} CROSS JOIN LATERAL (
        SELECT {number} AS _transaction_number, {ready} AS _is_ready, t.* FROM {table} AS t
        WHERE t.{aggregate} = {id} AND t.{sequence} < {highest} ORDER BY t.{sequence} DESC LIMIT 1) AS t
    WHERE {behind}""",
    "sqlite": """\
SELECT {number} AS _transaction_number, {ready} AS _is_ready, t.* FROM {above} JOIN {table} AS t ON t.{position} = (
        SELECT below.{position} FROM {table} AS below
        WHERE below.{aggregate} = {id} AND below.{sequence} < {highest} ORDER BY below.{sequence} DESC LIMIT 1)
    WHERE {behind}""",
}
"""From a row ``above`` one down, where that is behind the checkpoint."""
_GIVEN: Final = {
    "postgresql": {
        "above": "json_to_recordset(CAST(:_numbers AS json)) AS given(id {type}, number bigint)",
        "id": "given.id",
        "highest": "given.number",
    },
    "sqlite": {
        "above": "json_each(:_numbers) AS given",
        "id": "json_extract(given.value, '$.id')",
        "highest": "json_extract(given.value, '$.number')",
    },
}
_COUNT: Final = "SELECT count(*) FROM (SELECT 1 FROM {table} AS t WHERE {behind} LIMIT :_most) AS waiting"


@dataclass(frozen=True, slots=True)
class EventColumns:
    """The names of a table's columns; ``None`` for what it does not have, or is not to be read by."""

    position: str
    transaction: str | None = None
    aggregate: str | None = None
    sequence: str | None = None

    def __post_init__(self) -> None:
        if (self.aggregate is None) is not (self.sequence is None):
            raise ValueError("aggregate and sequence are given together: the column of an id, and that of its number")

    def on(self, dialect: str) -> "EventColumns":
        """Those that are read in a database of ``dialect``: SQLite shows no transactions, and its positions ascend with them."""
        return self if dialect == "postgresql" else replace(self, transaction=None)


class EventReader:
    """Reads ``table`` in ``order``, whose checkpoint is loaded there. Raises ``ValueError`` where it has no column of a name."""

    def __init__(self, dialect: str, table: Table, columns: EventColumns, order: TransactionOrder | Window) -> None:
        self._columns = columns
        self._order = order
        self._statements = _EventStatements(dialect, table, columns)

    def next(
        self, connection: Connection, most: int, extra: int = 0, is_paused: Callable[[int], bool] | None = None
    ) -> list[Place]:
        """Up to so many rows that may go now, of so many and ``extra`` that are read, in the order in which they are to go.

        None at a position that ``is_paused``, nor any that is behind it in its aggregate.
        """

        def read(transaction: int, position: int, most: int) -> list[Place]:
            given = {"_transaction": transaction, "_position": position, "_most": most}
            return [self._place(row) for row in connection.execute(self._statements.next, given)]

        rows = self._order.rows(read, most + extra)
        return self._ordered(rows, self._lower_numbers(connection, rows), is_paused)[:most]

    def count(self, connection: Connection) -> int:
        """How many rows are behind the checkpoint and have not gone."""
        transaction, position = self._order.place
        gone = self._order.published
        given = {"_transaction": transaction, "_position": position, "_most": MOST_COUNTED + gone}
        return max(0, int(connection.scalar(self._statements.count, given) or 0) - gone)

    def numbered(self, place: Place) -> tuple[Any, int]:
        """A row's aggregate and number; ``None`` without one."""
        if self._columns.aggregate is None or self._columns.sequence is None:
            return None, 0
        return getattr(place.row, self._columns.aggregate), getattr(place.row, self._columns.sequence)

    def _place(self, row: Row[Any]) -> Place:
        return Place(row._transaction_number, getattr(row, self._columns.position), bool(row._is_ready), row)

    def _lower_numbers(self, connection: Connection, rows: Sequence[Place]) -> dict[Any, list[Place]]:
        """By aggregate, in their order: what is behind the checkpoint, up to the highest number among ``rows``."""
        found: defaultdict[Any, list[Place]] = defaultdict(list)
        highest: dict[Any, int] = {}
        for place in rows:
            aggregate, number = self.numbered(place)
            if aggregate is not None:
                highest[aggregate] = max(number, highest.get(aggregate, number))
        if not highest:
            return found
        numbers = orjson.dumps([{"id": aggregate, "number": number} for aggregate, number in highest.items()]).decode()
        transaction, position = self._order.place
        given = {"_transaction": transaction, "_position": position, "_numbers": numbers}
        for row in connection.execute(self._statements.lower, given):
            place = self._place(row)
            found[self.numbered(place)[0]].append(place)
        return found

    def _ordered(
        self, rows: Sequence[Place], of_aggregate: dict[Any, list[Place]], is_paused: Callable[[int], bool] | None
    ) -> list[Place]:
        """Those of ``rows`` that may go now, each behind all lower numbers of its aggregate."""
        chosen: dict[int, Place] = {}
        paused: set[Any] = set()
        for each in rows:
            aggregate, number = self.numbered(each)
            before = [lower for lower in of_aggregate.get(aggregate, ()) if self.numbered(lower)[1] < number]
            if any(not lower.is_ready for lower in before):
                break
            for place in (*before, each):
                if place.position in chosen or self._order.is_published(place.position) or aggregate in paused:
                    continue
                if is_paused is not None and is_paused(place.position):
                    paused.update([aggregate] if aggregate is not None else [])
                else:
                    chosen[place.position] = place
        return list(chosen.values())


class _EventStatements:
    """Those of one dialect; parameters: ``_transaction`` and ``_position``, behind which rows are looked for."""

    def __init__(self, dialect: str, table: Table, columns: EventColumns) -> None:
        given = {what: name for what, name in asdict(columns).items() if name is not None}
        names = {what: _quoted(table, name, dialect) for what, name in given.items()}
        words = _BY_TRANSACTION if "transaction" in names else _BY_POSITION
        words = {what: word.format(**names) for what, word in words.items()}
        words |= names | {"table": quoted(table, dialect)}
        place = [bindparam("_position", type_=BigInteger())]
        if "transaction" in names:
            place.append(bindparam("_transaction", type_=BigInteger()))
        types = {column.name: column.type for column in table.c}  # by name: the table may have more
        self.next: Any = text(_NEXT.format(**words)).bindparams(*place).columns(**types)
        self.count: Any = text(_COUNT.format(**words)).bindparams(*place)
        self.lower: Any = None
        """With ``_numbers``, JSON of ``id`` and ``number``: the rows of those aggregates with lower numbers, ascending."""
        if "aggregate" in names:
            kind = table.c[given["aggregate"]].type.compile(dialect=dialect_of(dialect))
            given_rows = {what: word.format(type=kind) for what, word in _GIVEN[dialect].items()}
            row = {"above": "lower", "id": f"lower.{names['aggregate']}", "highest": f"lower.{names['sequence']}"}
            first, further = [_STEPS[dialect].format(**words, **above) for above in (given_rows, row)]
            statement = text(_LOWER.format(first=first, further=further, **words))
            statement = statement.bindparams(*place, bindparam("_numbers", type_=Text()))
            self.lower = statement.columns(**types)


def _quoted(table: Table, name: str, dialect: str) -> str:
    """A column's name in a text of SQL. Raises ``ValueError`` where the table has none of that name."""
    if name not in table.c:
        raise ValueError(f"the table {table.fullname} has no column {name}")
    return str(dialect_of(dialect).identifier_preparer.format_column(table.c[name])).replace(":", "\\:")
