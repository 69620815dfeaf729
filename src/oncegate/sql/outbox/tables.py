"""The tables of sequences and of the outbox."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)
from sqlalchemy import text as sql
from sqlalchemy.dialects import postgresql, sqlite

from oncegate.sql.database.types import BYTEWISE, Digest

SEQUENCES: Final = "oncegate_sequence"
MESSAGES: Final = "oncegate_outbox"
CHECKPOINTS: Final = "oncegate_checkpoint"

_ID: Final = BigInteger().with_variant(Integer(), "sqlite")  # where only an INTEGER is a row's id
_WAITING: Final = sql("published_at IS NULL AND aggregate IS NOT NULL")
_FREE: Final = sql("published_at IS NULL AND aggregate IS NULL")
_PUBLISHED: Final = sql("published_at IS NOT NULL")


def sequence_table(metadata: MetaData, schema: str | None = None) -> Table:
    """The numbers that are given out last, as a part of ``metadata``: for all sequences of a database one table."""
    if (there := _table_of(metadata, SEQUENCES, schema)) is not None:
        return there
    return Table(
        SEQUENCES,
        metadata,
        # The number that was given out last.
        Column("number", BigInteger, nullable=False),
        # The sequence's name.
        Column("name", BYTEWISE, primary_key=True),
        # A digest of the aggregate's id.
        Column("aggregate", Digest, primary_key=True),
        schema=schema,
    )


def outbox_table(metadata: MetaData, schema: str | None = None) -> Table:
    """The messages, as a part of ``metadata``: for all outboxes of a database one table."""
    if (there := _table_of(metadata, MESSAGES, schema)) is not None:
        return there
    return Table(
        MESSAGES,
        metadata,
        # In the order of adding; no order of commits.
        Column("id", _ID, Identity(always=True), primary_key=True),
        # The number among those of its aggregate.
        Column("sequence", BigInteger),
        # When it was added, and when the broker has confirmed it, by the database's clock.
        Column("added_at", DateTime(timezone=True), nullable=False),
        Column("published_at", DateTime(timezone=True)),
        # How often the broker has refused it, and until when it, and what is behind it, waits for that reason.
        Column("attempts", Integer, nullable=False, server_default=sql("0")),
        Column("due_at", DateTime(timezone=True)),
        # It is given up; it, and what is behind it, waits for an operator.
        Column("dead", Boolean, nullable=False, server_default=sql("false")),
        # The outbox's name.
        Column("outbox", BYTEWISE, nullable=False),
        Column("topic", Text, nullable=False),
        # The idempotency key, which each publication carries.
        Column("key", BYTEWISE, nullable=False),
        # A digest of the outbox's name and of the aggregate's id, and that id.
        Column("aggregate", Digest),
        Column("aggregate_id", Text),
        Column("correlation", Text, nullable=False, server_default=""),
        # In JSON.
        Column("headers", Text),
        # Why it was refused last.
        Column("refusal", Text),
        Column("body", LargeBinary, nullable=False),
        # Finds the first that waits of each aggregate, and those behind it.
        Index(f"{MESSAGES}_waiting", "aggregate", "sequence", postgresql_where=_WAITING, sqlite_where=_WAITING),
        # Finds those that have no aggregate.
        Index(f"{MESSAGES}_free", "id", postgresql_where=_FREE, sqlite_where=_FREE),
        # Finds what was kept for long enough.
        Index(f"{MESSAGES}_published", "published_at", postgresql_where=_PUBLISHED, sqlite_where=_PUBLISHED),
        schema=schema,
    )


def checkpoint_table(metadata: MetaData, schema: str | None = None) -> Table:
    """How far sources are published that can't be marked, as a part of ``metadata``: for all of a database one table."""
    if (there := _table_of(metadata, CHECKPOINTS, schema)) is not None:
        return there
    return Table(
        CHECKPOINTS,
        metadata,
        # The source's name.
        Column("source", BYTEWISE, primary_key=True),
        # Up to where all is published: a transaction's number and a position in it.
        Column("transaction", BigInteger, nullable=False),
        Column("position", BigInteger, nullable=False),
        # Positions behind that which are published, too: a list in JSON.
        Column("ahead", Text, nullable=False),
        schema=schema,
    )


def quoted(table: Table, dialect: str) -> str:
    """The table's name in a text of SQL."""
    preparer = (postgresql if dialect == "postgresql" else sqlite).dialect().identifier_preparer
    return str(preparer.format_table(table)).replace(":", "\\:")


def _table_of(metadata: MetaData, name: str, schema: str | None) -> Table | None:
    schema = schema or metadata.schema
    return metadata.tables.get(f"{schema}.{name}" if schema else name)
