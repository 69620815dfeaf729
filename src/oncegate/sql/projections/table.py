"""The table of projections: how far each has applied its events, and at which it fails."""

from typing import Final

from sqlalchemy import BigInteger, Column, DateTime, Integer, MetaData, Table, Text, text

from oncegate.sql.database.types import BYTEWISE

PROJECTIONS: Final = "oncegate_projection"


def projection_table(metadata: MetaData, schema: str | None = None) -> Table:
    """The table as a part of ``metadata``: for all projections of a database one."""
    return Table(
        PROJECTIONS,
        metadata,
        # The projection's name. Whoever applies events has the row locked until their transaction ends.
        Column("name", BYTEWISE, primary_key=True),
        # Up to where all is applied: a transaction's number (0 on SQLite) and a position in it.
        Column("transaction", BigInteger, nullable=False),
        Column("position", BigInteger, nullable=False),
        # Positions behind that which are applied, or skipped: a list in JSON.
        Column("ahead", Text, nullable=False),
        # Which table is read by which columns, in JSON: for operators, who count what is behind.
        Column("events", Text, nullable=False),
        # When events were applied last, by the database's clock.
        Column("moved_at", DateTime(timezone=True)),
        # The event whose handler fails: since when, at which position, how often, and with what; none, where none does.
        Column("failed_at", DateTime(timezone=True)),
        Column("failed_position", BigInteger),
        Column("attempts", Integer, nullable=False, server_default=text("0")),
        Column("reason", Text),
        schema=schema,
        keep_existing=True,
    )


def tables(schema: str | None) -> list[Table]:
    """That table alone, for the command that creates it."""
    return [projection_table(MetaData(), schema)]
