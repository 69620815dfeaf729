"""docs/patterns/queue.md: 300 commands, some of which fail once, and a kill half way: each is executed once (contract R12.68)."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from signal import SIGKILL
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from oncegate import Subscription, SubscriptionSettings
from oncegate.cache.sql.postgresql import statements
from testing import pages
from testing.postgresql import PostgreSQLServer
from testing.template import ROOT, Forked
from testing.waiting import until

PAGE = "queue"
COMMANDS, FAILING, KILLED_AT = 300, 6, 120
PRELOADED = ("asyncio", "oncegate.sql", "sqlalchemy.ext.asyncio", "aiosqlite")

PROGRAM = """
import asyncio, os, signal, sys
from runpy import run_path
from types import SimpleNamespace
from sqlalchemy.ext.asyncio import create_async_engine
from oncegate import Subscription, SubscriptionSettings

page, database, records, killed_at = sys.argv[1:]
queue = SimpleNamespace(**run_path(page))
book, calls = queue.relay.__globals__["book"], []

async def dying(command, session):
    calls.append(command)
    if len(calls) == int(killed_at):
        os.kill(os.getpid(), signal.SIGKILL)
    await book(command, session)

queue.relay.__globals__["book"] = dying
hook = Subscription("bookings", cache=records, settings=SubscriptionSettings(lease=2))
asyncio.run(queue.relay(create_async_engine(database), hook).run())
"""
"""It dies in a handler, with others of its batch under way."""


class Shop:
    """The page's service, and where its data and records live."""

    def __init__(self, folder: Path, database: str, records: str) -> None:
        (block,) = [block for _, block in _blocks() if pages.FILE.match(block)]
        self.page = folder / "bookings.py"
        self.page.write_text(block)
        self.queue = SimpleNamespace(**run_path(str(self.page)))
        self.database, self.records = database, records

    def hook(self) -> Subscription:
        return Subscription("bookings", cache=self.records, settings=SubscriptionSettings(lease=2))

    async def accept_all(self, engine: AsyncEngine) -> None:
        for number in range(COMMANDS):
            await self.queue.accept(engine, f"order-{number}", f"booking-{number}", 30)
        await self.queue.accept(engine, "order-0", "booking-0", 30)  # a retry

    async def count(self, engine: AsyncEngine, query: str) -> int:
        async with engine.connect() as connection:
            return int(await connection.scalar(text(query)) or 0)

    async def is_empty(self, engine: AsyncEngine) -> bool:
        return not await self.count(engine, "SELECT count(*) FROM oncegate_outbox")

    def killed(self) -> None:
        arguments = [str(self.page), self.database, self.records, str(KILLED_AT)]
        process = Forked("-c", PROGRAM, *arguments, preloaded=PRELOADED, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        errors = process.communicate(timeout=120)[1]
        assert process.returncode == -SIGKILL, errors

    async def execute_all(self, engine: AsyncEngine, calls: "dict[str, int]") -> None:
        """Until nothing is left. The last commands fail when they are executed first."""
        names, book = self.queue.relay.__globals__, self.queue.book
        failing = {f"booking-{COMMANDS - number}" for number in range(1, FAILING + 1)}

        async def failing_once(command: dict[str, Any], session: Any) -> None:
            booking = str(command["id"])
            calls[booking] = calls.get(booking, 0) + 1
            await book(command, session)
            if booking in failing and calls[booking] == 1:
                raise RuntimeError("fails once, behind its effect")

        names["book"] = failing_once
        hook = self.hook()
        async with self.queue.relay(engine, hook).running():
            await until(lambda: self.is_empty(engine), "every command done", within=120)
        await hook.drain()
        await hook.cache.close()
        assert {calls[booking] for booking in failing} == {2}


def _blocks() -> list[tuple[str, str]]:
    return pages.BLOCK.findall((ROOT / "docs" / "patterns" / f"{PAGE}.md").read_text("utf-8"))


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    if request.param == "sqlite":
        yield Shop(tmp_path, f"sqlite+aiosqlite:///{tmp_path}/shop.db", f"sqlite:///{tmp_path}/records.db")
        return
    with PostgreSQLServer() as server:
        name = server.database()
        server.execute(statements.TABLES, name)
        address = f"postgres@127.0.0.1:{server.port}/{name}"
        yield Shop(tmp_path, f"postgresql+asyncpg://{address}", f"postgresql://{address}")


async def test_each_command_of_the_queue_is_executed_once_and_none_is_left(shop: Shop) -> None:
    engine = create_async_engine(shop.database)
    await shop.queue.prepare(engine)
    await shop.accept_all(engine)
    await asyncio.to_thread(shop.killed)
    begun = await shop.count(engine, "SELECT count(*) FROM booking")
    assert 0 < begun < COMMANDS
    calls: dict[str, int] = {}
    await shop.execute_all(engine, calls)
    bookings = "SELECT count(*) FROM booking", "SELECT count(DISTINCT id) FROM booking"
    assert [await shop.count(engine, query) for query in bookings] == [COMMANDS, COMMANDS]
    await engine.dispose()


async def test_a_command_that_is_dead_stays_with_its_reason(tmp_path: Path) -> None:
    shop = Shop(tmp_path, f"sqlite+aiosqlite:///{tmp_path}/shop.db", f"sqlite:///{tmp_path}/records.db")
    engine = create_async_engine(shop.database)
    await shop.queue.prepare(engine)
    await shop.queue.accept(engine, "order-1", "booking-1", 0)
    hook = shop.hook()
    held = "SELECT count(*) FROM oncegate_outbox WHERE refusal LIKE 'NotDone: dead-letter%'"
    async with shop.queue.relay(engine, hook).running():
        await until(lambda: shop.count(engine, held), "the command is held")
    assert await shop.count(engine, "SELECT count(*) FROM booking") == 0
    await hook.cache.close()
    await engine.dispose()
