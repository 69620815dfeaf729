"""`scripts/bench inbox`: what a marker costs the handler that it is written for, in time and in bytes of PostgreSQL.

Handlers are measured as `loadtests.handlers` says. A round takes less than half a minute; markers that are only there to be
deleted are made by PostgreSQL itself.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from hashlib import md5
from statistics import median
from typing import Any, Final

from sqlalchemy import Connection, MetaData, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from loadtests import builds, handlers
from loadtests.handlers import AT_ONCE, Handle, Rate, Ratios, yes
from loadtests.load import QUICK_SECONDS
from loadtests.processes import BenchError
from loadtests.report import Results, Spread, Table, progress, spread
from oncegate.middleware.consumers.delivery import Delivery
from oncegate.middleware.consumers.subscription import Subscription
from oncegate.middleware.rules.keys.key import record_id, record_key
from oncegate.sql import Inbox
from oncegate.sql.inbox.cleanup import Retention, forget
from oncegate.sql.marking.statements import Message
from testing.postgresql import PostgreSQLServer

ACCOUNTS: Final = 10_000
DUPLICATES: Final = 1000
"""Messages that were processed before anything is measured, for the deliveries that come second."""
MARKERS: Final = 100_000
"""Whose bytes are measured. Pages of an index fill and split in waves, so that few markers say little."""
BATCH: Final = 1000
"""Markers that are written by one statement, where no handler is measured."""
CLEANUPS: Final = 2
"""Of each kind, in a round: some hundred deliveries come beside one of them."""
_FILL: Final = """\
INSERT INTO oncegate_inbox (received_at, consumer, message, fingerprint)
SELECT clock_timestamp(), 'billing', substring(digest FOR 30), substring(digest FOR 16)
FROM generate_series(1, {markers}) AS number, sha256(CAST(CAST(number AS text) AS bytea)) AS digest
"""
_UPDATE: Final = text("UPDATE account SET balance = balance + 1 WHERE id = :id")
_FIND: Final = text("SELECT 1 FROM looked_for WHERE consumer = 'billing' AND message = :message")
_NOTE: Final = text("INSERT INTO looked_for (received_at, consumer, message) VALUES (now(), 'billing', :message)")
_BY_HAND: Final = text(
    "INSERT INTO by_hand (received_at, consumer, message) VALUES (now(), 'billing', :message)"
    " ON CONFLICT DO NOTHING RETURNING true"
)
"""The least that a marker takes with SQLAlchemy: no limits, no digests, nothing for what was forgotten, no kept result."""

HANDLERS: Final = {
    "one": "one UPDATE",
    "one, inbox": "one UPDATE, with the inbox",
    "one, by hand": "one UPDATE, with a bare marker by hand",
    "one, looks": "one UPDATE, looks first and marks last",
    "one, duplicate": "one UPDATE, with the inbox, delivered again",
    "by hand, duplicate": "one UPDATE, with a bare marker by hand, delivered again",
    "three": "three UPDATEs",
    "three, inbox": "three UPDATEs, with the inbox",
    "hook": "one UPDATE, under the hook",
    "hook, inbox": "one UPDATE, under the hook, with the inbox",
}
RATIOS: Final[Ratios] = (
    ("with the inbox / without, one UPDATE", "one, inbox", "one", 0.75),
    ("with the inbox / without, three UPDATEs", "three, inbox", "three", 0.83),
    ("with the inbox / looks first and marks last", "one, inbox", "one, looks", 1.15),
    ("a duplicate / a first delivery", "one, duplicate", "one, inbox", 1.4),
    ("with a bare marker by hand / without, one UPDATE", "one, by hand", "one", None),
    ("with the inbox / with a bare marker by hand", "one, inbox", "one, by hand", 0.9),
    ("a duplicate / a first delivery, by hand", "by hand, duplicate", "one, by hand", None),
    ("with the inbox / without, under the hook", "hook, inbox", "hook", None),
)
MOST_BYTES: Final = 180
LEAST_PRUNED: Final = 50_000
MOST_LATE: Final = 2.0


def run(*, rounds: int, seconds: float, quick: bool) -> Results:
    """Measure it all. ``seconds`` are those of each handler in a round. Raises `BenchError` where an effect is missing."""
    markers = MARKERS
    if quick:
        rounds, seconds, markers = 1, QUICK_SECONDS, 2000
    settings = {
        "builds": [builds.SOURCE], "quick": quick, "rounds": rounds, "seconds": seconds, "at_once": AT_ONCE,
        "markers": markers,
    }  # fmt: skip
    results = Results("inbox", settings)
    with progress() as bar, PostgreSQLServer() as server, handlers.apart(server):
        task = bar.add_task("bytes per marker", total=rounds + 1)
        results.checks["bytes_per_marker"] = bytes_per_marker(server, markers)
        results.versions = handlers.versions(server)
        for number in range(rounds):
            bar.update(task, advance=1, description=f"handlers, round {number + 1}")
            results.samples += handlers.samples(asyncio.run(_round(server, seconds)), number)
            pruned = asyncio.run(prune(server, markers))
            results.samples.append({"handler": "cleanup", "round": number, **pruned})
    return results


# -- the handlers -----------------------------------------------------------------------------------------------------


async def _round(server: PostgreSQLServer, seconds: float) -> dict[str, Rate]:
    """What the handlers did in a database of their own."""
    inbox = Inbox("billing")
    database = server.database()
    handlers.make_accounts(server, database, ACCOUNTS)
    # One of its own for what `Inbox.transaction` has made: on its engine statements are looked at.
    engine, of_hook = [
        create_async_engine(server.url(database, "asyncpg"), pool_size=AT_ONCE, max_overflow=0) for _ in range(2)
    ]
    try:
        async with engine.begin() as connection:
            await connection.run_sync(inbox.table(MetaData()).create)
            for table in ("looked_for", "by_hand"):
                await connection.execute(
                    text(
                        f"CREATE TABLE {table} (received_at timestamptz NOT NULL, consumer text, message text, "
                        "PRIMARY KEY (consumer, message))"
                    )
                )
            for number in range(DUPLICATES):
                await connection.execute(_BY_HAND, {"message": f"order-{number}"})
        known = _under_the_hook(async_sessionmaker(of_hook), inbox) | _handlers(async_sessionmaker(engine), inbox)
        keys, payloads = zip(*[_message(number) for number in range(DUPLICATES)], strict=True)
        async with engine.begin() as connection:
            await inbox.first_many(connection, keys, payloads=payloads)
        rates = await handlers.in_turns(known, dict.fromkeys(known, itertools.count(DUPLICATES)), seconds)
        async with engine.connect() as connection:
            effects = await connection.scalar(text("SELECT sum(balance) FROM account"))
    finally:
        await engine.dispose()
        await of_hook.dispose()
    wanted = sum(
        rate.handled * (3 if "three" in name else 1) for name, rate in rates.items() if "duplicate" not in name
    )
    if effects < wanted:  # then something else was measured
        raise BenchError(f"inbox: {effects} effects of {wanted}")
    return rates


def _handlers(sessions: async_sessionmaker[AsyncSession], inbox: Inbox) -> dict[str, Handle]:
    """Each does in a transaction of its own what `HANDLERS` says of it."""

    async def without(number: int, updates: int = 1) -> None:
        async with sessions.begin() as session:
            await _update(session, number, updates)

    async def marked(number: int, updates: int = 1) -> None:
        async with sessions.begin() as session:
            key, payload = _message(number)
            if await inbox.first(session, key, payload=payload):
                await _update(session, number, updates)

    async def by_hand(number: int) -> None:
        async with sessions.begin() as session:
            if await session.scalar(_BY_HAND, {"message": f"order-{number}"}):
                await _update(session, number)

    async def marked_last(number: int) -> None:
        async with sessions.begin() as session:
            message = {"message": f"order-{number}"}
            if await session.scalar(_FIND, message) is None:
                await _update(session, number)
                await session.execute(_NOTE, message)

    return {
        "one": without,
        "one, inbox": marked,
        "one, by hand": by_hand,
        "one, looks": marked_last,
        "one, duplicate": lambda number: marked(number % DUPLICATES),
        "by hand, duplicate": lambda number: by_hand(number % DUPLICATES),
        "three": lambda number: without(number, 3),
        "three, inbox": lambda number: marked(number, 3),
    }


def _under_the_hook(sessions: async_sessionmaker[AsyncSession], inbox: Inbox) -> dict[str, Handle]:
    bare, marking = (Subscription(name, cache="memory://") for name in ("bare", "billing"))

    async def pay(number: int, session: AsyncSession) -> None:
        await _update(session, number)

    async def pay_without(number: int) -> None:
        async with sessions.begin() as session:
            await pay(number, session)

    async def execute(subscription: Subscription, handler: Any, number: int) -> None:
        await subscription.execute(Delivery(f"hooked-{number}", b"%d" % number), handler, number)

    pay_once = inbox.transaction(sessions)(pay)
    return {
        "hook": lambda number: execute(bare, pay_without, number),
        "hook, inbox": lambda number: execute(marking, pay_once, number),
    }


def _message(number: int) -> tuple[str, bytes]:
    """Its key and its payload."""
    return f"order-{number}", b"%d" % number


async def _update(session: AsyncSession, number: int, updates: int = 1) -> None:
    for each in sorted((number + 3 * step) % ACCOUNTS for step in range(updates)):  # in one order: no deadlocks
        await session.execute(_UPDATE, {"id": each})


# -- markers without handlers ----------------------------------------------------------------------------------------


def bytes_per_marker(server: PostgreSQLServer, markers: int) -> float:
    """Of table and indexes, with the digest of a payload and no kept result."""
    inbox, database = Inbox("billing"), server.database()
    engine = create_engine(server.url(database, "psycopg"))
    with engine.begin() as connection:
        table = inbox.table(MetaData())
        table.create(connection)
        mark(connection, inbox, range(markers))
        size = connection.scalar(text(f"SELECT pg_total_relation_size('{table.name}')"))
    engine.dispose()
    return float(size or 0) / markers


def mark(connection: Connection, inbox: Inbox, numbers: range) -> None:
    """Write markers, by the inbox's own statement, many at once."""
    for start in range(numbers.start, numbers.stop, BATCH):
        inbox.mark(
            connection,
            [
                Message(record_id(record_key("inbox", f"marked-{number}", None)), md5(b"%d" % number).digest())
                for number in range(start, min(start + BATCH, numbers.stop))
            ],
        )


async def prune(server: PostgreSQLServer, markers: int) -> dict[str, float]:
    """Markers pruned per second, and the p99 (ms) of deliveries beside that and alone, of as many of them."""
    inbox, database = Inbox("billing"), server.database()
    table, retention = inbox.table(MetaData()), Retention(seconds=0, redelivery_horizon=0)
    engine = create_async_engine(server.url(database, "asyncpg"), pool_size=AT_ONCE + 1, max_overflow=0)

    async def forgotten() -> float:
        """All of them; how many per second."""
        began = time.perf_counter()
        done = await forget(engine, table, retention, lead=0)
        if done.pruned < markers:
            raise BenchError(f"inbox: {done.pruned} of {markers} markers were pruned")
        return done.pruned / (time.perf_counter() - began)

    def fill() -> None:
        server.execute("TRUNCATE oncegate_inbox", database)
        server.execute(_FILL.format(markers=markers), database)
        server.execute("ANALYZE oncegate_inbox", database)

    try:
        async with engine.begin() as connection:
            await connection.run_sync(table.create)
        sessions, numbers = async_sessionmaker(engine), itertools.count()
        await _latencies(sessions, inbox, numbers, lambda count: count >= 100)  # statements are prepared
        rates: list[float] = []
        beside: list[float] = []
        alone: list[float] = []
        for _ in range(CLEANUPS):
            fill()
            pruning = asyncio.create_task(forgotten())
            beside += await _latencies(sessions, inbox, numbers, lambda _: pruning.done())  # noqa: B023  # it ends in this turn
            await pruning
            alone += await _latencies(sessions, inbox, numbers, lambda count: len(alone) + count >= len(beside))  # noqa: B023  # so does this
            fill()
            rates.append(await forgotten())
    finally:
        await engine.dispose()
    return {
        "pruned_per_s": median(rates),
        "p99_beside_ms": _p99(beside),
        "p99_alone_ms": _p99(alone),
        "deliveries": len(beside),
    }


async def _latencies(
    sessions: async_sessionmaker[AsyncSession],
    inbox: Inbox,
    numbers: Iterator[int],
    ended: Callable[[int], bool],
) -> list[float]:
    """Seconds that first deliveries take, some at once, until ``ended``, which is given how many there are."""
    taken: list[float] = []

    async def one_after_the_other() -> None:
        while not ended(len(taken)):
            began = time.perf_counter()
            async with sessions.begin() as session:
                await inbox.first(session, f"order-{next(numbers)}", payload=b"p")
            taken.append(time.perf_counter() - began)

    await asyncio.gather(*[one_after_the_other() for _ in range(AT_ONCE)])
    return taken


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(0.99 * len(seconds))] * 1000


# -- what the samples say ---------------------------------------------------------------------------------------------


def tables(results: Results) -> list[Table]:
    """The ratios, and what they are of."""
    rows = handlers.ratio_rows(results, RATIOS)
    size = results.checks["bytes_per_marker"]
    rows.append(["bytes per marker, index included", f"<= {MOST_BYTES}", f"{size:.0f}", yes(size <= MOST_BYTES)])
    if cleanup := results.select(handler="cleanup"):
        rate, aim = spread(cleanup, "pruned_per_s"), f">= {LEAST_PRUNED:,}"
        rows.append(["markers pruned per second", aim, rate.text(), yes(rate.median >= LEAST_PRUNED)])
        late = Spread.of(sample["p99_beside_ms"] / sample["p99_alone_ms"] for sample in cleanup)
        what = "p99 of deliveries, beside cleanup / alone"
        rows.append([what, f"<= {MOST_LATE:g}", late.text(2), yes(late.median <= MOST_LATE)])
    circumstances = "; PostgreSQL without fsync, which makes a marker's share of the time larger, not smaller."
    return [
        Table("What a marker costs", ["what", "aim", "measured", "reached"], rows),
        handlers.rates_table(results, "Handlers", HANDLERS, circumstances),
    ]


def plot(results: Results, axes: Any) -> None:
    """Transactions per second, by handler."""
    handlers.draw(results, axes, HANDLERS, ("inbox", "duplicate"), "Handlers with and without the inbox")
