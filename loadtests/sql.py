"""`scripts/bench sql`: records in SQLite and PostgreSQL: what shared commits and statements are worth, what replay and row cost.

All ways take turns within one run, with fsync. A turn is claims and completions of new keys by 32 callers, for so many seconds.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg

from loadtests import builds
from loadtests.report import Results, Table, paired, progress, spread
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import ClaimRequest, Record, State, StoredResponse, Trace
from oncegate.cache.sql.postgresql import server as postgresql
from oncegate.cache.sql.postgresql import statements
from oncegate.cache.sql.sqlite import file as sqlite
from oncegate.cache.sql.store import SqlCache
from oncegate.cache.store import Cache
from testing.postgresql import PostgreSQLServer

CALLERS: Final = 32
PRINT: Final = b"p" * 16
BODY: Final = b'{"id": 17, "amount": 1200, "currency": "EUR", "state": "booked"}'
RESPONSE: Final = StoredResponse(201, ((b"content-type", b"application/json"),), BODY, 1_700_000_000_000)
TRACE: Final = Trace("gateway-1/4711", 1_700_000_000_000, None, "", "POST", "/payments")
POOL: Final = 8

WAYS: Final = {
    "sqlite": "SQLite, FULL, shared commits",
    "sqlite-each": "SQLite, FULL, a commit for each call",
    "sqlite-process": "SQLite, NORMAL, shared commits",
    "postgresql": "PostgreSQL, shared statements, 2 connections",
    "postgresql-each": "PostgreSQL, a statement for each call, pool of 8",
    "postgresql-plain": "PostgreSQL, hand-written claim and completion, pool of 8",
}
AIMS: Final = (
    ("sqlite", "sqlite-each", ">= 6"),
    ("sqlite", "sqlite-process", ">= 0.4"),
    ("postgresql", "postgresql-each", ">= 5"),
    ("postgresql", "postgresql-plain", ">= 3"),
)
Pay = Callable[[str], Awaitable[None]]
"""A claim of a new key and its completion."""


class _Server(PostgreSQLServer):
    """With fsync, as others run it."""

    def __init__(self) -> None:
        super().__init__()
        with (self._folder / "data/postgresql.conf").open("a") as conf:
            conf.write("\nfsync = on\nfull_page_writes = on\n")


def run(*, rounds: int, seconds: float, quick: bool) -> Results:
    """Measure it, ``rounds`` times each way."""
    rounds, seconds = (1, 0.3) if quick else (rounds, seconds)
    results = Results("sql", {"builds": [builds.SOURCE], "quick": quick, "rounds": rounds, "seconds": seconds})
    with progress() as bar, _Server() as server, tempfile.TemporaryDirectory() as folder:
        task = bar.add_task("rounds", total=rounds)
        for number in range(rounds):
            for way in WAYS:
                sample = asyncio.run(_turn(way, server, Path(folder) / f"{way}-{number}.db", seconds))
                results.samples.append({"way": way, "round": number, **sample})
            bar.advance(task)
        results.checks["replays"] = asyncio.run(_replays(server, Path(folder) / "replays.db", 300 if quick else 5000))
        results.checks["bytes"] = asyncio.run(_bytes(server, Path(folder) / "bytes.db", 200 if quick else 20_000))
        results.checks["workers"] = _workers(Path(folder), 0.5 if quick else 5.0)
    return results


def _table(server: PostgreSQLServer) -> str:
    database = server.database()
    server.execute(statements.TABLES, database)
    return f"postgresql://postgres@127.0.0.1:{server.port}/{database}"


def _pay(cache: Any) -> Pay:
    async def pay(key: str) -> None:
        token = os.urandom(16)
        won = await cache.claim(key, ClaimRequest(token, PRINT, 30_000, 86_400_000, frozenset(), TRACE))
        await cache.complete(key, Record(State.SUCCEEDED, token, PRINT, 1, RESPONSE, trace=TRACE), ttl_ms=86_400_000)
        if not won.won:
            raise RuntimeError("a new key was not won")

    return pay


_CLAIM: Final = "INSERT INTO oncegate_records VALUES ($1, $2, $3) ON CONFLICT (key) DO NOTHING RETURNING key"
_COMPLETE: Final = (
    "UPDATE oncegate_records SET data = $2, ends_ms = $3 WHERE key = $1 AND substr(data, 3, 16) = $4 RETURNING key"
)


def _pay_by_hand(pool: Any) -> Pay:
    async def pay(key: str) -> None:
        token = os.urandom(16)
        now_ms = int(time.time() * 1000)
        async with pool.acquire() as connection:
            await connection.fetchval(_CLAIM, key, b"\x01I" + token + PRINT, now_ms + 30_000)
        async with pool.acquire() as connection:
            await connection.fetchval(_COMPLETE, key, b"\x01S" + token + PRINT + BODY, now_ms + 86_400_000, token)

    return pay


@contextmanager
def _one_each(way: str) -> Iterator[None]:
    """What waits goes one by one."""
    most = sqlite._MOST_SWAPS, postgresql._MOST_STEPS
    if way.endswith("-each"):
        sqlite._MOST_SWAPS = postgresql._MOST_STEPS = 1  # type: ignore[misc]  # the way that it is compared with
    yield
    sqlite._MOST_SWAPS, postgresql._MOST_STEPS = most  # type: ignore[misc]  # given back


async def _turn(way: str, server: PostgreSQLServer, path: Path, seconds: float) -> dict[str, float]:
    closes: list[Callable[[], Awaitable[object]]] = []
    if way == "postgresql-plain":
        pool = await asyncpg.create_pool(_table(server), min_size=POOL, max_size=POOL)
        ways, closes = [_pay_by_hand(pool)], [pool.close]
    elif way == "postgresql-each":  # four caches: eight connections
        url = _table(server)
        caches = [SqlCache.from_url(url, timeout=60) for _ in range(POOL // 2)]
        ways, closes = [_pay(cache) for cache in caches], [cache.close for cache in caches]
    else:
        options = "?durability=process" if way == "sqlite-process" else ""
        url = _table(server) if way == "postgresql" else f"sqlite:///{path}{options}"
        cache = SqlCache.from_url(url, timeout=60)
        ways, closes = [_pay(cache)], [cache.close]
    took: list[float] = []
    with _one_each(way):
        for number, pay in enumerate(ways):
            await pay(f"warm:{number}")
        begun, cpu = time.monotonic(), time.process_time()
        ends = begun + seconds

        async def caller(number: int) -> None:
            count, pay = 0, ways[number % len(ways)]
            while time.monotonic() < ends:
                at = time.monotonic()
                await pay(f"bench:{number}:{count}")
                took.append(time.monotonic() - at)
                count += 1

        await asyncio.gather(*(caller(number) for number in range(CALLERS)))
        lasted, cpu = time.monotonic() - begun, time.process_time() - cpu
    for close in closes:
        await close()
    p99 = sorted(took)[int(len(took) * 0.99)] * 1000
    return {"rate": len(took) / lasted, "cpu_us": cpu / len(took) * 1e6, "p99_ms": p99}


async def _replays(server: PostgreSQLServer, path: Path, count: int) -> dict[str, float]:
    """CPU of this process for one replay, in us."""
    caches: dict[str, Cache] = {
        "memory": MemoryCache(),
        "sqlite": SqlCache.from_url(f"sqlite:///{path}", timeout=60),
        "postgresql": SqlCache.from_url(_table(server), timeout=60),
    }
    found: dict[str, list[float]] = {name: [] for name in caches}
    request = ClaimRequest(os.urandom(16), PRINT, 30_000, 86_400_000, frozenset(), TRACE)
    for cache in caches.values():
        await _pay(cache)("a:key")
    for _ in range(7):
        for name, cache in caches.items():
            begun = time.process_time()
            for _ in range(count // CALLERS):
                await asyncio.gather(*(cache.claim("a:key", request) for _ in range(CALLERS)))
            found[name].append((time.process_time() - begun) / (count // CALLERS * CALLERS) * 1e6)
    for cache in caches.values():
        await cache.close()
    return {name: statistics.median(each) for name, each in found.items()}


async def _bytes(server: PostgreSQLServer, path: Path, count: int) -> dict[str, float]:
    """Bytes on the disk for each byte of key and record."""
    url = _table(server)
    ratios = {}
    for name, address in (("sqlite", f"sqlite:///{path}"), ("postgresql", url)):
        cache = SqlCache.from_url(address, timeout=60)
        pay = _pay(cache)
        for begin in range(0, count, 100):
            keys = [os.urandom(15).hex() for _ in range(begin, begin + 100)]
            await asyncio.gather(*(pay(f"service:{key[:20]}:{key[10:]}") for key in keys))
        if name == "sqlite":
            (file,) = [each for each in sqlite._files if each.address.path == path]
            connection = file._connection
            if connection is None:
                raise RuntimeError("the file is not open")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            (held,) = connection.execute("SELECT sum(length(key) + length(data)) FROM records").fetchone()
            written = os.stat(path).st_size  # noqa: PTH116 - asyncio's own rule
        else:
            database = url.rpartition("/")[2]
            server.execute("VACUUM FULL oncegate_records", database)
            ((held, written),) = server.execute(
                "SELECT (SELECT sum(length(key) + length(data)) FROM oncegate_records),"
                " pg_total_relation_size('oncegate_records')",
                database,
            )
        await cache.close()
        ratios[name] = written / float(held)
    return ratios


_WORKER: Final = """
import asyncio, sys, time
from loadtests.sql import _pay, SqlCache
async def main(url, seconds, name):
    pay, took = _pay(SqlCache.from_url(url, timeout=60)), []
    await pay(f"warm:{name}")
    print("ready", flush=True)
    sys.stdin.readline()
    ends = time.monotonic() + seconds
    async def caller(number):
        count = 0
        while time.monotonic() < ends:
            at = time.monotonic()
            await pay(f"bench:{name}:{number}:{count}")
            took.append(time.monotonic() - at)
            count += 1
    await asyncio.gather(*(caller(number) for number in range(16)))
    print(len(took), sorted(took)[int(len(took) * 0.99)] * 1000, flush=True)
asyncio.run(main(sys.argv[1], float(sys.argv[2]), sys.argv[3]))
"""


def _workers(folder: Path, seconds: float) -> dict[str, dict[str, float]]:
    """Processes on one file: the p99 of the worst, and how uneven their shares are."""
    found = {}
    for count in (1, 2, 4):
        command = [sys.executable, "-c", _WORKER, f"sqlite:///{folder}/workers-{count}.db", str(seconds)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        running = [subprocess.Popen([*command, str(number)], **pipes) for number in range(count)]
        for each in running:
            each.stdout.readline()  # type: ignore[union-attr]  # a pipe
        for each in running:
            each.stdin.write("\n")  # type: ignore[union-attr]  # a pipe, too
            each.stdin.flush()  # type: ignore[union-attr]  # as above
        lines = [each.communicate(timeout=120)[0].split() for each in running]
        rates = [int(line[0]) for line in lines]
        found[str(count)] = {"p99_ms": max(float(line[1]) for line in lines), "shares": max(rates) / min(rates)}
    return found


def tables(results: Results) -> list[Table]:
    """The rates, their ratios, and what a replay and a row cost."""
    rows = [
        [meaning, spread(results.select(way=way), "rate").text(), spread(results.select(way=way), "cpu_us").text(),
         spread(results.select(way=way), "p99_ms").text(1)]
        for way, meaning in WAYS.items()
    ]  # fmt: skip
    note = f"Claims and completions of new keys by {CALLERS} callers, with fsync: medians of {results.settings['rounds']} rounds."
    rates = Table("Records in a database", ["way", "pairs/s", "client CPU, us", "p99, ms"], rows, note)
    ratios = [
        [
            f"{WAYS[one]} / {WAYS[other]}",
            paired(results.select(way=one), results.select(way=other), "rate").text(2),
            aim,
        ]
        for one, other, aim in AIMS
    ]
    replays, size, workers = (results.checks[name] for name in ("replays", "bytes", "workers"))
    ratios += [
        ["replay from SQLite / from memory, client CPU", f"{replays['sqlite'] / replays['memory']:.1f}", "<= 2"],
        [
            "replay from PostgreSQL / from memory, client CPU",
            f"{replays['postgresql'] / replays['memory']:.1f}",
            "<= 4",
        ],
        ["bytes as written / of key and record, SQLite", f"{size['sqlite']:.2f}", "<= 1.5"],
        ["bytes as written / of key and record, PostgreSQL", f"{size['postgresql']:.2f}", "<= 1.8"],
    ]
    for count in ("2", "4"):
        p99 = workers[count]["p99_ms"] / workers["1"]["p99_ms"]
        ratios.append([f"SQLite: p99 with {count} workers / with one", f"{p99:.1f}", "<= 4"])
        ratios.append(
            [f"SQLite: largest share of {count} workers / smallest", f"{workers[count]['shares']:.2f}", "<= 1.5"]
        )
    return [rates, Table("Ratios", ["of", "is", "aim"], ratios, "")]
