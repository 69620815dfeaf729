"""The operators' way into a database: by a URL of SQLAlchemy's, with any driver, and with errors of one line."""

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import URL, Connection, Engine, Table, create_engine, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from oncegate.middleware.consumers.sql_interface import reduced
from oncegate.sql.database.errors import is_crossed, is_of_database, reason_of
from oncegate.sql.database.terms import milliseconds
from oncegate.sql.database.types import DIALECTS

Result = TypeVar("Result")

CONNECT_SECONDS: Final = 15
"""The time for a server to let an operator in, where the URL says none: drivers wait minutes for one that is silent."""
MOST_ATTEMPTS: Final = 5
"""Transactions that an operator's step gets: PostgreSQL takes a second (``deadlock_timeout``) to find that one can't end."""
_CONNECT_TIMEOUTS: Final = {"psycopg": "connect_timeout", "psycopg2": "connect_timeout", "asyncpg": "timeout"}
"""The names that drivers have for it."""


class NotDone(Exception):
    """The database refuses, or can't be reached. The text is one line for the operator, without the URL's password.

    ``usage``: the command was used wrongly.
    """

    def __init__(self, text: str, *, usage: bool = False) -> None:
        super().__init__(text)
        self.usage = usage

    def __reduce__(self) -> tuple[Any, ...]:
        """See `reduced`."""
        return reduced(self)


class NotInDatabase(NotDone):
    """There is no such table, or nothing of that name in it."""


class DatabaseFailed(NotDone):
    """The database can't be reached, or refuses: ``reason``, without its URL."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.reason = reason


class DatabaseSilent(DatabaseFailed):
    """It has not answered in time: a change may have been made."""


@dataclass(frozen=True, slots=True)
class BoundedDatabase:
    """A database by its ``url``, whose steps end after so many ``seconds``, connecting included. `DatabaseSilent` then."""

    url: str
    seconds: float


Database = str | BoundedDatabase
"""A database by its URL, for as long as it takes, or for no longer than given."""


def database_url(database: str) -> URL:
    """``database`` as the URL of one that may have an inbox. Raises `NotDone`."""
    try:
        url = make_url(database)
        name = url.get_dialect().name
    except (ArgumentError, NoSuchModuleError):
        raise NotDone(
            "--database: is no URL of SQLAlchemy's, as postgresql+asyncpg://user@host/name or sqlite:///file.db",
            usage=True,
        ) from None
    if name not in DIALECTS:
        raise NotDone(f"--database: {name} has no inbox: it is for PostgreSQL and SQLite", usage=True)
    return url


@asynccontextmanager
async def connected(database: str, *, makes: bool = False) -> AsyncIterator[AsyncEngine | Engine]:
    """An engine for ``database``. Raises `NotDone`, also for what SQLAlchemy and the driver raise while it is entered.

    With ``makes``, SQLite may make a file that isn't there; else that is `NotDone`, too.
    """
    url = database_url(database)
    if not makes and url.get_dialect().name == "sqlite" and not _is_there(url):
        raise DatabaseFailed(url.render_as_string(), "there is no such file")
    engine: AsyncEngine | Engine | None = None
    try:
        name = _CONNECT_TIMEOUTS.get(url.get_dialect().driver)
        bound = {name: CONNECT_SECONDS} if name is not None and name not in url.query else {}
        make = create_async_engine if url.get_dialect().is_async else create_engine
        engine = make(url, connect_args=bound)
        yield engine
    except ModuleNotFoundError as error:
        raise NotDone(f"the driver {error.name} is not installed: pip install {error.name}", usage=True) from None
    except Exception as error:
        if not is_of_database(error):
            raise
        raise DatabaseFailed(url.render_as_string(), reason_of(error)) from None
    finally:
        if isinstance(engine, AsyncEngine):
            await engine.dispose()
        elif engine is not None:
            engine.dispose()


async def in_transaction(engine: AsyncEngine | Engine, step: Callable[[Connection], Result]) -> Result:
    """The result of ``step`` in a transaction of its own."""
    if isinstance(engine, AsyncEngine):
        async with engine.begin() as connection:
            return await connection.run_sync(step)

    def run() -> Result:
        with engine.begin() as connection:
            return step(connection)

    return await asyncio.to_thread(run)


def in_database(database: Database, step: Callable[[Connection], Result], *, makes: bool = False) -> Result:
    """The result of ``step`` in a transaction of its own. Raises `NotDone`, as `connected` does.

    Consumers lock the same rows in orders of their own. Where a deadlock or a failed serialization undoes the transaction,
    ``step`` is called again in another one, `MOST_ATTEMPTS` times in all. It is waited for, also where an event loop runs, which
    stands still for as long.
    """

    work = _in_time(database, step) if isinstance(database, BoundedDatabase) else _run(database, step, makes=makes)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:  # one loop per thread
        return pool.submit(asyncio.run, work).result()


async def _run(database: str, step: Callable[[Connection], Result], *, makes: bool = False) -> Result:
    async with connected(database, makes=makes) as engine:
        for _ in range(MOST_ATTEMPTS - 1):
            try:
                return await in_transaction(engine, step)
            except Exception as error:
                if not is_crossed(error):
                    raise
        return await in_transaction(engine, step)


async def _in_time(database: BoundedDatabase, step: Callable[[Connection], Result]) -> Result:
    def bounded(connection: Connection) -> Result:
        if connection.dialect.name == "postgresql":  # which goes on with a statement that nobody waits for
            connection.execute(text(f"SET LOCAL statement_timeout = {milliseconds(database.seconds)}"))
        return step(connection)

    try:
        async with asyncio.timeout(database.seconds):
            return await _run(database.url, bounded)
    except TimeoutError:
        where = database_url(database.url).render_as_string()
        raise DatabaseSilent(where, f"no answer within {database.seconds:g} s") from None


def check_there(connection: Connection, *tables: Table, group: str = "inbox") -> None:
    """Raises `NotInDatabase`, with the command of ``group`` that makes it, where one of them is missing."""
    for table in tables:
        if not inspect(connection).has_table(table.name, schema=table.schema):
            raise NotInDatabase(f"there is no table {table.fullname}: {create_command(table, group)}")


def create_command(table: Table, group: str) -> str:
    """The command of ``group``, inbox or outbox, that creates ``table``."""
    return command_line(f"{group} create", table.schema)


def command_line(words: str, schema: str | None) -> str:
    """A command about a database, for a line to operators: who prints it knows the URL."""
    return f"oncegate {words} --database URL" + (f" --schema {shlex.quote(schema)}" if schema else "")


def _is_there(url: URL) -> bool:
    """Whether SQLite would not have to make the file."""
    name = url.database or ""
    return name.startswith("file:") or name in ("", ":memory:") or Path(name).exists()
