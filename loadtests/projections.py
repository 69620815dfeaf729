"""`scripts/bench projections`: what it costs a read model to know what it has seen, by each way of docs/projections.md.

Events are applied by `Projection` in batches, as lists, and by the same handler in a transaction for each event; the guards are
measured with eight writers; and the tables that each way fills are measured in bytes. PostgreSQL is on a core of its own. Both
databases wait for the disk.
"""

import asyncio
import itertools
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from runpy import run_path
from typing import Any, Final

import orjson
from sqlalchemy import BigInteger, Column, MetaData, Row, Table, Text, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from loadtests import builds, handlers
from loadtests.handlers import yes
from loadtests.processes import BenchError
from loadtests.report import Results, measured, paired, progress, spread
from loadtests.report import Table as Shown
from oncegate.sql import Inbox, Projection
from oncegate.sql.inbox.create import tables as inbox_tables
from oncegate.sql.projections.table import projection_table
from testing import pages
from testing.postgresql import PostgreSQLServer
from testing.template import ROOT

EVENTS: Final = 4000
STREAMS: Final = 100
WRITERS: Final = 8
LATE: Final = 400
"""Events whose loss is counted, by a guard of one position."""
SIZES: Final = tuple((events, streams) for events in (10_000, 100_000, 1_000_000) for streams in (100, 10_000))
EACH, BATCH, LIST = "a transaction for each event", "Projection, batches of 200", "Projection, a list of 200"
WAYS: Final = (EACH, BATCH, LIST)
DATABASES: Final = ("postgresql", "sqlite")
AIMS: Final = ((BATCH, 4.0), (LIST, 15.0))
GUARDS: Final = ("bare UPDATE", "column recipe", "bare UPDATE, in a batch", "column recipe, in a batch",
                 "inbox, a position per stream", "inbox, one position for all, by hand", "inbox, ids",
                 "inbox, versions")  # fmt: skip
GUARD_RATIOS: Final = (
    ("one position per stream / one for all, 8 writers", GUARDS[4], GUARDS[5], 2.0),
    ("column recipe / bare UPDATE, a transaction each", GUARDS[1], GUARDS[0], 0.95),
    ("column recipe / bare UPDATE, within a batch", GUARDS[3], GUARDS[2], 0.75),
)

_EVENTS: Final = Table(
    "events", MetaData(), Column("transaction", Text), *[Column(name, BigInteger) for name in ("position", "version")],
    Column("account", Text), Column("amount", BigInteger),
)  # fmt: skip
_CREATE: Final = {
    "postgresql": "CREATE TABLE events (position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, transaction xid8 NOT NULL"
    " DEFAULT pg_current_xact_id(), account text, version bigint, amount bigint)",
    "sqlite": "CREATE TABLE events (position INTEGER PRIMARY KEY AUTOINCREMENT, account text, version bigint, amount bigint)",
}
_FILL: Final = {
    "postgresql": "INSERT INTO events (account, version, amount) SELECT 'account-' || n % {streams}, n / {streams} + 1, n"
    " FROM generate_series(0, {events} - 1) AS n",
    "sqlite": "INSERT INTO events (account, version, amount) WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1"
    " FROM numbers WHERE n < {events} - 1) SELECT 'account-' || n % {streams}, n / {streams} + 1, n FROM numbers",
}
_ADD: Final = text("UPDATE balance SET amount = amount + :amount WHERE account = :account")
_GUARDED: Final = text(
    "UPDATE balance SET amount = amount + :amount, version = :version WHERE account = :account AND version = :version - 1"
)
_ADD_ALL: Final = {
    "postgresql": "UPDATE balance SET amount = balance.amount + sums.amount FROM (SELECT account, sum(amount) AS amount FROM"
    " json_to_recordset(CAST(:rows AS json)) AS row (account text, amount bigint) GROUP BY account) AS sums"
    " WHERE balance.account = sums.account",
    "sqlite": "UPDATE balance SET amount = balance.amount + sums.amount FROM (SELECT json_extract(value, '$.account') AS account,"
    " sum(json_extract(value, '$.amount')) AS amount FROM json_each(:rows) GROUP BY 1) AS sums"
    " WHERE balance.account = sums.account",
}
_MARKERS: Final = (
    "INSERT INTO oncegate_inbox (received_at, consumer, message, fingerprint) SELECT clock_timestamp(), 'balance.v1',"
    " substring(digest FOR 30), NULL FROM generate_series(1, {events}) AS n, sha256(CAST(CAST(n AS text) AS bytea)) AS digest"
)
_NUMBERS: Final = (
    "INSERT INTO oncegate_order (applied_at, sequence, parked, consumer, aggregate, message) SELECT clock_timestamp(), n, 0,"
    " 'balance.v1', substring(digest FOR 16), NULL FROM generate_series(1, {streams}) AS n,"
    " sha256(CAST(CAST(n AS text) AS bytea)) AS digest"
)


def run(*, rounds: int, seconds: float, quick: bool) -> Results:
    """Measure it all. Raises `BenchError` where a read model is not what it has to be."""
    events, sizes = EVENTS, SIZES
    if quick:
        rounds, seconds, events, sizes = 1, 0.1, 200, ((1000, 100),)
    settings = {
        "builds": [builds.SOURCE], "quick": quick, "rounds": rounds, "seconds": seconds, "events": events,
        "streams": STREAMS, "writers": WRITERS,
    }  # fmt: skip
    results = Results("projections", settings)
    with progress() as bar, PostgreSQLServer() as server, handlers.apart(server):
        task = bar.add_task("bytes", total=2 * rounds + 1)
        server.execute(
            "ALTER SYSTEM SET fsync = on"
        )  # a transaction for each event waits for the disk, as it does elsewhere
        server.execute("SELECT pg_reload_conf()")
        results.versions = handlers.versions(server)
        results.checks["growth"] = growth(server, sizes)
        results.checks["lost"] = asyncio.run(lost(server, LATE // (10 if quick else 1)))
        for number in range(rounds):
            bar.update(task, advance=1, description=f"projections, round {number + 1}")
            for kind, way in itertools.product(DATABASES, WAYS):
                rate, cpu = asyncio.run(_applied(server, kind, way, events))
                sample = {"database": kind, "way": way, "round": number, "per_s": rate, "cpu_us": cpu}
                results.samples.append(sample)
            bar.update(task, advance=1, description=f"guards, round {number + 1}")
            for guard, rate in asyncio.run(_guards(server, seconds)).items():
                results.samples.append({"guard": guard, "round": number, "per_s": rate})
    return results


# -- projections ------------------------------------------------------------------------------------------------------


async def _applied(server: PostgreSQLServer, kind: str, way: str, events: int) -> tuple[float, float]:
    """Events per second, and this process's CPU for each (us)."""
    with tempfile.TemporaryDirectory() as folder:
        url = server.url(server.database(), "asyncpg") if kind == "postgresql" else f"sqlite+aiosqlite:///{folder}/a.db"
        engine = create_async_engine(url)
        try:
            await _prepare(engine, kind, events)
            done = asyncio.Event()
            began, cpu = time.perf_counter(), time.process_time()
            if way == EACH:
                await _one_by_one(engine)
            else:
                async with _projection(way, events, kind, done).running(engine):
                    await done.wait()
            wall, cpu = time.perf_counter() - began, time.process_time() - cpu
            async with engine.connect() as connection:
                total = await connection.scalar(text("SELECT sum(amount) FROM balance"))
            if total != events * (events - 1) // 2:
                raise BenchError(f"projections: {way} on {kind}: {total} is not the ledger's sum")
        finally:
            await engine.dispose()
    return events / wall, cpu / events * 1e6


async def _prepare(engine: AsyncEngine, kind: str, events: int) -> None:
    async with engine.begin() as connection:
        await connection.execute(text(_CREATE[kind]))
        await connection.execute(text("CREATE INDEX events_account ON events (account, version)"))
        if kind == "postgresql":
            await connection.execute(text("CREATE INDEX events_transaction ON events (transaction, position)"))
        else:
            await connection.execute(text("PRAGMA synchronous = FULL"))
        await connection.execute(text(_FILL[kind].format(events=events, streams=STREAMS)))
        await connection.execute(text("CREATE TABLE balance (account text PRIMARY KEY, amount bigint, version bigint)"))
        await connection.execute(text("INSERT INTO balance SELECT DISTINCT account, 0, 0 FROM events"))
        await connection.run_sync(projection_table(MetaData()).create)


async def _one_by_one(engine: AsyncEngine) -> None:
    sessions = async_sessionmaker(engine)
    async with engine.connect() as connection:
        rows = (await connection.execute(text("SELECT account, amount FROM events ORDER BY position"))).all()
    for row in rows:
        async with sessions.begin() as session:
            await session.execute(_ADD, {"account": row.account, "amount": row.amount})


def _projection(way: str, events: int, kind: str, done: asyncio.Event) -> Projection:
    """Sets ``done`` when its last batch is committed: when the next look finds nothing the position says so."""
    projection = Projection("balance.v1", _EVENTS, aggregate="account", sequence="version", batch_seconds=30.0)
    applied = 0

    def count(rows: int) -> None:
        nonlocal applied
        applied += rows
        if applied >= events:
            done.set()

    if way == BATCH:

        @projection.apply
        async def apply(event: Row[Any], session: AsyncSession) -> None:
            await session.execute(_ADD, {"account": event.account, "amount": event.amount})
            count(1)

    else:
        statement = text(_ADD_ALL[kind])

        @projection.apply(batch=True)
        async def apply_all(rows: Any, session: AsyncSession) -> None:
            given = [{"account": row.account, "amount": row.amount} for row in rows]
            await session.execute(statement, {"rows": orjson.dumps(given).decode()})
            count(len(rows))

    return projection


# -- guards -----------------------------------------------------------------------------------------------------------


async def _guards(server: PostgreSQLServer, seconds: float) -> dict[str, float]:
    """Events per second of eight writers, by guard."""
    engine = create_async_engine(server.url(server.database(), "asyncpg"), pool_size=WRITERS, max_overflow=0)
    try:
        async with engine.begin() as connection:
            for table in inbox_tables(None):
                await connection.run_sync(table.create)
            await connection.execute(
                text(
                    "CREATE TABLE balance (account text PRIMARY KEY, amount bigint, version bigint) WITH (fillfactor = 50)"
                )
            )
            await connection.execute(
                text(f"INSERT INTO balance SELECT 'account-' || n, 0, 0 FROM generate_series(0, {WRITERS * 10}) AS n")
            )
        found = {}
        for name, (apply, batch) in _ways().items():
            async with engine.begin() as connection:
                await connection.execute(text("UPDATE balance SET version = 0"))
                await connection.execute(text("TRUNCATE oncegate_inbox, oncegate_order"))
            found[name] = await _rate(engine, apply, batch, seconds)
        return found
    finally:
        await engine.dispose()


Apply = Callable[[AsyncConnection, str, int, int], Awaitable[object]]


def _ways() -> dict[str, tuple[Apply, int]]:  # noqa: C901  # a few lines for each way
    """Each applies the event of an account's version, which has a position among all; so many in a transaction."""
    streams, one = Inbox("streams", order="latest"), Inbox("one", order="latest")
    ids, versions = Inbox("ids"), Inbox("versions", order="contiguous")

    async def bare(db: AsyncConnection, account: str, _version: int, _position: int) -> None:
        await db.execute(_ADD, {"account": account, "amount": 1})

    async def column(db: AsyncConnection, account: str, version: int, _position: int) -> None:
        done = await db.execute(_GUARDED, {"account": account, "amount": 1, "version": version})
        if done.rowcount != 1:
            raise BenchError("projections: a version was not applied")

    async def by_stream(db: AsyncConnection, account: str, version: int, position: int) -> None:
        if await streams.first(db, aggregate=account, sequence=position):
            await bare(db, account, version, position)

    async def by_one(db: AsyncConnection, account: str, version: int, position: int) -> None:
        if await one.first(db, aggregate="all", sequence=position):
            await bare(db, account, version, position)

    async def by_id(db: AsyncConnection, account: str, version: int, position: int) -> None:
        if await ids.first(db, f"event-{position}"):
            await bare(db, account, version, position)

    async def by_version(db: AsyncConnection, account: str, version: int, position: int) -> None:
        if await versions.first(db, aggregate=account, sequence=version):
            await bare(db, account, version, position)

    each: list[tuple[Apply, int]] = [(bare, 1), (column, 1), (bare, 50), (column, 50)]
    return dict(zip(GUARDS, [*each, (by_stream, 1), (by_one, 1), (by_id, 1), (by_version, 1)], strict=True))


async def _rate(engine: AsyncEngine, apply: Apply, batch: int, seconds: float) -> float:
    positions = itertools.count(1)
    until = time.perf_counter() + seconds

    async def write(writer: int) -> int:
        """Accounts of its own: no writer waits for another one's row."""
        versions, done = dict.fromkeys(range(10), 0), 0
        while time.perf_counter() < until:
            async with engine.begin() as connection:
                for _ in range(batch):
                    number = done % 10
                    versions[number] += 1
                    await apply(connection, f"account-{writer * 10 + number}", versions[number], next(positions))
                    done += 1
        return done

    began = time.perf_counter()
    done = await asyncio.gather(*[write(writer) for writer in range(WRITERS)])
    return sum(done) / (time.perf_counter() - began)


# -- what is lost, and what grows -------------------------------------------------------------------------------------


async def lost(server: PostgreSQLServer, events: int) -> dict[str, int]:
    """Of so many events, delivered as the transactions of eight writers commit, those that each guard takes for old."""
    engine, chance = create_async_engine(server.url(server.database(), "asyncpg")), random.Random(1)
    one, streams = Inbox("one", order="latest"), Inbox("streams", order="latest")
    # A writer's transaction commits up to seven others' later than its position was given out; a stream has one writer.
    delivered = sorted(range(1, events + 1), key=lambda position: position + chance.random() * WRITERS)
    found = {"one position for all, by hand": 0, "a position per stream": 0}
    try:
        async with engine.begin() as connection:
            for table in inbox_tables(None):
                await connection.run_sync(table.create)
        for position in delivered:
            async with engine.begin() as connection:
                entry = await one.first(connection, aggregate="all", sequence=position)
                found["one position for all, by hand"] += not entry.first
                entry = await streams.first(connection, aggregate=f"s{position % WRITERS}", sequence=position)
                found["a position per stream"] += not entry.first
    finally:
        await engine.dispose()
    return found | {"of": events}


def growth(server: PostgreSQLServer, sizes: Any) -> list[dict[str, Any]]:
    """Rows and bytes of what each way keeps after so many events of so many streams."""
    database = server.database()
    engine = create_async_engine(server.url(database, "asyncpg"))

    async def make() -> None:
        async with engine.begin() as connection:
            for table in (*inbox_tables(None), projection_table(MetaData())):
                await connection.run_sync(table.create)
        await engine.dispose()

    asyncio.run(make())
    server.execute(
        "INSERT INTO oncegate_projection (name, transaction, position, ahead, events) VALUES ('balance.v1', 1, 1, '[]', '{}')",
        database,
    )
    columns = run_path(str(_page()))
    server.execute(columns["SCHEMA"].format(json="jsonb").split(";")[2], database)
    found = []
    for events, streams in sizes:
        server.execute("TRUNCATE oncegate_inbox, oncegate_order, by_id", database)
        server.execute(_MARKERS.format(events=events), database)
        server.execute(_NUMBERS.format(streams=streams), database)
        kept = min(columns["KEPT"], events // streams)
        server.execute(
            f"INSERT INTO by_id SELECT 'account-' || n, 0, (SELECT jsonb_agg(jsonb_build_array('event-' || n * 100000 + k,"
            f" 1790000000 + k)) FROM generate_series(1, {kept}) AS k) FROM generate_series(1, {streams}) AS n",
            database,
        )
        tables = (("id per projection", "oncegate_inbox"), ("version per stream", "oncegate_order"),
                  ("Projection", "oncegate_projection"), ("id in the row", "by_id"))  # fmt: skip
        for way, table in tables:
            ((size, rows),) = server.execute(
                f"SELECT pg_total_relation_size('{table}'), (SELECT count(*) FROM {table})", database
            )
            found.append({"events": events, "streams": streams, "way": way, "rows": rows, "bytes": size})
    return found


def _page() -> Path:
    """The example of docs/patterns/row-columns.md, as a file."""
    folder = Path(tempfile.mkdtemp())
    file = folder / "row_columns.py"
    blocks = pages.BLOCK.findall((ROOT / "docs/patterns/row-columns.md").read_text("utf-8"))
    file.write_text(next(block for _, block in blocks if pages.FILE.match(block)))
    return file


# -- what it means ----------------------------------------------------------------------------------------------------


def tables(results: Results) -> list[Shown]:
    """The ratios, what they are of, and what grows."""
    ratios, rates = [], []
    for kind in DATABASES:
        each = results.select(database=kind, way=EACH)
        for way, least in AIMS:
            samples = results.select(database=kind, way=way)
            ratio, cpu = paired(samples, each, "per_s"), paired(samples, each, "cpu_us")
            what = f"{kind}: {way} / {EACH}"
            ratios.append([what, f">= {least:g}", ratio.text(1), yes(ratio.median >= least), cpu.text(2)])
        for way in WAYS:
            samples = results.select(database=kind, way=way)
            rates.append([f"{kind}, {way}", spread(samples, "per_s").text(), spread(samples, "cpu_us").text()])
    for what, ours, theirs, least in GUARD_RATIOS:
        ratio = paired(results.select(guard=ours), results.select(guard=theirs), "per_s")
        ratios.append([what, f">= {least:g}", ratio.text(2), yes(ratio.median >= least), "-"])
    rates += [[f"postgresql, {guard}", spread(results.select(guard=guard), "per_s").text(), "-"] for guard in GUARDS]
    used = ", ".join(f"{name} {number}" for name, number in results.versions.items())
    settings = results.settings
    note = (
        f"{used}. {settings['events']:,} events of {settings['streams']} streams; guards with {settings['writers']} writers."
        f" Median (least-most) over the rounds. {measured(results)}"
    )
    kept = [
        [f"{each['events']:,}", f"{each['streams']:,}", each["way"], f"{each['rows']:,}", f"{each['bytes']:,}"]
        for each in results.checks["growth"]
    ]
    lost_of = results.checks["lost"]
    lines = [[way, f"{lost_of[way]} of {lost_of['of']}"] for way in lost_of if way != "of"]
    return [
        Shown("What a read model's ways cost", ["what", "aim", "measured", "reached", "CPU"], ratios),
        Shown("Events per second", ["way", "events/s", "CPU of the client, us an event"], rates, note),
        Shown("What is lost that commits late", ["guard", "lost"], lines),
        Shown(
            "What is kept, on PostgreSQL",
            ["events", "streams", "way", "rows", "bytes, with indexes"],
            kept,
            "Each stream has as many events as another one. A column of a version or position is eight bytes of a row.",
        ),
    ]


def plot(results: Results, axes: Any) -> None:
    """Bytes by events."""
    found = results.checks["growth"]
    for way, streams in itertools.product(dict.fromkeys(each["way"] for each in found), (100, 10_000)):
        its = [each for each in found if each["way"] == way and each["streams"] == streams]
        if its:
            axes.plot(
                [each["events"] for each in its],
                [each["bytes"] for each in its],
                "o-",
                label=f"{way}, {streams:,} streams",
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("events")
    axes.set_ylabel("bytes kept (less is better)")
    axes.set_title("What a read model keeps to know what it has seen")
    axes.legend(fontsize="small")
