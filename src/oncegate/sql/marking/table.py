"""The table of markers: one row for each message that a consumer has processed."""

from typing import Final

from sqlalchemy import Column, DateTime, Index, MetaData, Table, Text

from oncegate.sql.database.types import BYTEWISE, Digest, RecordId

TABLE: Final = "oncegate_inbox"

NO_MESSAGE: Final = ""
"""In the place of a message: the row's instant is the one up to which markers may have been deleted."""
ALL_CONSUMERS: Final = ""
"""In the place of a consumer, in such a row."""
RESET: Final = "reset"
"""In the place of a result, in such a row: up to its instant nothing that was forgotten counts for this consumer."""


def inbox_table(metadata: MetaData, schema: str | None = None) -> Table:
    """The table as a part of ``metadata``: for all consumers of a database one."""
    return Table(
        TABLE,
        metadata,
        # When it was written, by the database's clock. First, since nothing has to be padded for it there.
        Column("received_at", DateTime(timezone=True), nullable=False),
        # The consumer's name.
        Column("consumer", BYTEWISE, primary_key=True),
        # The record's id, digests of key and caller: the same in the log, the gateway, the stream and here.
        Column("message", RecordId, primary_key=True),
        # A digest of the payload, where there was one to compare by.
        Column("fingerprint", Digest),
        # What the handler returned, as JSON.
        Column("result", Text),
        # Finds what is too old. Rows lie in the order of their times: on PostgreSQL a few bytes for each thousand of them.
        Index(f"{TABLE}_received_at", "received_at", postgresql_using="brin"),
        schema=schema,
        keep_existing=True,
    )
