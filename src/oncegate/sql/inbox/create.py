"""Creates the inbox's table, or prints what would."""

from sqlalchemy import Connection, MetaData, inspect
from sqlalchemy.schema import CreateIndex, CreateTable

from oncegate.sql.database.access import database_url, in_database
from oncegate.sql.inbox.table import inbox_table


def definition(database: str, schema: str | None) -> str:
    """The statements that create the table, for a migration of your own. Raises `NotDone`."""
    dialect = database_url(database).get_dialect()()
    table = inbox_table(MetaData(), schema)
    statements: list[CreateTable | CreateIndex] = [CreateTable(table), *map(CreateIndex, table.indexes)]
    texts = [str(statement.compile(dialect=dialect)).strip().splitlines() for statement in statements]
    return "\n".join("\n".join(line.replace("\t", "    ").rstrip() for line in lines) + ";" for lines in texts)


def create(database: str, schema: str | None) -> bool:
    """Create the table; whether it was not there. Raises `NotDone`."""
    table = inbox_table(MetaData(), schema)

    def create_in(connection: Connection) -> bool:
        missing = not inspect(connection).has_table(table.name, schema=schema)
        table.create(connection, checkfirst=True)
        return missing

    return in_database(database, create_in, makes=True)
