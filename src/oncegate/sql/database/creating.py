"""Creates tables for operators, or gives the statements that would."""

from collections.abc import Sequence

from sqlalchemy import Connection, Table, inspect
from sqlalchemy.schema import CreateIndex, CreateTable

from oncegate.sql.database.access import database_url, in_database

Tables = Sequence[Table]


def definition(database: str, tables: Tables) -> str:
    """The statements that create ``tables``, for a migration of your own. Raises `NotDone`."""
    dialect = database_url(database).get_dialect()()
    statements: list[CreateTable | CreateIndex] = []
    for table in tables:
        statements += [CreateTable(table), *map(CreateIndex, sorted(table.indexes, key=lambda each: str(each.name)))]
    texts = [str(statement.compile(dialect=dialect)).strip().splitlines() for statement in statements]
    return "\n".join("\n".join(line.replace("\t", "    ").rstrip() for line in lines) + ";" for lines in texts)


def create(database: str, tables: Tables) -> bool:
    """Create those of ``tables`` that are missing; whether there were any. Raises `NotDone`."""

    def create_in(connection: Connection) -> bool:
        missing = [table for table in tables if not inspect(connection).has_table(table.name, schema=table.schema)]
        for table in missing:
            table.create(connection)
        return bool(missing)

    return in_database(database, create_in, makes=True)
