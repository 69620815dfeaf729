"""`Outbox`: a message is a row in the transaction of the change that it reports; a relay publishes it after the commit."""

from collections.abc import Coroutine, Mapping
from typing import Any, Final, NamedTuple, TypedDict, Unpack, overload
from uuid import uuid4

import orjson
from sqlalchemy import Connection, DateTime, MetaData, Table, bindparam, func, insert
from sqlalchemy.orm import Session

from oncegate.middleware.consumers.sql_interface import MAX_KEY_CHARACTERS, KeyInvalid, KeyText, Traces, key_text
from oncegate.sql.database.names import check_name
from oncegate.sql.database.sessions import AnyAsync, AnySync, in_session
from oncegate.sql.database.types import quoted
from oncegate.sql.outbox.misuse import check_header, digest_of, in_transaction_of
from oncegate.sql.outbox.sequences import Counting, check_expected
from oncegate.sql.outbox.tables import outbox_table, sequence_table
from oncegate.sql.outbox.wake import wake_after_commit

_STAMPED: Final = ("idempotency-key", "oncegate-aggregate", "oncegate-sequence", "nats-msg-id", "correlation_id")
"""The relay's own headers."""

_GIVEN: Final = ("outbox", "topic", "key", "correlation", "headers", "body", "aggregate_id", "aggregate")
"""The columns of a message with an aggregate, but for its number and its instant."""
_NUMBERED: Final = """\
) INSERT INTO {table} (sequence, added_at, {columns})
SELECT number, statement_timestamp(), {values} FROM numbered RETURNING sequence
"""


class Added(NamedTuple):
    """A message's idempotency key, and with an aggregate its number there."""

    key: str
    sequence: int | None


class MessageOptions(TypedDict, total=False):
    """The keyword arguments of `Outbox.add`, for its overloads."""

    aggregate: str | None
    expected: int | None
    key: KeyText | None
    headers: Mapping[str, str] | None
    correlation: str


class Outbox:
    """The outbox ``name``, in the table ``oncegate_outbox`` of the database whose changes the messages report.

    The numbers of its aggregates are those of ``Sequences(name)``. ``schema`` is where the tables are, if they aren't where the
    connection looks by itself. With ``tracing``, an `oncegate.otel.Tracing`, a message carries the place in a trace at which it
    was added, as the header ``traceparent``.
    """

    def __init__(self, name: str, *, schema: str | None = None, tracing: Traces | None = None) -> None:
        self.name = check_name("the name of an outbox", name)
        self.schema = schema
        self._tracing = tracing
        self._table = outbox_table(MetaData(), schema)
        self._plain = insert(self._table).values(added_at=func.current_timestamp(type_=DateTime(timezone=True)))
        numbers = sequence_table(MetaData(), schema)
        self._counting = Counting(name, numbers, "sqlite")
        values = ", ".join(f":{column}" for column in _GIVEN)
        behind = _NUMBERED.format(table=quoted(self._table, "postgresql"), columns=", ".join(_GIVEN), values=values)
        given = [bindparam(column, type_=self._table.c[column].type) for column in _GIVEN]
        self._numbering = Counting(name, numbers, "postgresql", "WITH numbered AS (", behind, *given)

    def tables(self, metadata: MetaData) -> tuple[Table, Table]:
        """The tables of messages and of sequences as parts of ``metadata``, for your own migrations."""
        return outbox_table(metadata, self.schema), sequence_table(metadata, self.schema)

    @overload
    def add(
        self, session: AnyAsync, topic: str, body: Any, **given: Unpack[MessageOptions]
    ) -> Coroutine[Any, Any, Added]: ...

    @overload
    def add(self, session: AnySync, topic: str, body: Any, **given: Unpack[MessageOptions]) -> Added: ...

    def add(
        self,
        session: AnySync | AnyAsync,
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

        - ``topic``: the broker's queue, subject, stream or topic.
        - ``body``: bytes or a str, sent as it is; anything else is sent as JSON.
        - ``aggregate``: the message gets the aggregate's next number and is published after those before it. Until the
          transaction ends, whoever else adds to the aggregate waits.
        - ``expected``: the aggregate's version, as for `Sequences.next`.
        - ``key``: the idempotency key of each of its publications; by default a random one.
        - ``headers``: sent with it, beside those of oncegate.
        - ``correlation``: the id of what the message is a part of, for logs and dead letters.

        Raises `VersionConflict`, `OutboxMisused` where the message would not be in the transaction, `KeyInvalid` for a key that
        is none, ``TypeError`` and ``ValueError`` for what else can't be sent.
        """
        row = _row(self.name, topic, body, key, self._traced(headers), correlation)
        check_expected(expected)
        digest = None
        if aggregate is not None:
            digest = digest_of(aggregate)
            check_header("the aggregate's id", aggregate)
            row |= {"aggregate_id": aggregate, "aggregate": digest_of(f"{self.name}\n{aggregate}")}
        elif expected is not None:
            raise ValueError("expected is a version of an aggregate: give that, too")

        def add(sync: AnySync) -> Added:
            number = in_transaction_of(
                sync, self._table.fullname, lambda connection: self._insert(connection, row, digest, expected)
            )
            if isinstance(sync, Session):
                wake_after_commit(sync)
            return Added(row["key"], number)

        return in_session(session, add)

    def _traced(self, headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
        traceparent = "" if self._tracing is None else self._tracing.current()
        if not traceparent or any(str(name).lower() == "traceparent" for name in headers or ()):
            return headers
        return {**(headers or {}), "traceparent": traceparent}

    def _insert(
        self, connection: Connection, row: dict[str, Any], digest: bytes | None, expected: int | None
    ) -> int | None:
        """Insert the message; its number. On PostgreSQL both are one statement; SQLite has none that writes two tables."""
        if digest is not None and connection.dialect.name == "postgresql":
            return self._numbering.next(connection, digest, expected, **row)
        number = None if digest is None else self._counting.next(connection, digest, expected)
        connection.execute(self._plain, row | {"sequence": number})
        return number


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
    """The body as bytes, with the content type of what isn't bytes. Raises ``TypeError`` for what has no JSON form."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), ""
    if isinstance(body, str):
        return body.encode(), "text/plain"
    try:
        return orjson.dumps(body), "application/json"
    except TypeError as error:
        raise TypeError(f"the body is a {type(body).__name__} that has no JSON form: {error}") from None
