"""The databases that are known, tables' names, and the types of columns: what is compared is compared by its bytes."""

from binascii import a2b_base64, b2a_base64
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from sqlalchemy import Dialect, LargeBinary, Table, Text, TypeDecorator
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

Stored = TypeVar("Stored")

DIALECTS: Final = ("postgresql", "sqlite")

BYTEWISE: Final = Text().with_variant(Text(collation="C"), "postgresql")
"""Compared by bytes, whatever the database's collation: no two keys are taken for one."""


def utc(moment: datetime) -> datetime:
    """``moment`` in UTC. SQLite's have no zone, and are UTC already."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


_HALF: Final = 20
"""Characters of a record's id before its colon, and behind it."""
_ID_TO_BASE64: Final = str.maketrans("._", "+/", ":")
_BASE64_TO_ID: Final = bytes.maketrans(b"+/", b"._")


class _Bytes(TypeDecorator[Stored]):
    """Bytes on PostgreSQL, text on SQLite."""

    impl = LargeBinary

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The type of the column in this dialect."""
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else LargeBinary())


class RecordId(_Bytes[str]):
    """A record's id, ``k:s``. PostgreSQL has its 30 bytes: ``decode(translate(id, '._:', '+/'), 'base64')``."""

    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        """The id as it is stored."""
        return value if value is None or dialect.name == "sqlite" else a2b_base64(value.translate(_ID_TO_BASE64))

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """The id as `process_bind_param` was given it; no bytes at all are ``""``."""
        if not value or dialect.name == "sqlite":
            return None if value is None else str(value or "")
        spelled = b2a_base64(value, newline=False).translate(_BASE64_TO_ID).decode("ascii")
        return f"{spelled[:_HALF]}:{spelled[_HALF:]}"


class Digest(_Bytes[bytes]):
    """Bytes; on SQLite their hex digits, which older ones can't turn into bytes."""

    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> Any:
        """The digest as it is stored."""
        return value.hex() if value is not None and dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> bytes | None:
        """The digest as `process_bind_param` was given it."""
        if value is None:
            return None
        return bytes.fromhex(value) if dialect.name == "sqlite" else bytes(value)


def quoted(table: Table, dialect: str) -> str:
    """A table's name, with its schema, as a ``text()`` of SQLAlchemy's has it: that doubles each per cent sign by itself."""
    return spelled(table, dialect).replace(":", "\\:")


def spelled(table: Table, dialect: str, name: str | None = None) -> str:
    """A table's name, or that of its index ``name``, with the schema, as SQL spells it: to be a parameter."""
    return str(dialect_of(dialect).identifier_preparer.format_table(table, name=name))


def dialect_of(name: str) -> Any:
    """The dialect of one of `DIALECTS`, without a driver, whose names have no per cent sign doubled."""
    return (postgresql if name == "postgresql" else sqlite).dialect(paramstyle="named")


def insert_into(table: Table, dialect: str) -> Any:
    """An INSERT that may have an ON CONFLICT, in one of `DIALECTS`."""
    return (postgresql if dialect == "postgresql" else sqlite).insert(table)
