"""`Outbox`: a message is a row that is written in the transaction of what it tells; a relay publishes it after the commit."""

from collections.abc import Coroutine, Mapping
from typing import Any, Final, NamedTuple, overload
from uuid import uuid4

import orjson
from sqlalchemy import BindParameter, Connection, DateTime, MetaData, Table, TextClause, bindparam, func, insert, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from oncegate.middleware.rules.errors import KeyInvalid
from oncegate.middleware.rules.key import MAX_KEY_CHARACTERS
from oncegate.middleware.rules.key_text import KeyText, key_text
from oncegate.sql.outbox.aggregates import check_header, check_name, digest_of
from oncegate.sql.outbox.misuse import in_transaction_of, not_a_session
from oncegate.sql.outbox.sequences import Sequences, check_expected
from oncegate.sql.outbox.tables import outbox_table, quoted, sequence_table
from oncegate.sql.outbox.wake import wake_after_commit

_STAMPED: Final = frozenset(
    {"idempotency-key", "oncegate-aggregate", "oncegate-sequence", "nats-msg-id", "correlation_id"}
)
"""The relay's own headers."""

_GIVEN: Final = ("outbox", "topic", "key", "correlation", "headers", "body", "aggregate_id", "aggregate")
"""The columns of a message with an aggregate, but for its number and its instant."""
_NUMBERED: Final = """\
WITH numbered AS ({counted}) INSERT INTO {table} (sequence, added_at, {columns})
SELECT number, statement_timestamp(), {values} FROM numbered RETURNING sequence
"""


class Added(NamedTuple):
    """What a message was given: its idempotency key, and with an aggregate its number there."""

    key: str
    sequence: int | None


class Outbox:
    """The outbox ``name``, in the table ``oncegate_outbox`` of the database that the messages tell of.

    The numbers of its aggregates are those of ``Sequences(name)``. ``schema`` is where the tables are, if they aren't where the
    connection looks by itself.
    """

    def __init__(self, name: str, *, schema: str | None = None) -> None:
        self.name = check_name("the name of an outbox", name)
        self.schema = schema
        self._table = outbox_table(MetaData(), schema)
        self._sequences = Sequences(name, schema=schema)
        self._plain = insert(self._table).values(added_at=func.current_timestamp(type_=DateTime(timezone=True)))
        kinds = [self._sequences.counted("postgresql", expected) for expected in (None, 0, 1)]
        self._numbered = {counted: _numbered(self._table, counted) for counted in kinds}

    def tables(self, metadata: MetaData) -> tuple[Table, Table]:
        """The tables of messages and of sequences as parts of ``metadata``, for your own migrations."""
        return outbox_table(metadata, self.schema), sequence_table(metadata, self.schema)

    @overload
    def add(
        self,
        session: AsyncSession | AsyncConnection,
        topic: str,
        body: Any,
        *,
        aggregate: str | None = None,
        expected: int | None = None,
        key: KeyText | None = None,
        headers: Mapping[str, str] | None = None,
        correlation: str = "",
    ) -> Coroutine[Any, Any, Added]: ...

    @overload
    def add(
        self,
        session: Session | Connection,
        topic: str,
        body: Any,
        *,
        aggregate: str | None = None,
        expected: int | None = None,
        key: KeyText | None = None,
        headers: Mapping[str, str] | None = None,
        correlation: str = "",
    ) -> Added: ...

    def add(
        self,
        session: AsyncSession | AsyncConnection | Session | Connection,
        topic: str,
        body: Any,
        *,
        aggregate: str | None = None,
        expected: int | None = None,
        key: KeyText | None = None,
        headers: Mapping[str, str] | None = None,
        correlation: str = "",
    ) -> Added | Coroutine[Any, Any, Added]:
        """Write a message in the session's transaction; it is published after the commit. Awaited, where the session is.

        ``topic`` is the broker's queue, subject, stream or topic. ``body`` is bytes, or a str, as it is; anything else is sent as
        JSON. ``key`` is the idempotency key of each of its publications: a random one, if none is given. With an ``aggregate``
        the message gets its next number, and goes after those before it: until the transaction ends whoever adds
        to the same aggregate waits. ``expected`` as for `Sequences.next`.

        Raises `VersionConflict`, `OutboxMisused` where the message would not be in the transaction, ``TypeError`` and
        ``ValueError`` for what can't be sent.
        """
        row = _row(self.name, topic, body, key, headers, correlation)
        check_expected(expected)
        digest = None
        if aggregate is not None:
            digest = digest_of(aggregate)
            check_header("the aggregate's id", aggregate)
            row |= {"aggregate_id": aggregate, "aggregate": digest_of(f"{self.name}\n{aggregate}")}
        elif expected is not None:
            raise ValueError("expected is a version of an aggregate: give that, too")
        if isinstance(session, AsyncSession):
            return session.run_sync(self._add, row, digest, expected)
        if isinstance(session, AsyncConnection):
            return session.run_sync(self._add, row, digest, expected)
        if not isinstance(session, Session | Connection):
            raise not_a_session(session)
        return self._add(session, row, digest, expected)

    def _add(
        self, session: Session | Connection, row: dict[str, Any], digest: bytes | None, expected: int | None
    ) -> Added:
        def step(connection: Connection) -> int | None:
            return self._insert(connection, row, digest, expected)

        sequence = in_transaction_of(session, self._table.fullname, step)
        if isinstance(session, Session):
            wake_after_commit(session)
        return Added(row["key"], sequence)

    def _insert(
        self, connection: Connection, row: dict[str, Any], digest: bytes | None, expected: int | None
    ) -> int | None:
        """On PostgreSQL message and number are one statement; SQLite has none that writes two tables."""
        if digest is None:
            connection.execute(self._plain, row)
            return None
        if connection.dialect.name == "sqlite":
            number = self._sequences.step(connection, digest, expected)
            connection.execute(self._plain, row | {"sequence": number})
            return number
        given = self._sequences.parameters(digest, expected)
        statement = self._numbered[self._sequences.counted("postgresql", expected)]
        while (found := connection.scalar(statement, row | given)) is None:
            self._sequences.check(connection, given, expected)
        return int(found)


def _numbered(table: Table, counted: TextClause) -> TextClause:
    """``counted`` and a message with its number, as one statement of PostgreSQL."""
    words = {"counted": counted.text, "table": quoted(table, "postgresql"), "columns": ", ".join(_GIVEN)}
    statement = _NUMBERED.format(**words, values=", ".join(f":{name}" for name in _GIVEN))
    given = [bindparam(name, type_=table.c[name].type) for name in _GIVEN]
    return text(statement).bindparams(
        *given, *[each for each in counted.get_children() if isinstance(each, BindParameter)]
    )


def _row(
    outbox: str, topic: str, body: Any, key: KeyText | None, headers: Mapping[str, str] | None, correlation: str
) -> dict[str, Any]:
    """The columns that the caller has given. Raises ``TypeError`` and ``ValueError``."""
    check_header("the topic", topic)
    if correlation:
        check_header("the correlation id", correlation)
    given = {str(name): value for name, value in (headers or {}).items()}
    for name, value in given.items():
        if name.lower() in _STAMPED:
            raise ValueError(f"the header {name} is the relay's: give key=, aggregate= or correlation=")
        check_header("a header's name", name)
        check_header(f"the header {name}", value)
    content, kind = _body(body)
    if kind and not any(name.lower() == "content-type" for name in given):
        given["content-type"] = kind
    return {
        "outbox": outbox,
        "topic": topic,
        "key": str(uuid4()) if key is None else _key(key),
        "correlation": correlation,
        "headers": orjson.dumps(given).decode() if given else None,
        "body": content,
    }


def _key(key: KeyText) -> str:
    """Raises `KeyInvalid`, a ``ValueError``, for what the `Idempotency-Key` of HTTP can't name."""
    text = key_text(key, "key")
    if not text.isascii() or not text.isprintable() or not 1 <= len(text) <= MAX_KEY_CHARACTERS:
        raise KeyInvalid(f"The key is not 1 to {MAX_KEY_CHARACTERS} characters of printable ASCII.")
    return text


def _body(body: Any) -> tuple[bytes, str]:
    """As bytes, with the content type of what isn't bytes. Raises ``TypeError`` for what has no JSON form."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), ""
    if isinstance(body, str):
        return body.encode(), "text/plain"
    try:
        return orjson.dumps(body), "application/json"
    except TypeError as error:
        raise TypeError(f"the body is a {type(body).__name__} that has no JSON form: {error}") from None
