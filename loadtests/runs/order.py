"""Events of many aggregates, shuffled, twice, failing and with killed consumers: is each applied once, in its order?

    .venv/bin/python -m loadtests.runs.order --events 100000 --aggregates 1000

The producer numbers the events of each aggregate, shuffles them within a window, publishes some twice, and has some fail at their
first attempt. They go over RabbitMQ to consumers under an inbox with ``order="contiguous"`` on PostgreSQL
(`loadtests.runs.order_handler`), which are killed (SIGKILL) and kill themselves, and whose hook has its records in memory alone.

At the end each balance must be what the producer's events add up to, each account's last number the last one that was given out,
and no number may have come behind another one than that before it. Prints JSON; exit code 0 where that is so, 1 where not.
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aio_pika
from rich.console import Console

from loadtests import rabbit
from loadtests.runs.restarting import Restarting
from loadtests.runs.starting import CONSUMERS, main
from oncegate.sql.inbox.create import create
from testing.brokers import RabbitServer
from testing.command_line import ENVIRONMENT
from testing.postgresql import PostgreSQLServer

QUEUE = "deltas"
PUBLISHED_AT_ONCE = 500
POLLED_EVERY = 0.3
"""Seconds between two looks at how many events are applied."""
PATIENCE, LONGEST_PER_EVENT = 300.0, 0.1
"""Seconds after which a run is given up."""


@dataclass(frozen=True)
class Plan:
    """What to do. ``kill_every``: the events applied between two kills. ``dies_one_in``: a consumer kills itself once in so many
    transactions.
    """

    events: int = 100_000
    aggregates: int = 1_000
    window: int = 50
    twice: float = 0.05
    fail: float = 0.01
    consumers: int = 3
    kill_every: int = 5_000
    dies_one_in: int = 5_000
    seed: int = 1


@dataclass
class Figures:
    """What came of it."""

    events: int = 0
    published: int = 0
    kills: int = 0
    deaths: int = 0
    """How many have killed themselves."""
    applied: int = 0
    inversions: int = 0
    wrong_accounts: int = 0
    parked: int = 0
    dead_letters: int = 0
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """Whether each event was applied once, in its order."""
        wrong = self.inversions + self.wrong_accounts + self.parked + self.dead_letters
        return not wrong and self.applied == self.events


def events_of(plan: Plan) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """The producer's events, as they are numbered, and as they are published."""
    chance = random.Random(plan.seed)
    numbers: Counter[int] = Counter()
    made = []
    for _ in range(plan.events):
        account = chance.randrange(plan.aggregates)
        numbers[account] += 1
        fails = int(chance.random() < plan.fail)
        made.append(
            {"account": account, "number": numbers[account], "amount": chance.randrange(1, 1000), "fails": fails}
        )
    places = [(place + chance.uniform(0, plan.window), each) for place, each in enumerate(made)]
    places += [
        (place + chance.uniform(0, plan.window), each)
        for place, each in enumerate(made)
        if chance.random() < plan.twice
    ]
    return made, [each for _, each in sorted(places, key=lambda pair: pair[0])]


async def _publish(url: str, events: list[dict[str, int]]) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()  # with confirms
        await rabbit.declare(channel, QUEUE)
        for start in range(0, len(events), PUBLISHED_AT_ONCE):
            part = [aio_pika.Message(json.dumps(each).encode()) for each in events[start : start + PUBLISHED_AT_ONCE]]
            await asyncio.gather(*[channel.default_exchange.publish(each, QUEUE) for each in part])


async def _left(url: str) -> tuple[int, int]:
    """How many messages are in the queue, and among the dead letters."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        return await rabbit.count(channel, QUEUE), await rabbit.count(channel, f"{QUEUE}.dead")


def _make_tables(server: PostgreSQLServer, database: str, plan: Plan) -> None:
    create(server.url(database, "psycopg"), None)
    server.execute(
        "CREATE TABLE account (id INTEGER PRIMARY KEY, balance BIGINT NOT NULL, last INTEGER NOT NULL,"
        " inversions INTEGER NOT NULL)",
        database,
    )
    server.execute(
        f"INSERT INTO account SELECT id, 0, 0, 0 FROM generate_series(0, {plan.aggregates - 1}) AS id", database
    )


def _parked(server: PostgreSQLServer, database: str) -> int:
    return int(server.execute("SELECT count(*) FROM oncegate_parked", database)[0][0])


def perform(plan: Plan, console: Console) -> Figures:
    """One run from beginning to end. Raises ``TimeoutError`` where the consumers don't finish."""
    with PostgreSQLServer() as server, RabbitServer() as broker:
        return perform_on(server, broker.url, plan, console)


def perform_on(server: PostgreSQLServer, broker: str, plan: Plan, console: Console) -> Figures:
    """One run, in a database of its own, and in its queue of the ``broker``. Raises as `perform` does."""
    began = time.monotonic()
    made, published = events_of(plan)
    figures = Figures(events=len(made), published=len(published))
    with tempfile.TemporaryDirectory(prefix="oncegate-run-") as name:
        database = server.database()
        _make_tables(server, database, plan)
        asyncio.run(_publish(broker, published))
        command = ["-m", "loadtests.runs.order_handler", broker, QUEUE, server.url(database, "asyncpg")]
        commands = [[*command, str(plan.dies_one_in)]] * plan.consumers
        log = Path(name) / "consumers.log"
        with Restarting(commands, ENVIRONMENT, log, plan.seed, preloaded=CONSUMERS) as consumers:
            _until_applied(plan, server, database, consumers, console)
            # What was delivered twice; and outcomes that a killed consumer has not recorded: a sweep does that.
            while (left := asyncio.run(_left(broker)))[0] or _parked(server, database):
                consumers.mend()
                time.sleep(POLLED_EVERY)
        owed: Counter[int] = Counter()
        for each in made:
            owed[each["account"]] += each["amount"]
        rows: list[Any] = server.execute("SELECT id, balance, last, inversions FROM account", database)
        figures.wrong_accounts = sum(owed[account] != balance for account, balance, *_ in rows)
        figures.applied = sum(row[2] for row in rows)
        figures.inversions = sum(row[3] for row in rows)
        figures.parked = _parked(server, database)
        figures.dead_letters, figures.kills, figures.deaths = left[1], consumers.kills, consumers.deaths
        figures.seconds = round(time.monotonic() - began, 1)
    return figures


def _until_applied(
    plan: Plan, server: PostgreSQLServer, database: str, consumers: Restarting, console: Console
) -> None:
    """Kill consumers by what is applied, and not by time, until all of it is."""
    until, due = time.monotonic() + PATIENCE + plan.events * LONGEST_PER_EVENT, plan.kill_every // 2
    applied = 0
    while applied < plan.events:
        if time.monotonic() > until:
            raise TimeoutError(f"{applied} of {plan.events} events are applied")
        time.sleep(POLLED_EVERY)
        consumers.mend()
        applied = int(server.execute("SELECT sum(last) FROM account", database)[0][0])
        if applied >= due:
            due += plan.kill_every
            consumers.shoot()
            console.print(f"{applied} of {plan.events} applied, {consumers.kills} kills")


if __name__ == "__main__":
    sys.exit(main(__doc__, Plan, perform))
