"""Writers with long transactions and rollbacks, relays that are killed: does all that was committed arrive, in its order?

    .venv/bin/python -m loadtests.runs.relay --rows 100000 --aggregates 1000 --relays 3

Writers add messages of many aggregates to an outbox in PostgreSQL, several in one transaction, some of which stay open for long
and some of which are rolled back. Relays (`oncegate relay`) publish them on a stream of Redis, and are killed (SIGKILL) and begun
anew. Each writer notes what it has committed, after the commit. At the end the stream must have all of that and nothing else;
what stands in it again must have its key; and what is there for the first time must be in the order of its aggregate, 1 to n.

Prints JSON; exit code 0 where that is so, 1 where not.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from loadtests.runs.restarting import Restarting
from loadtests.runs.starting import main
from oncegate.sql import Outbox
from oncegate.sql.database.creating import create
from testing.command_line import ENVIRONMENT
from testing.postgresql import PostgreSQLServer
from testing.servers import RedisServer

TOPIC = "events"
PRELOADED = (
    "oncegate.app.cli.main",
    "oncegate.app.cli.database.relay_run",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "asyncpg",
    "uvloop",
)
"""What relays import."""
PATIENCE = 300.0
"""Seconds without a message after which a run is given up."""
POLLED_EVERY = 0.05
"""Seconds between two looks at the stream."""
EACH = 5
"""Messages of one transaction, at most."""
LONG = 0.3
"""Seconds for which a long transaction is open at least, behind its last message."""
orders = Outbox("orders")


@dataclass(frozen=True)
class Plan:
    """What to do: one of ``rolls_back`` transactions is rolled back, one of ``long`` is open for long."""

    rows: int = 100_000
    aggregates: int = 1000
    relays: int = 3
    writers: int = 16
    rolls_back: int = 5
    long: int = 50
    kill_every: int = 10_000
    seed: int = 1


@dataclass
class Figures:
    """What came of it."""

    committed: int = 0
    arrived: int = 0
    published_again: int = 0
    rolled_back: int = 0
    kills: int = 0
    lost: int = 0
    never_committed: int = 0
    inversions: int = 0
    left: int = 0
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """Whether nothing was lost, made up or inverted."""
        return self.committed > 0 and not (self.lost or self.never_committed or self.inversions or self.left)


class Ledger:
    """What was committed: key, aggregate and number."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[str, int]] = {}
        self.rolled_back = 0


async def write(engine: AsyncEngine, plan: Plan, ledger: Ledger, chance: random.Random) -> None:
    """Add messages until there are enough."""
    while len(ledger.rows) < plan.rows:
        # In one order: two transactions that add to the same aggregates never wait for each other in a circle.
        aggregates = sorted(f"order-{chance.randrange(plan.aggregates)}" for _ in range(chance.randint(1, EACH)))
        fails, is_long = chance.randrange(plan.rolls_back) == 0, chance.randrange(plan.long) == 0
        written: dict[str, tuple[str, int]] = {}
        async with engine.connect() as connection:
            for aggregate in aggregates:
                added = await orders.add(connection, TOPIC, b"", aggregate=aggregate)
                written[added.key] = (aggregate, added.sequence or 0)
            if is_long:
                await asyncio.sleep(LONG * (1 + chance.random()))
            if fails:
                ledger.rolled_back += len(written)
                continue
            await connection.commit()
        ledger.rows |= written


def judged(ledger: Ledger, entries: Sequence[Mapping[bytes, bytes]]) -> Figures:
    """What the stream's entries are, held against the ledger."""
    last: defaultdict[str, int] = defaultdict(int)
    figures = Figures(committed=len(ledger.rows), arrived=len(entries), rolled_back=ledger.rolled_back)
    seen: set[str] = set()
    for entry in entries:
        key, aggregate, number = entry[b"key"].decode(), entry[b"aggregate"].decode(), int(entry[b"sequence"])
        figures.never_committed += ledger.rows.get(key) != (aggregate, number)
        if key in seen:
            figures.published_again += 1
            continue
        seen.add(key)
        figures.inversions += number != last[aggregate] + 1
        last[aggregate] = number
    figures.lost = len(ledger.rows.keys() - seen)
    return figures


class Run:
    """One run, with its servers and its relays."""

    def __init__(self, plan: Plan, server: PostgreSQLServer, redis: RedisServer, relays: Restarting) -> None:
        self._plan = plan
        self._server = server
        self._redis = redis
        self._relays = relays

    async def drive(self, database: str, console: Console) -> Ledger:
        """Write, and kill relays, until nothing waits any more."""
        plan, ledger, chance = self._plan, Ledger(), random.Random(self._plan.seed)
        engine = create_async_engine(self._server.url(database, "asyncpg"), pool_size=plan.writers, max_overflow=0)
        seeds = [random.Random(chance.random()) for _ in range(plan.writers)]
        writers = [asyncio.create_task(write(engine, plan, ledger, seed)) for seed in seeds]
        seen, since, next_kill = -1, time.monotonic(), plan.kill_every
        while time.monotonic() - since < PATIENCE:
            await asyncio.sleep(POLLED_EVERY)
            self._relays.mend()
            if (arrived := int(self._redis.command("XLEN", TOPIC))) != seen:
                seen, since = arrived, time.monotonic()
            if arrived >= next_kill:
                next_kill += plan.kill_every
                self._relays.shoot()
                console.print(f"{arrived} arrived, {self._relays.kills} kills")
            if all(writer.done() for writer in writers) and not self.left(database):
                break
        await asyncio.gather(*writers)
        await engine.dispose()
        return ledger

    def left(self, database: str) -> int:
        """Whether a message waits."""
        return len(self._server.execute("SELECT 1 FROM oncegate_outbox LIMIT 1", database))

    def entries(self) -> list[Mapping[bytes, bytes]]:
        """What the stream has."""
        with self._redis.client() as client:
            found: Any = client.xrange(TOPIC)
        return [fields for _, fields in found]


def perform(plan: Plan, console: Console) -> Figures:
    """Do it, with servers of its own."""
    with PostgreSQLServer() as server:
        return perform_on(server, plan, console)


def perform_on(server: PostgreSQLServer, plan: Plan, console: Console) -> Figures:
    """Do it, in a database of its own on ``server``."""
    began = time.monotonic()
    with RedisServer() as redis, tempfile.TemporaryDirectory() as folder:
        database, log = server.database(), Path(folder) / "relays.log"
        create(server.url(database, "psycopg"), orders.tables(MetaData()))
        command = ["-c", "from oncegate.app.cli.main import main; main()", "relay", "--to", redis.url]
        command += ["--database", server.url(database, "asyncpg"), "--log-level", "error"]
        with Restarting([command] * plan.relays, ENVIRONMENT, log, plan.seed, preloaded=PRELOADED) as relays:
            run = Run(plan, server, redis, relays)
            ledger = asyncio.run(run.drive(database, console))
        figures = judged(ledger, run.entries())
        figures.left, figures.kills = run.left(database), relays.kills
        figures.seconds = round(time.monotonic() - began, 1)
    return figures


if __name__ == "__main__":
    sys.exit(main(__doc__, Plan, perform))
