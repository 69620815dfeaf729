"""Does an operator's work in the database that a URL names, whichever driver that names; what fails is one line."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import URL, Connection, create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine

from oncegate.sql.statements import DIALECTS

Result = TypeVar("Result")


class DatabaseFailed(Exception):
    """It can't be done. The text is one line for the operator, without the URL's password; ``usage``: it was not meant so."""

    def __init__(self, text: str, *, usage: bool = False) -> None:
        super().__init__(text)
        self.usage = usage


def database_url(database: str) -> URL:
    """The URL of a database that can have an inbox. Raises `DatabaseFailed`."""
    try:
        url = make_url(database)
        name = url.get_dialect().name
    except (ArgumentError, NoSuchModuleError):
        raise DatabaseFailed(
            "--database: is no URL of SQLAlchemy's, as postgresql+asyncpg://user@host/name or sqlite:///file.db",
            usage=True,
        ) from None
    if name not in DIALECTS:
        raise DatabaseFailed(f"--database: {name} has no inbox: it is for PostgreSQL and SQLite", usage=True)
    return url


def in_database(database: str, work: Callable[[Connection], Result], *, makes: bool = False) -> Result:
    """The result of ``work`` in a transaction. Raises `DatabaseFailed`; without ``makes``, also for a file that isn't there."""
    url = database_url(database)
    if not makes and url.get_dialect().name == "sqlite" and not _is_there(url):
        raise DatabaseFailed(f"{url.render_as_string()}: there is no such file")

    async def with_asyncio() -> Result:
        engine = create_async_engine(url)
        try:
            async with engine.begin() as connection:
                return await connection.run_sync(work)
        finally:
            await engine.dispose()

    try:
        if url.get_dialect().is_async:
            return asyncio.run(with_asyncio())
        engine = create_engine(url)
        try:
            with engine.begin() as connection:
                return work(connection)
        finally:
            engine.dispose()
    except ModuleNotFoundError as error:
        raise DatabaseFailed(
            f"the driver {error.name} is not installed: pip install {error.name}", usage=True
        ) from None
    except (SQLAlchemyError, OSError) as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise DatabaseFailed(f"{url.render_as_string()}: {reason}") from None


def _is_there(url: URL) -> bool:
    """SQLite would make the file."""
    name = url.database or ""
    return name.startswith("file:") or name in ("", ":memory:") or Path(name).exists()
