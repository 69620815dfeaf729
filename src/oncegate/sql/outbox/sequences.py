"""`Sequences`: the next number of an aggregate, in the transaction of what it numbers.

Strategy. The row of an aggregate is locked by the statement that counts it up, until the transaction ends: numbers are committed
in their order, and a rollback gives the number back. So whoever sees a number sees every lower one, too.
"""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, overload

from sqlalchemy import Connection, MetaData, Table, TextClause, bindparam, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from oncegate.middleware.outcome.errors import NotRetryable, reduced
from oncegate.sql.database.types import DIALECTS
from oncegate.sql.outbox.aggregates import check_name, digest_of
from oncegate.sql.outbox.misuse import in_transaction_of, not_a_session
from oncegate.sql.outbox.tables import quoted, sequence_table


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

    ``name`` tells apart what is numbered independently; ``schema`` is where the table is, if it isn't where the connection
    looks by itself.
    """

    def __init__(self, name: str, *, schema: str | None = None) -> None:
        self.name = check_name("the name of sequences", name)
        self.schema = schema
        self._table = sequence_table(MetaData(), schema)
        self._steps = {dialect: _Steps.of(dialect, self._table) for dialect in DIALECTS}

    def table(self, metadata: MetaData) -> Table:
        """Their table as a part of ``metadata``, for your own migrations."""
        return sequence_table(metadata, self.schema)

    @overload
    def next(
        self, session: AsyncSession | AsyncConnection, aggregate: str, expected: int | None = None
    ) -> Coroutine[Any, Any, int]: ...

    @overload
    def next(self, session: Session | Connection, aggregate: str, expected: int | None = None) -> int: ...

    def next(
        self,
        session: AsyncSession | AsyncConnection | Session | Connection,
        aggregate: str,
        expected: int | None = None,
    ) -> int | Coroutine[Any, Any, int]:
        """The aggregate's next number, which is its when the session's transaction commits. Awaited, where the session is.

        Until then whoever wants the next number of the same aggregate waits. With ``expected``, the number that the caller has
        seen last (0: none yet), it is the one after that, or `VersionConflict` is raised and nothing written.

        Raises `OutboxMisused` where a number would not hold, ``TypeError`` and ``ValueError`` for what is no id or no version.
        """
        digest = digest_of(aggregate)
        check_expected(expected)
        if isinstance(session, AsyncSession):
            return session.run_sync(self._next, digest, expected)
        if isinstance(session, AsyncConnection):
            return session.run_sync(self._next, digest, expected)
        if not isinstance(session, Session | Connection):
            raise not_a_session(session)
        return self._next(session, digest, expected)

    def _next(self, session: Session | Connection, digest: bytes, expected: int | None) -> int:
        return in_transaction_of(
            session, self._table.fullname, lambda connection: self.step(connection, digest, expected)
        )

    def step(self, connection: Connection, digest: bytes, expected: int | None) -> int:
        """The next number of the aggregate with this digest. Raises `VersionConflict`, and SQLAlchemy's errors."""
        given = self.parameters(digest, expected)
        counted = self._steps[connection.dialect.name].counted(expected)
        while (number := connection.scalar(counted, given)) is None:
            self.check(connection, given, expected)
        return int(number)

    def parameters(self, digest: bytes, expected: int | None) -> dict[str, Any]:
        """Those of the statements."""
        return {"_name": self.name, "_aggregate": digest} | ({"_expected": expected} if expected else {})

    def counted(self, dialect: str, expected: int | None) -> TextClause:
        """The statement that counts up, and gives the ``number``; no row is a conflict."""
        return self._steps[dialect].counted(expected)

    def check(self, connection: Connection, given: dict[str, Any], expected: int | None) -> None:
        """Raises `VersionConflict`, unless the aggregate has reached what was expected since the statement looked."""
        current = connection.scalar(self._steps[connection.dialect.name].current, given) or 0
        if expected is not None and current != expected:
            raise VersionConflict(expected, current)


_INSERT: Final = """\
INSERT INTO {table} AS t (number, name, aggregate) VALUES (1, :_name, :_aggregate)
ON CONFLICT (name, aggregate) DO """
_ANY: Final = _INSERT + "UPDATE SET number = t.number + 1 RETURNING number"
_FIRST: Final = _INSERT + "NOTHING RETURNING number"
_NEXT: Final = """\
UPDATE {table} SET number = number + 1
WHERE name = :_name AND aggregate = :_aggregate AND number = :_expected RETURNING number"""
_CURRENT: Final = "SELECT number FROM {table} WHERE name = :_name AND aggregate = :_aggregate"


@dataclass(frozen=True, slots=True)
class _Steps:
    """The statements, for one dialect, as texts: SQLAlchemy compiles an ON CONFLICT of its own each time anew.

    Parameters: ``_name``, ``_aggregate`` (its digest), ``_expected`` where it is above 0.
    """

    any: TextClause
    first: TextClause
    """Where there must be none yet."""
    after: TextClause
    """Where the last one must be ``_expected``."""
    current: TextClause

    @classmethod
    def of(cls, dialect: str, table: Table) -> "_Steps":
        """Those for ``table``."""
        name = quoted(table, dialect)
        given = (bindparam("_name", type_=table.c.name.type), bindparam("_aggregate", type_=table.c.aggregate.type))
        expected = bindparam("_expected", type_=table.c.number.type)
        return cls(
            text(_ANY.format(table=name)).bindparams(*given),
            text(_FIRST.format(table=name)).bindparams(*given),
            text(_NEXT.format(table=name)).bindparams(*given, expected),
            text(_CURRENT.format(table=name)).bindparams(*given),
        )

    def counted(self, expected: int | None) -> TextClause:
        """The one that counts up."""
        if expected is None:
            return self.any
        return self.after if expected else self.first


def check_expected(expected: object) -> None:
    """Raises ``TypeError`` for what is no number, ``ValueError`` for one that no aggregate is ever at."""
    if expected is None:
        return
    if not isinstance(expected, int) or isinstance(expected, bool):
        raise TypeError(f"the expected version is a {type(expected).__name__}: give an int")
    if not 0 <= expected < 2**63 - 1:
        raise ValueError("the expected version is the number seen last: 0 or more")
