"""`scripts/bench order`: what it costs a handler that its messages are applied in their order, against the plain inbox.

As `loadtests.inbox`: handlers of SQLAlchemy's asyncio on asyncpg, four at once, in one process on a core of its own, PostgreSQL
on the other, each kind for a quarter of a second in turn.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from loadtests import builds, machine
from loadtests.processes import BenchError
from loadtests.report import Results, Table, measured, paired, progress, spread
from oncegate.middleware.consumers.delivery import Delivery
from oncegate.middleware.consumers.subscription import Subscription
from oncegate.sql import Inbox
from oncegate.sql.inbox.create import tables as inbox_tables
from testing.postgresql import PostgreSQLServer

AT_ONCE: Final = 4
TURN_SECONDS: Final = 0.25
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
RATIOS: Final[tuple[tuple[str, str, str, float | None], ...]] = (
    ("contiguous guard / plain inbox, one UPDATE", "contiguous", "inbox", 0.9),
    ("latest guard / plain inbox, one UPDATE", "latest", "inbox", 0.9),
    ("contiguous guard / plain inbox, under the hook", "hook, contiguous", "hook, inbox", None),
    ("contiguous guard / without, one UPDATE", "contiguous", "one", None),
)
"""What is held against what, by rate, and what it should be at least, where that was promised."""

Handle = Callable[[int], Awaitable[object]]


def run(*, rounds: int, seconds: int, quick: bool) -> Results:
    """Measure it all. ``seconds`` are those of each handler in a round. Raises `BenchError` where an effect is missing."""
    if quick:
        rounds, seconds = 1, 1
    settings = {
        "builds": [builds.SOURCE], "quick": quick, "rounds": rounds, "seconds": seconds, "at_once": AT_ONCE,
        "accounts": ACCOUNTS,
    }  # fmt: skip
    results = Results("order", settings)
    ours, theirs = machine.cores()
    with progress() as bar, PostgreSQLServer() as server:
        task = bar.add_task("order", total=rounds)
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(
            server.pid, {theirs}
        )  # what serves a connection is a child of the server, and has its core
        os.sched_setaffinity(0, {ours})
        try:
            (found,) = server.execute("SHOW server_version")
            results.versions = {name: version(name) for name in ("sqlalchemy", "asyncpg")} | {
                "postgresql": found[0].split()[0]
            }
            for number in range(rounds):
                rates = asyncio.run(_round(server, seconds))
                results.samples += [
                    {"handler": name, "round": number, "per_s": rate, "cpu_us": cpu}
                    for name, (rate, cpu) in rates.items()
                ]
                bar.advance(task)
        finally:
            os.sched_setaffinity(0, before)
    return results


async def _round(server: PostgreSQLServer, seconds: int) -> dict[str, tuple[float, float]]:
    """By handler: transactions per second, and the CPU (us) of one in this process. In a database of its own."""
    database = server.database()
    server.execute(
        "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL) WITH (fillfactor = 50)", database
    )
    server.execute(f"INSERT INTO account SELECT id, 0 FROM generate_series(0, {ACCOUNTS - 1}) AS id", database)
    engine = create_async_engine(server.url(database, "asyncpg"), pool_size=AT_ONCE, max_overflow=0)
    try:
        async with engine.begin() as connection:
            for table in inbox_tables(None):
                await connection.run_sync(table.create)
        handlers = _handlers(async_sessionmaker(engine))
        numbers = {name: itertools.count() for name in handlers}
        done, taken, used = (dict.fromkeys(handlers, 0.0) for _ in range(3))
        for number in range(round(seconds / TURN_SECONDS) + 1):
            for name, handle in handlers.items():
                count, wall, cpu = await _turn(handle, numbers[name])
                if number:  # statements are compiled and prepared in the first turn
                    done[name] += count
                    taken[name] += wall
                    used[name] += cpu
        async with engine.connect() as connection:
            effects = await connection.scalar(text("SELECT sum(balance) FROM account"))
        if effects < sum(done.values()):
            raise BenchError(f"order: {effects} effects of {sum(done.values()):.0f}")
    finally:
        await engine.dispose()
    return {name: (done[name] / taken[name], used[name] / done[name] * 1e6) for name in handlers}


async def _turn(handle: Handle, numbers: "itertools.count[int]") -> tuple[int, float, float]:
    """How many were handled, in how many seconds, with how many of CPU."""
    began, cpu = time.perf_counter(), time.process_time()

    async def one_after_the_other() -> int:
        count = 0
        while time.perf_counter() < began + TURN_SECONDS:
            await handle(next(numbers))
            count += 1
        return count

    counts = await asyncio.gather(*[one_after_the_other() for _ in range(AT_ONCE)])
    return sum(counts), time.perf_counter() - began, time.process_time() - cpu


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
    rows = []
    for what, ours, theirs, least in RATIOS:
        ratio = paired(results.select(handler=ours), results.select(handler=theirs), "per_s")
        reached = "-" if least is None else "yes" if ratio.median >= least else "**no**"
        rows.append([f"{what}, by rate", "-" if least is None else f">= {least:g}", ratio.text(2), reached])
    rates = [
        [words, spread(cell, "per_s").text(), spread(cell, "cpu_us").text()]
        for name, words in HANDLERS.items()
        if (cell := results.select(handler=name))
    ]
    versions = ", ".join(f"{name} {number}" for name, number in results.versions.items())
    note = (
        f"{versions}. {results.settings['at_once']} at once, each in a transaction of its own, about"
        f" {results.settings['accounts']} accounts in turn; PostgreSQL without fsync. Median (least-most) over the rounds."
        f" {measured(results)}"
    )
    return [
        Table("What an order costs", ["what", "aim", "measured", "reached"], rows),
        Table("Handlers in order", ["handler", "transactions/s", "its own CPU, us"], rates, note),
    ]


def plot(results: Results, axes: Any) -> None:
    """Transactions per second, by handler."""
    names = [name for name in HANDLERS if results.select(handler=name)][::-1]
    rates = [spread(results.select(handler=name), "per_s") for name in names]
    bars = [(each.median - each.least, each.most - each.median) for each in rates]
    axes.barh(
        [HANDLERS[name] for name in names],
        [each.median for each in rates],
        xerr=list(zip(*bars, strict=True)),
        color=["C0" if "contiguous" in name or "latest" in name else "C7" for name in names],
        capsize=3,
    )
    axes.set_xlabel("transactions per second (more is better)")
    axes.set_title(f"Handlers with an order and without, PostgreSQL, {results.settings['at_once']} at once")
