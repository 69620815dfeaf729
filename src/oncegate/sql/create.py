"""Creates the inbox's table, or prints what would."""

import asyncio

from sqlalchemy import URL, Connection, MetaData, create_engine, inspect, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.schema import CreateTable

from oncegate.sql.errors import is_of_database
from oncegate.sql.statements import DIALECTS
from oncegate.sql.table import inbox_table


class NotCreated(Exception):
    """The table can't be created. The text is one line for the operator, without the URL's password; ``usage``: so is the URL."""

    def __init__(self, text: str, *, usage: bool = False) -> None:
        super().__init__(text)
        self.usage = usage


def definition(database: str, schema: str | None) -> str:
    """The statement that creates the table, for a migration of your own. Raises `NotCreated`."""
    dialect = _url(database).get_dialect()()
    lines = str(CreateTable(inbox_table(MetaData(), schema)).compile(dialect=dialect)).strip().splitlines()
    return "\n".join(line.replace("\t", "    ").rstrip() for line in lines) + ";"


def create(database: str, schema: str | None) -> bool:
    """Create the table; whether it was not there. Raises `NotCreated`."""
    url = _url(database)
    table = inbox_table(MetaData(), schema)

    def create_in(connection: Connection) -> bool:
        missing = not inspect(connection).has_table(table.name, schema=schema)
        table.create(connection, checkfirst=True)
        return missing

    async def create_with_asyncio() -> bool:
        engine = create_async_engine(url)
        try:
            async with engine.begin() as connection:
                return await connection.run_sync(create_in)
        finally:
            await engine.dispose()

    try:
        if url.get_dialect().is_async:
            return asyncio.run(create_with_asyncio())
        engine = create_engine(url)
        try:
            with engine.begin() as connection:
                return create_in(connection)
        finally:
            engine.dispose()
    except ModuleNotFoundError as error:
        raise NotCreated(f"the driver {error.name} is not installed: pip install {error.name}", usage=True) from None
    except Exception as error:
        if not is_of_database(error):
            raise
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise NotCreated(f"{url.render_as_string()}: {reason}") from None


def _url(database: str) -> URL:
    try:
        url = make_url(database)
        name = url.get_dialect().name
    except (ArgumentError, NoSuchModuleError):
        raise NotCreated(
            "--database: is no URL of SQLAlchemy's, as postgresql+asyncpg://user@host/name or sqlite:///file.db",
            usage=True,
        ) from None
    if name not in DIALECTS:
        raise NotCreated(f"--database: {name} has no inbox: it is for PostgreSQL and SQLite", usage=True)
    return url
