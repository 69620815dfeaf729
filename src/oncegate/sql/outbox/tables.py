"""The tables of sequences and of the outbox."""

from typing import Final

import sqlalchemy as sa
from sqlalchemy import Column, Index, MetaData, Table

from oncegate.sql.database.types import BYTEWISE, Digest

SEQUENCES: Final = "oncegate_sequence"
MESSAGES: Final = "oncegate_outbox"
CHECKPOINTS: Final = "oncegate_checkpoint"

TO_ADD: Final = {MESSAGES: "INSERT, SELECT", SEQUENCES: "INSERT, SELECT, UPDATE"}
"""The privileges that a role needs to add messages, on each table; SELECT, since PostgreSQL gives back what was inserted."""

_ID: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # where only an INTEGER is a row's id
_WAITING: Final = sa.text("published_at IS NULL AND aggregate IS NOT NULL")
_FREE: Final = sa.text("published_at IS NULL AND aggregate IS NULL")
_PUBLISHED: Final = sa.text("published_at IS NOT NULL")


def sequence_table(metadata: MetaData, schema: str | None = None) -> Table:
    """The numbers that are given out last, as a part of ``metadata``: for all sequences of a database one table."""
    return Table(
        SEQUENCES,
        metadata,
        # The number that was given out last.
        Column("number", sa.BigInteger, nullable=False),
        # The sequence's name.
        Column("name", BYTEWISE, primary_key=True),
        # A digest of the aggregate's id.
        Column("aggregate", Digest, primary_key=True),
        schema=schema,
        keep_existing=True,
    )


def outbox_table(metadata: MetaData, schema: str | None = None) -> Table:
    """The messages, as a part of ``metadata``: for all outboxes of a database one table."""
    return Table(
        MESSAGES,
        metadata,
        # In the order of adding; no order of commits.
        Column("id", _ID, sa.Identity(always=True), primary_key=True),
        # The number among those of its aggregate.
        Column("sequence", sa.BigInteger),
        # When it was added, and when the broker has confirmed it, by the database's clock.
        Column("added_at", sa.DateTime(timezone=True), nullable=False),
        Column("published_at", sa.DateTime(timezone=True)),
        # How often the broker has refused it, and until when it, and what is behind it, waits for that reason.
        Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
        Column("due_at", sa.DateTime(timezone=True)),
        # It is given up; it, and what is behind it, waits for an operator.
        Column("dead", sa.Boolean, nullable=False, server_default=sa.text("false")),
        # The outbox's name.
        Column("outbox", BYTEWISE, nullable=False),
        Column("topic", sa.Text, nullable=False),
        # The idempotency key, which each publication carries.
        Column("key", BYTEWISE, nullable=False),
        # A digest of the outbox's name and of the aggregate's id, and that id.
        Column("aggregate", Digest),
        Column("aggregate_id", sa.Text),
        Column("correlation", sa.Text, nullable=False, server_default=""),
        # In JSON.
        Column("headers", sa.Text),
        # Why it was refused last.
        Column("refusal", sa.Text),
        Column("body", sa.LargeBinary, nullable=False),
        # Finds the first that waits of each aggregate, and those behind it.
        Index(f"{MESSAGES}_waiting", "aggregate", "sequence", postgresql_where=_WAITING, sqlite_where=_WAITING),
        # Finds those that have no aggregate.
        Index(f"{MESSAGES}_free", "id", postgresql_where=_FREE, sqlite_where=_FREE),
        # Finds what was kept for long enough.
        Index(f"{MESSAGES}_published", "published_at", postgresql_where=_PUBLISHED, sqlite_where=_PUBLISHED),
        schema=schema,
        keep_existing=True,
    )


def checkpoint_table(metadata: MetaData, schema: str | None = None) -> Table:
    """How far sources are published that can't be marked, as a part of ``metadata``: for all of a database one table."""
    return Table(
        CHECKPOINTS,
        metadata,
        # The source's name.
        Column("source", BYTEWISE, primary_key=True),
        # Up to where all is published: a transaction's number and a position in it.
        Column("transaction", sa.BigInteger, nullable=False),
        Column("position", sa.BigInteger, nullable=False),
        # Positions behind that which are published, too: a list in JSON.
        Column("ahead", sa.Text, nullable=False),
        schema=schema,
        keep_existing=True,
    )


def all_tables(schema: str | None) -> list[Table]:
    """The tables of messages, of sequences and of checkpoints."""
    return [make(MetaData(), schema) for make in (outbox_table, sequence_table, checkpoint_table)]
