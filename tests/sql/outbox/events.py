"""A table of events that a relay publishes, as a user's module makes a source of it."""

from typing import Any

from sqlalchemy import BigInteger, Column, MetaData, Row, Table, Text

from oncegate.sql import OutboxMessage, TableSource

_TYPES = {"id": BigInteger, "tx": Text, "account": Text, "version": BigInteger}
EVENTS = Table("events", MetaData(), *[Column(name, kind) for name, kind in _TYPES.items()])
MADE = """CREATE TABLE IF NOT EXISTS events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tx xid8 NOT NULL DEFAULT pg_current_xact_id(),
    account text, version bigint)"""
ON_SQLITE = "CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, tx text, account text, version bigint)"


def message(row: Row[Any]) -> OutboxMessage:
    return OutboxMessage(None, "events", f"event-{row.id}", b"")


def source(engine: Any, **options: Any) -> TableSource:
    columns = {"position": "id", "transaction": "tx", "aggregate": "account", "sequence": "version"}
    return TableSource(engine, EVENTS, message, name="events", **{**columns, "page": 2, **options})
