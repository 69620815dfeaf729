"""The SQL of a `TableSource`, by the order in which its rows are read."""

from typing import Any, Final

from sqlalchemy import BigInteger, Table, Text, bindparam, text
from sqlalchemy.dialects import postgresql, sqlite

from oncegate.sql.database.types import DIALECTS
from oncegate.sql.outbox.tables import quoted

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
SELECT {number} AS _transaction_number, {ready} AS _is_ready, t.* FROM {given}
JOIN {table} AS t ON t.{aggregate} = {id} AND t.{sequence} < {highest} WHERE {behind} ORDER BY t.{sequence}
"""
_GIVEN: Final = {
    "postgresql": {
        "given": "json_to_recordset(CAST(:_numbers AS json)) AS given(id {type}, number bigint)",
        "id": "given.id",
        "highest": "given.number",
    },
    "sqlite": {
        "given": "json_each(:_numbers) AS given",
        "id": "json_extract(given.value, '$.id')",
        "highest": "json_extract(given.value, '$.number')",
    },
}
_COUNT: Final = "SELECT count(*) FROM (SELECT 1 FROM {table} AS t WHERE {behind} LIMIT :_most) AS waiting"


class TableStatements:
    """Those of one dialect; parameters: ``_transaction`` and ``_position``, behind which rows are looked for.

    Raises ``ValueError`` where the table has no column of a name.
    """

    def __init__(self, dialect: str, table: Table, **columns: str | None) -> None:
        if dialect not in DIALECTS:
            raise ValueError(f"the database is {dialect}: a relay needs PostgreSQL or SQLite")
        names = {what: _quoted(table, name, dialect) for what, name in columns.items() if name is not None}
        words = _BY_TRANSACTION if "transaction" in names else _BY_POSITION
        words = {what: word.format(**names) for what, word in words.items()}
        words |= names | {"table": quoted(table, dialect)}
        place = [bindparam("_position", type_=BigInteger())]
        if "transaction" in names:
            place.append(bindparam("_transaction", type_=BigInteger()))
        self.next: Any = text(_NEXT.format(**words)).bindparams(*place)
        self.count: Any = text(_COUNT.format(**words)).bindparams(*place)
        self.lower: Any = None
        """With ``_numbers``, JSON of ``id`` and ``number``: the rows of those aggregates with lower numbers, ascending."""
        if "aggregate" in names:
            kind = table.c[columns["aggregate"] or ""].type.compile(dialect=_of(dialect))
            words |= {what: word.format(type=kind) for what, word in _GIVEN[dialect].items()}
            self.lower = text(_LOWER.format(**words)).bindparams(*place, bindparam("_numbers", type_=Text()))


def _of(dialect: str) -> Any:
    return (postgresql if dialect == "postgresql" else sqlite).dialect()


def _quoted(table: Table, name: str, dialect: str) -> str:
    """A column's name in a text of SQL. Raises ``ValueError`` where the table has none of that name."""
    if name not in table.c:
        raise ValueError(f"the table {table.fullname} has no column {name}")
    return str(_of(dialect).identifier_preparer.format_column(table.c[name])).replace(":", "\\:")
