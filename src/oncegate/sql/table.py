"""The table of markers: one row for each message that a consumer has processed."""

from binascii import a2b_base64, b2a_base64
from typing import Any, Final

from sqlalchemy import Column, DateTime, Dialect, Index, LargeBinary, MetaData, Table, Text, TypeDecorator
from sqlalchemy.types import TypeEngine

TABLE: Final = "oncegate_inbox"

_BYTEWISE: Final = Text().with_variant(Text(collation="C"), "postgresql")
"""Compared by bytes, whatever the database's collation: no two keys are taken for one."""


NO_MESSAGE: Final = ""
"""In the place of a message: the row's instant is the one up to which markers may have been deleted."""
ALL_CONSUMERS: Final = ""
"""In the place of a consumer, in such a row."""

_HALF: Final = 20
"""Characters of a record's id before its colon, and behind it."""
_ID_TO_BASE64: Final = str.maketrans("._", "+/", ":")
_BASE64_TO_ID: Final = bytes.maketrans(b"+/", b"._")


class RecordId(TypeDecorator[str]):
    """A record's id, ``k:s``. PostgreSQL has its 30 bytes: ``decode(translate(id, '._:', '+/'), 'base64')``."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The type of the column in this dialect."""
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else LargeBinary())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        """As it is stored."""
        return value if value is None or dialect.name == "sqlite" else a2b_base64(value.translate(_ID_TO_BASE64))

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """As it was before that."""
        if not value or dialect.name == "sqlite":
            return None if value is None else str(value or NO_MESSAGE)
        spelled = b2a_base64(value, newline=False).translate(_BASE64_TO_ID).decode("ascii")
        return f"{spelled[:_HALF]}:{spelled[_HALF:]}"


class _Digest(TypeDecorator[bytes]):
    """Bytes; on SQLite their hex digits, which older ones can't turn into bytes."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The type of the column in this dialect."""
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else LargeBinary())

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> Any:
        """As it is stored."""
        return value.hex() if value is not None and dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> bytes | None:
        """As it was before that."""
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
        Column("message", RecordId, primary_key=True),
        # A digest of the payload, where there was one to compare by.
        Column("fingerprint", _Digest),
        # What the handler returned, as JSON.
        Column("result", Text),
        # Finds what is too old. Rows lie in the order of their times: on PostgreSQL a few bytes for each thousand of them.
        Index(f"{TABLE}_received_at", "received_at", postgresql_using="brin"),
        schema=schema,
    )
