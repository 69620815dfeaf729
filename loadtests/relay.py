"""`scripts/bench relay`: how many messages a second relays take from PostgreSQL and remove, and what order costs.

The broker takes each message at once, so what is measured is the relay and its database. Each relay is a process of its own.
Ways: ``in order`` is what `oncegate relay` does; ``skip locked`` takes the oldest rows that nobody has, and has no order: what
many outboxes do. Backlogs: the rows of 1,000 aggregates; and half of all rows in one aggregate.
"""

import asyncio
import subprocess
import sys
import time
from typing import Any, Final

from sqlalchemy import Connection, MetaData, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from loadtests import builds
from loadtests.handlers import versions, yes
from loadtests.processes import BenchError
from loadtests.report import Results, Table, measured, paired, progress, spread
from oncegate.sql import Outbox, OutboxMessage, OutboxSource, Relay
from oncegate.sql.database.creating import create
from testing.postgresql import PostgreSQLServer

ROWS: Final = 20_000
PATIENCE: Final = 300.0
"""Seconds after which a measurement is given up."""
IN_ORDER, SKIP_LOCKED = "in order", "skip locked"
BACKLOGS: Final = {
    "even": ("1,000 aggregates", "n % 1000"),
    "hot": ("half of all rows in one aggregate", "CASE WHEN n % 2 = 0 THEN 0 ELSE 1 + n % 1000 END"),
}
CELLS: Final = [
    ("even", IN_ORDER, 1),
    ("even", SKIP_LOCKED, 1),
    ("even", IN_ORDER, 3),
    ("even", SKIP_LOCKED, 3),
    ("hot", IN_ORDER, 1),
    ("hot", IN_ORDER, 3),
]
"""Backlog, way, relays."""
RATIOS: Final = [
    ("in order / SKIP LOCKED alone, one relay", ("even", IN_ORDER, 1), ("even", SKIP_LOCKED, 1), 0.7),
    ("in order / SKIP LOCKED alone, three relays", ("even", IN_ORDER, 3), ("even", SKIP_LOCKED, 3), 0.7),
    ("half of all rows in one aggregate: three relays / one", ("hot", IN_ORDER, 3), ("hot", IN_ORDER, 1), 1.0),
]
_FILL: Final = """
INSERT INTO oncegate_outbox (sequence, added_at, outbox, topic, key, aggregate, aggregate_id, body)
SELECT row_number() OVER (PARTITION BY a ORDER BY n), now(), 'orders', 'payments', 'key-' || n,
    sha256(a::text::bytea), a::text, repeat('x', 300)::bytea
FROM (SELECT n, {aggregate} AS a FROM generate_series(1, {rows}) AS n) AS numbered ORDER BY n
"""


def run(*, rounds: int, quick: bool, rows: int = ROWS) -> Results:
    """Measure it all. Raises `BenchError` where a row is left."""
    if quick:
        rounds, rows = 1, 1000
    settings = {"builds": [builds.SOURCE], "quick": quick, "rounds": rounds, "rows": rows}
    results = Results("relay", settings)
    with progress() as bar, PostgreSQLServer() as server:
        task = bar.add_task("relay", total=rounds * len(CELLS))
        results.versions = versions(server)
        database = server.database()
        create(server.url(database, "psycopg"), Outbox("orders").tables(MetaData()))
        for number in range(rounds):
            for backlog, way, relays in CELLS:
                bar.update(task, description=f"{BACKLOGS[backlog][0]}, {way}, {relays}")
                rate = rows / _seconds(server, database, BACKLOGS[backlog][1], way, relays, rows)
                sample = {"backlog": backlog, "way": way, "relays": relays, "round": number, "per_s": rate}
                results.samples.append(sample)
                bar.advance(task)
    return results


def _seconds(server: PostgreSQLServer, database: str, aggregate: str, way: str, relays: int, rows: int) -> float:
    """Until nothing waits, from when all relays may begin. They have looked at the empty table before."""
    server.execute("TRUNCATE oncegate_outbox", database)
    command = [sys.executable, "-m", "loadtests.relay", server.url(database, "asyncpg"), way]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(relays)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise BenchError("relay: a relay did not begin")
        server.execute(_FILL.format(aggregate=aggregate, rows=rows), database)
        began = time.perf_counter()
        _next(processes)
        _until_empty(server, database)
        taken = time.perf_counter() - began
        _next(processes)
        published = sum(int(process.communicate()[0]) for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    if published != rows:
        raise BenchError(f"relay: {published} of {rows} rows were published")
    return taken


def _next(processes: "list[subprocess.Popen[str]]") -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def _until_empty(server: PostgreSQLServer, database: str) -> None:
    engine = create_engine(server.url(database, "psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        until = time.monotonic() + PATIENCE
        while connection.exec_driver_sql("SELECT 1 FROM oncegate_outbox LIMIT 1").first() is not None:
            if time.monotonic() > until:
                raise BenchError("relay: rows are left")
            time.sleep(0.02)
    engine.dispose()


class _Unordered(OutboxSource):
    """Takes the oldest rows that nobody has."""

    def _taken(self, connection: Connection, most: int) -> list[OutboxMessage]:
        statement = str(self._statements.free).replace("aggregate IS NULL", "true")
        rows = connection.exec_driver_sql(statement.replace(":_most", str(most)))
        return [OutboxMessage(row.id, row.topic, row.key, bytes(row.body)) for row in rows]


async def relay(url: str, way: str) -> int:
    """How many messages one relay has published, between a line on standard input and another one."""
    engine = create_async_engine(url)
    published = 0

    async def publish(_: OutboxMessage) -> None:
        nonlocal published
        published += 1

    one = Relay((OutboxSource if way == IN_ORDER else _Unordered)(engine), publish)
    await one.publish_batch()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    async with one.running():
        await asyncio.to_thread(sys.stdin.readline)
    await engine.dispose()
    return published


def tables(results: Results) -> list[Table]:
    """The ratios, and what they are of."""
    ratios = []
    for what, ours, theirs, least in RATIOS:
        ratio = paired(_cell(results, ours), _cell(results, theirs), "per_s")
        ratios.append([what, f">= {least:g}", ratio.text(2), yes(ratio.median >= least)])
    rates = [
        [BACKLOGS[cell[0]][0], cell[1], str(cell[2]), spread(_cell(results, cell), "per_s").text()] for cell in CELLS
    ]
    used = ", ".join(f"{name} {number}" for name, number in results.versions.items())
    note = (
        f"{used}. {results.settings['rows']:,} rows each time, of 300 bytes; the broker takes each at once. Median"
        f" (least-most) over the rounds. {measured(results)}"
    )
    return [
        Table("What order costs a relay", ["what", "aim", "measured", "reached"], ratios),
        Table("Relays", ["backlog", "way", "relays", "rows/s"], rates, note),
    ]


def _cell(results: Results, cell: tuple[str, str, int]) -> list[dict[str, Any]]:
    backlog, way, relays = cell
    return results.select(backlog=backlog, way=way, relays=relays)


def plot(results: Results, axes: Any) -> None:
    """Rows per second, by cell."""
    rates = [spread(_cell(results, cell), "per_s") for cell in CELLS[::-1]]
    names = [f"{BACKLOGS[backlog][0]}\n{way}, {relays}" for backlog, way, relays in CELLS[::-1]]
    errors = [(each.median - each.least, each.most - each.median) for each in rates]
    axes.barh(names, [each.median for each in rates], xerr=list(zip(*errors, strict=True)), capsize=3)
    axes.set_xlabel("rows per second (more is better)")
    axes.set_title("Relays of an outbox in PostgreSQL")


if __name__ == "__main__":
    sys.stdout.write(str(asyncio.run(relay(*sys.argv[1:]))))
