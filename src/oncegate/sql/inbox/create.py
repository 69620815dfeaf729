"""The inbox's tables, and how they are created."""

from sqlalchemy import MetaData, Table

from oncegate.sql.database import creating
from oncegate.sql.marking.table import inbox_table
from oncegate.sql.order.table import order_table, parked_table


def tables(schema: str | None) -> list[Table]:
    """The table of markers, and those of inboxes that keep an order."""
    metadata = MetaData()
    return [make(metadata, schema) for make in (inbox_table, order_table, parked_table)]


def create(database: str, schema: str | None) -> bool:
    """Create the tables that are missing; whether there were any. Raises `NotDone`."""
    return creating.create(database, tables(schema))
