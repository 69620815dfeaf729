"""`scripts/bench order`: what it costs a handler that its messages are applied in their order, against the plain inbox.

Measured as `loadtests.handlers` says.
"""

import asyncio
import itertools
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from loadtests import builds, handlers
from loadtests.handlers import AT_ONCE, Handle, Rate, Ratios
from loadtests.processes import BenchError
from loadtests.report import Results, Table, progress
from oncegate.middleware.consumers.delivery import Delivery
from oncegate.middleware.consumers.subscription import Subscription
from oncegate.sql import Inbox
from oncegate.sql.inbox.create import tables as inbox_tables
from testing.postgresql import PostgreSQLServer

ACCOUNTS: Final = 1000
_UPDATE: Final = text("UPDATE account SET balance = balance + 1 WHERE id = :id")

HANDLERS: Final = {
    "one": "one UPDATE",
    "inbox": "one UPDATE, with the inbox",
    "contiguous": 'one UPDATE, order="contiguous"',
    "latest": 'one UPDATE, order="latest"',
    "hook, inbox": "one UPDATE, under the hook, with the inbox",
    "hook, contiguous": 'one UPDATE, under the hook, order="contiguous"',
}
RATIOS: Final[Ratios] = (
    ("contiguous guard / plain inbox, one UPDATE", "contiguous", "inbox", 0.9),
    ("latest guard / plain inbox, one UPDATE", "latest", "inbox", 0.9),
    ("contiguous guard / plain inbox, under the hook", "hook, contiguous", "hook, inbox", None),
    ("contiguous guard / without, one UPDATE", "contiguous", "one", None),
)


def run(*, rounds: int, seconds: int, quick: bool) -> Results:
    """Measure it all. ``seconds`` are those of each handler in a round. Raises `BenchError` where an effect is missing."""
    if quick:
        rounds, seconds = 1, 1
    settings = {
        "builds": [builds.SOURCE], "quick": quick, "rounds": rounds, "seconds": seconds, "at_once": AT_ONCE,
        "accounts": ACCOUNTS,
    }  # fmt: skip
    results = Results("order", settings)
    with progress() as bar, PostgreSQLServer() as server, handlers.apart(server):
        task = bar.add_task("order", total=rounds)
        results.versions = handlers.versions(server)
        for number in range(rounds):
            results.samples += handlers.samples(asyncio.run(_round(server, seconds)), number)
            bar.advance(task)
    return results


async def _round(server: PostgreSQLServer, seconds: int) -> dict[str, Rate]:
    """What the handlers did in a database of their own."""
    database = server.database()
    handlers.make_accounts(server, database, ACCOUNTS)
    engine = create_async_engine(server.url(database, "asyncpg"), pool_size=AT_ONCE, max_overflow=0)
    try:
        async with engine.begin() as connection:
            for table in inbox_tables(None):
                await connection.run_sync(table.create)
        known = _handlers(async_sessionmaker(engine))
        rates = await handlers.in_turns(known, {name: itertools.count() for name in known}, seconds)
        async with engine.connect() as connection:
            effects = await connection.scalar(text("SELECT sum(balance) FROM account"))
    finally:
        await engine.dispose()
    done = sum(rate.handled for rate in rates.values())
    if effects < done:
        raise BenchError(f"order: {effects} effects of {done}")
    return rates


def _handlers(sessions: async_sessionmaker[AsyncSession]) -> dict[str, Handle]:
    """Each does in a transaction of its own what `HANDLERS` says of it; the n-th message is about one of the accounts in turn."""

    async def without(number: int) -> None:
        async with sessions.begin() as session:
            await session.execute(_UPDATE, {"id": number % ACCOUNTS})

    def marked(inbox: Inbox) -> Handle:
        async def handle(number: int) -> None:
            account, sequence = number % ACCOUNTS, number // ACCOUNTS + 1
            key, payload = f"order-{number}", b"%d" % number
            async with sessions.begin() as session:
                if await inbox.first(session, key, payload=payload, aggregate=account, sequence=sequence):
                    await session.execute(_UPDATE, {"id": account})

        return handle

    def hooked(name: str, inbox: Inbox) -> Handle:
        subscription = Subscription(name, cache="memory://")

        @inbox.transaction(sessions)
        async def pay(number: int, session: AsyncSession) -> None:
            await session.execute(_UPDATE, {"id": number % ACCOUNTS})

        async def handle(number: int) -> None:
            aggregate, sequence = str(number % ACCOUNTS), number // ACCOUNTS + 1
            delivery = Delivery(f"order-{number}", b"%d" % number, aggregate=aggregate, sequence=sequence)
            await subscription.execute(delivery, pay, number)

        return handle

    return {
        "one": without,
        "inbox": marked(Inbox("plain")),
        "contiguous": marked(Inbox("contiguous", order="contiguous")),
        "latest": marked(Inbox("latest", order="latest")),
        "hook, inbox": hooked("hooked", Inbox("hooked")),
        "hook, contiguous": hooked("hooked-in-order", Inbox("hooked-in-order", order="contiguous")),
    }


# -- what the samples say ---------------------------------------------------------------------------------------------


def tables(results: Results) -> list[Table]:
    """The ratios, and what they are of."""
    circumstances = f", about {results.settings['accounts']} accounts in turn; PostgreSQL without fsync."
    return [
        Table("What an order costs", ["what", "aim", "measured", "reached"], handlers.ratio_rows(results, RATIOS)),
        handlers.rates_table(results, "Handlers in order", HANDLERS, circumstances),
    ]


def plot(results: Results, axes: Any) -> None:
    """Transactions per second, by handler."""
    title = "Handlers with an order and without"
    handlers.draw(results, axes, HANDLERS, ("contiguous", "latest"), title)
