"""The table of markers: one row for each message that a consumer has processed."""

from typing import Final

from sqlalchemy import Column, DateTime, LargeBinary, MetaData, Table, Text

TABLE: Final = "oncegate_inbox"

_BYTEWISE: Final = Text().with_variant(Text(collation="C"), "postgresql")
"""Compared by bytes, whatever the database's collation: no two keys are taken for one."""


def inbox_table(metadata: MetaData, schema: str | None = None) -> Table:
    """The table as a part of ``metadata``: for all consumers of a database one."""
    name = f"{schema or metadata.schema}.{TABLE}" if schema or metadata.schema else TABLE
    if (there := metadata.tables.get(name)) is not None:
        return there
    return Table(
        TABLE,
        metadata,
        # When it was written, by the database's clock. First, since nothing has to be padded for it there.
        Column("received_at", DateTime(timezone=True), nullable=False),
        # The consumer's name.
        Column("consumer", _BYTEWISE, primary_key=True),
        # The record's id, digests of key and caller: the same in the log, the gateway, the stream and here.
        Column("message", _BYTEWISE, primary_key=True),
        # A digest of the payload, where there was one to compare by.
        Column("fingerprint", LargeBinary),
        # What the handler returned, as JSON.
        Column("result", Text),
        schema=schema,
    )
