"""A cleaner that is killed right before its n-th DELETE.

python -m tests.sql.inbox.cleaners URL N
"""

import asyncio
import os
import signal
import sys

from sqlalchemy import MetaData, create_engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from oncegate.sql.inbox.cleanup import Retention, forget
from oncegate.sql.marking.table import inbox_table


def main(url: str, number: str) -> None:
    of_asyncio = "asyncpg" in url or "aiosqlite" in url
    engine = create_async_engine(url) if of_asyncio else create_engine(url)
    left = int(number)

    @event.listens_for(engine.sync_engine if isinstance(engine, AsyncEngine) else engine, "before_cursor_execute")
    def on_statement(_c: object, _u: object, statement: str, *_: object) -> None:
        nonlocal left
        left -= statement.startswith("DELETE")
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(forget(engine, inbox_table(MetaData()), Retention(batch_size=10), lead=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
