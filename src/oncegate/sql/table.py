"""The table of markers: one row for each message that a consumer has processed."""

from typing import Any, Final

from sqlalchemy import Column, DateTime, Dialect, LargeBinary, MetaData, Table, Text, TypeDecorator
from sqlalchemy.types import TypeEngine

TABLE: Final = "oncegate_inbox"

_BYTEWISE: Final = Text().with_variant(Text(collation="C"), "postgresql")
"""Compared by bytes, whatever the database's collation: no two keys are taken for one."""


class _Digest(TypeDecorator[bytes]):
    """Bytes; on SQLite their hex digits, which older ones can't turn into bytes."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else LargeBinary())

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> Any:
        return value.hex() if value is not None and dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> bytes | None:
        if value is None:
            return None
        return bytes.fromhex(value) if dialect.name == "sqlite" else bytes(value)


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
        Column("fingerprint", _Digest),
        # What the handler returned, as JSON.
        Column("result", Text),
        schema=schema,
    )
