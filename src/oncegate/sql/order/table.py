"""The tables of an inbox that keeps an order: the last applied number of each aggregate, and what is parked behind it."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

from oncegate.sql.database.types import BYTEWISE, Digest, RecordId

ORDER: Final = "oncegate_order"
PARKED: Final = "oncegate_parked"
_WAITS: Final = text("early IS NOT NULL")


def order_table(metadata: MetaData, schema: str | None = None) -> Table:
    """The numbers' table as a part of ``metadata``: for all consumers of a database one."""
    return Table(
        ORDER,
        metadata,
        # When the number was applied, by the database's clock.
        Column("applied_at", DateTime(timezone=True), nullable=False),
        # The last number that was applied; the one before the first, where something is parked and nothing applied.
        Column("sequence", BigInteger, nullable=False),
        # How many rows of oncegate_parked belong to it. Who applies a number sees so whether one waits behind it.
        Column("parked", Integer, nullable=False),
        # The consumer's name.
        Column("consumer", BYTEWISE, primary_key=True),
        # The digest of the aggregate's id.
        Column("aggregate", Digest, primary_key=True),
        # The record's id, the payload's digest and the kept result of the message that had the number; none, if it was skipped.
        Column("message", RecordId),
        Column("fingerprint", Digest),
        Column("result", Text),
        # The highest number that came early and stays with its broker, since when one does, and the aggregate's id for operators.
        Column("early", BigInteger),
        Column("early_since", DateTime(timezone=True)),
        Column("early_aggregate", BYTEWISE),
        # Those that wait are few among all.
        Index(f"{ORDER}_early", "consumer", "early_since", postgresql_where=_WAITS, sqlite_where=_WAITS),
        schema=schema,
        keep_existing=True,
    )


def parked_table(metadata: MetaData, schema: str | None = None) -> Table:
    """The table of parked messages as a part of ``metadata``: for all consumers of a database one."""
    return Table(
        PARKED,
        metadata,
        # When it was parked, and when it is to be tried next, by the database's clock.
        Column("parked_at", DateTime(timezone=True), nullable=False),
        Column("due_at", DateTime(timezone=True), nullable=False),
        # Its number.
        Column("sequence", BigInteger, nullable=False),
        # How often its handler has failed; dead: it will not be tried again by itself, and reason is why.
        Column("attempts", Integer, nullable=False),
        Column("dead", Boolean, nullable=False),
        # Its number is applied, or skipped: the row is there only until the outcome is recorded by the hook.
        Column("applied", Boolean, nullable=False),
        # The consumer's name.
        Column("consumer", BYTEWISE, nullable=False),
        # The digest of the aggregate's id, and that id itself, for operators.
        Column("aggregate", Digest, nullable=False),
        Column("aggregate_id", BYTEWISE, nullable=False),
        # The record's id, and the payload's digest.
        Column("message", RecordId),
        Column("fingerprint", Digest),
        # The arguments of the handler but its session, as JSON: the payload, and with it the context that has the headers.
        Column("arguments", Text, nullable=False),
        Column("reason", Text),
        # It came through the gateway; and what the hook is still to record: the state, and result or error, in JSON.
        Column("submitted", Boolean, nullable=False),
        Column("outcome", Text),
        # In this order: those of an aggregate are looked for, without a number.
        PrimaryKeyConstraint("consumer", "aggregate", "sequence"),
        # The sweep looks by the time, for what is due.
        Index(f"{PARKED}_due_at", "consumer", "due_at"),
        schema=schema,
        keep_existing=True,
    )
