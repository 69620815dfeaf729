"""`Sequences`: the next number of an aggregate, in the transaction of what it numbers.

Strategy. The row of an aggregate is locked by the statement that counts it up, until the transaction ends: numbers are committed
in their order, and a rollback gives the number back. So whoever sees a number sees every lower one, too.
"""

from collections.abc import Coroutine
from typing import Any, Final, overload

from sqlalchemy import BindParameter, Connection, MetaData, Table, TextClause, bindparam, text

from oncegate.middleware.consumers.sql_interface import MAX_SEQUENCE, NotRetryable, reduced
from oncegate.sql.database.names import check_name
from oncegate.sql.database.sessions import AnyAsync, AnySync, in_session
from oncegate.sql.database.types import DIALECTS, quoted
from oncegate.sql.outbox.misuse import digest_of, in_transaction_of
from oncegate.sql.outbox.tables import sequence_table

_INSERT: Final = """\
INSERT INTO {table} AS t (number, name, aggregate) VALUES (1, :_name, :_aggregate)
ON CONFLICT (name, aggregate) DO """
_ANY: Final = _INSERT + "UPDATE SET number = t.number + 1 RETURNING number"
_FIRST: Final = _INSERT + "NOTHING RETURNING number"
_NEXT: Final = """\
UPDATE {table} SET number = number + 1
WHERE name = :_name AND aggregate = :_aggregate AND number = :_expected RETURNING number"""
_CURRENT: Final = "SELECT number FROM {table} WHERE name = :_name AND aggregate = :_aggregate"


class VersionConflict(NotRetryable):
    """The aggregate is not at the number ``expected`` any more (or not yet): it is at ``current``, 0 before its first one."""

    def __init__(self, expected: int, current: int) -> None:
        super().__init__(f"expected version {expected}, and the aggregate is at {current}")
        self.expected = expected
        self.current = current

    def __reduce__(self) -> tuple[Any, ...]:
        """See `reduced`."""
        return reduced(self)


class Sequences:
    """The numbers of many aggregates, from 1 on, each without gaps, in the table ``oncegate_sequence``.

    ``name`` sets apart what is numbered independently; ``schema`` is where the table is, if it isn't where the connection
    looks by itself.
    """

    def __init__(self, name: str, *, schema: str | None = None) -> None:
        self.name = check_name("the name of sequences", name)
        self.schema = schema
        self._table = sequence_table(MetaData(), schema)
        self._counting = {dialect: Counting(name, self._table, dialect) for dialect in DIALECTS}

    def table(self, metadata: MetaData) -> Table:
        """Their table as a part of ``metadata``, for your own migrations."""
        return sequence_table(metadata, self.schema)

    @overload
    def next(self, session: AnyAsync, aggregate: str, expected: int | None = None) -> Coroutine[Any, Any, int]: ...

    @overload
    def next(self, session: AnySync, aggregate: str, expected: int | None = None) -> int: ...

    def next(
        self, session: AnySync | AnyAsync, aggregate: str, expected: int | None = None
    ) -> int | Coroutine[Any, Any, int]:
        """The aggregate's next number, which is its when the session's transaction commits. Awaited, where the session is.

        Until then whoever wants the next number of the same aggregate waits. With ``expected``, the number that the caller has
        seen last (0: none yet), it is the one after that, or `VersionConflict` is raised and nothing written.

        Raises `OutboxMisused` where a number would not hold, ``TypeError`` and ``ValueError`` for what is no id or no version.
        """
        digest = digest_of(aggregate)
        check_expected(expected)

        def count(connection: Connection) -> int:
            return self._counting[connection.dialect.name].next(connection, digest, expected)

        return in_session(session, lambda sync: in_transaction_of(sync, self._table.fullname, count))


class Counting:
    """The counting of aggregates of ``name``, by statements of one dialect.

    They are texts: SQLAlchemy compiles an ON CONFLICT of its own each time anew. ``before`` and ``behind`` make of the one that
    gives the ``number`` another that uses it, with ``parameters`` of its own.
    """

    def __init__(
        self, name: str, table: Table, dialect: str, before: str = "", behind: str = "", *parameters: BindParameter[Any]
    ) -> None:
        numbers = quoted(table, dialect)
        given = (bindparam("_name", type_=table.c.name.type), bindparam("_aggregate", type_=table.c.aggregate.type))
        expected = bindparam("_expected", type_=table.c.number.type)

        def counting(statement: str, *more: BindParameter[Any]) -> TextClause:
            return text(before + statement.format(table=numbers) + behind).bindparams(*given, *parameters, *more)

        self._name = name
        self._any = counting(_ANY)
        self._first = counting(_FIRST)
        self._after = counting(_NEXT, expected)
        self._current = text(_CURRENT.format(table=numbers)).bindparams(*given)

    def next(self, connection: Connection, digest: bytes, expected: int | None, **more: Any) -> int:
        """The next number of the aggregate with this digest. Raises `VersionConflict`, and SQLAlchemy's errors."""
        given = {"_name": self._name, "_aggregate": digest, "_expected": expected, **more}
        statement = self._any if expected is None else self._after if expected else self._first
        while (number := connection.scalar(statement, given)) is None:
            current = connection.scalar(self._current, given) or 0
            if expected is not None and current != expected:
                raise VersionConflict(expected, current)
        return int(number)


def check_expected(expected: object) -> None:
    """Raises ``TypeError`` for what is no number, ``ValueError`` for one that no aggregate is ever at."""
    if expected is None:
        return
    if not isinstance(expected, int) or isinstance(expected, bool):
        raise TypeError(f"the expected version is a {type(expected).__name__}: give an int")
    if not 0 <= expected < MAX_SEQUENCE:
        raise ValueError("the expected version is the number seen last: 0 or more")
