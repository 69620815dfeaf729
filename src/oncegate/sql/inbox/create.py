"""Creates the inbox's tables, or prints what would."""

from sqlalchemy import Connection, MetaData, Table, inspect
from sqlalchemy.schema import CreateIndex, CreateTable

from oncegate.sql.database.access import database_url, in_database
from oncegate.sql.marking.table import inbox_table
from oncegate.sql.order.table import order_table, parked_table


def tables(schema: str | None) -> list[Table]:
    """That of markers, and those of inboxes that keep an order."""
    metadata = MetaData()
    return [make(metadata, schema) for make in (inbox_table, order_table, parked_table)]


def definition(database: str, schema: str | None) -> str:
    """The statements that create the tables, for a migration of your own. Raises `NotDone`."""
    dialect = database_url(database).get_dialect()()
    statements: list[CreateTable | CreateIndex] = []
    for table in tables(schema):
        statements += [CreateTable(table), *map(CreateIndex, table.indexes)]
    texts = [str(statement.compile(dialect=dialect)).strip().splitlines() for statement in statements]
    return "\n".join("\n".join(line.replace("\t", "    ").rstrip() for line in lines) + ";" for lines in texts)


def create(database: str, schema: str | None) -> bool:
    """Create the tables that are missing; whether there were any. Raises `NotDone`."""

    def create_in(connection: Connection) -> bool:
        missing = [table for table in tables(schema) if not inspect(connection).has_table(table.name, schema=schema)]
        for table in missing:
            table.create(connection, checkfirst=True)
        return bool(missing)

    return in_database(database, create_in, makes=True)
