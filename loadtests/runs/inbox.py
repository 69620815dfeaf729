"""Thousands of payments, while consumers and their database are killed at random: do the balances equal what was sent?

    .venv/bin/python -m loadtests.runs.inbox --messages 20000 --way gateway
    .venv/bin/python -m loadtests.runs.inbox --messages 20000 --way rabbitmq
    .venv/bin/python -m loadtests.runs.inbox --messages 20000 --way rabbitmq-records

Ways: over HTTP to a gateway, by its Redis stream to ``oncegate worker``; or over RabbitMQ to consumers with the hook, whose
records are in memory alone, or in that PostgreSQL, without any Redis. The handler adds an amount to an account in PostgreSQL
and checks nothing; the inbox stands before it (`loadtests.runs.inbox_handler`). Consumers are killed (SIGKILL) and started
anew, and kill themselves in their transactions and right behind them; PostgreSQL is crashed and started again, or loses a
process, after which it restarts by itself. Some messages are sent twice at the same time, some again later, some are
published again; of the gateway's Redis, records of the hook are deleted.

The producer writes each payment into a file before it sends it. At the end the balances must be what that file adds up to.
Prints JSON; exit code 0 where they are, 1 where not.
"""

import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.progress import Progress

from loadtests.runs.inbox_handler import (
    DATABASE,
    DIED_AFTER,
    DIED_BEFORE,
    DIES,
    EXECUTED,
    LEASE,
    OUTCOMES,
    RECORDS,
    SKIPPED,
)
from loadtests.runs.inbox_ways import ON_RECORDS, WAYS, Way
from loadtests.runs.restarting import Restarting
from loadtests.runs.starting import CONSUMERS, main, progress
from oncegate.cache.sql.postgresql import statements
from oncegate.sql.inbox.create import create
from testing.command_line import ENVIRONMENT
from testing.postgresql import PostgreSQLServer

AT_ONCE, LATER, AGAIN = 0.05, 0.05, 0.1
"""Shares of the payments that are sent twice at the same time, sent again later, and published again."""
DATABASE_ONE_IN = 6
"""Of the shots, those at the database; every second one of these crashes it as a whole."""
BACK_WITHIN = 60.0
POLLED_EVERY = 0.3
"""Seconds between two looks at how many payments are marked."""
PATIENCE, LONGEST_PER_MESSAGE = 300.0, 0.1
"""Seconds after which a run is given up."""


@dataclass(frozen=True)
class Plan:
    """What to do. ``kill_every``: the messages processed between two shots. ``dies_one_in``: a handler kills itself once in so
    many calls.
    """

    messages: int = 20_000
    way: str = field(default="gateway", metadata={"choices": [*WAYS]})
    consumers: int = 3
    producers: int = 16
    accounts: int = 500
    kill_every: int = field(default=250, metadata={"metavar": "MESSAGES"})
    dies_one_in: int = 500
    seed: int = 1


@dataclass
class Figures:
    """What came of it."""

    messages: int = 0
    sent: int = 0
    published_again: int = 0
    refused: int = 0
    kills: int = 0
    deaths_before_commit: int = 0
    deaths_after_commit: int = 0
    database_crashes: int = 0
    database_processes_killed: int = 0
    records_forgotten: int = 0
    executed: int = 0
    skipped: int = 0
    markers: int = 0
    dead_letters: int = 0
    wrong_accounts: int = 0
    owed: int = 0
    booked: int = 0
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """Whether each payment was booked once."""
        return not (self.wrong_accounts or self.dead_letters) and self.markers == self.messages


class Ledger:
    """The producer's file: a line for each payment, written before it is sent."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def write(self, key: str, payment: dict[str, int]) -> None:
        """Before it is sent."""
        with self._path.open("a") as file:
            file.write(json.dumps({"key": key, **payment}) + "\n")

    def balances(self) -> Counter[int]:
        """By account, what all payments add up to."""
        owed: Counter[int] = Counter()
        for line in self._path.read_text().splitlines():
            payment = json.loads(line)
            owed[payment["account"]] += payment["amount"]
        return owed


class Accounts:
    """The accounts, in a PostgreSQL on which somebody shoots."""

    def __init__(self, server: PostgreSQLServer, accounts: int, seed: int) -> None:
        self.crashes = 0
        self.processes_killed = 0
        self._server = server
        self._chance = random.Random(seed)
        self._database = server.database()
        self.url = server.url(self._database, "asyncpg")
        self.records = f"postgresql://postgres@127.0.0.1:{server.port}/{self._database}"
        create(server.url(self._database, "psycopg"), None)
        self._execute(statements.TABLES)
        self._execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance BIGINT NOT NULL)")
        self._execute(f"INSERT INTO account SELECT id, 0 FROM generate_series(0, {accounts - 1}) AS id")

    def _execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Its rows, once the database is up again."""
        until = time.monotonic() + BACK_WITHIN
        while True:
            try:
                return self._server.execute(statement, self._database)
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.1)

    def shoot(self) -> None:
        """Crash it and start it again, or kill one of its processes, after which it ends the others and restarts by itself."""
        if (self.crashes + self.processes_killed) % 2 == 0:
            self._server.stop()
            self._server.start()
            self.crashes += 1
            return
        serving = self._execute("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(self._chance.choice(serving)[0], signal.SIGKILL)
            self.processes_killed += 1

    def balances(self) -> Counter[int]:
        """By account."""
        return Counter(dict(self._execute("SELECT id, balance FROM account WHERE balance <> 0")))

    def markers(self) -> int:
        """How many messages are marked as processed."""
        return int(self._execute("SELECT count(*) FROM oncegate_inbox")[0][0])


class Run:
    """One run of ``plan``."""

    def __init__(self, plan: Plan, way: Way, accounts: Accounts, ledger: Ledger, consumers: Restarting) -> None:
        self.plan = plan
        self.sent = 0
        self._way = way
        self._accounts = accounts
        self._ledger = ledger
        self._consumers = consumers

    async def drive(self, bars: Progress) -> None:
        """Send, and wait for the end. Raises ``TimeoutError``, in a group."""
        async with asyncio.TaskGroup() as group, self._way.open():
            mending, shooting = group.create_task(self._mend()), group.create_task(self._shoot_all())
            async with asyncio.timeout(PATIENCE + self.plan.messages * LONGEST_PER_MESSAGE):
                await self._send_all(bars)
                await shooting
                await self._until_done(bars)
            self.dead_letters = await self._way.dead_letters()
            mending.cancel()

    async def _send_all(self, bars: Progress) -> None:
        bar = bars.add_task("sent", total=self.plan.messages)
        numbers = iter(range(self.plan.messages))

        async def producer() -> None:
            for number in numbers:
                await self._send_one(number)
                bars.advance(bar)

        async with asyncio.TaskGroup() as group:
            for _ in range(self.plan.producers):
                group.create_task(producer())

    async def _send_one(self, number: int) -> None:
        """What happens to which payment follows from the plan's seed and its number alone."""
        key, payment = payment_of(self.plan, number)
        self._ledger.write(key, payment)
        chance = random.Random(f"fate {self.plan.seed} {number}")
        fate = chance.random()
        await asyncio.gather(*[self._send(number) for _ in range(2 if fate < AT_ONCE else 1)])
        if AT_ONCE <= fate < AT_ONCE + LATER and number:
            await self._send(chance.randrange(number))
        if fate > 1 - AGAIN:
            await self._way.publish_again()

    async def _send(self, number: int) -> None:
        key, payment = payment_of(self.plan, number)
        await self._way.send(key, json.dumps(payment).encode())
        self.sent += 1

    async def _shoot_all(self) -> None:
        """At a consumer, or at the database, while everybody else goes on: by what is done, and not by time."""
        shots, due = 0, self.plan.kill_every // 2
        while due < self.plan.messages:
            await asyncio.sleep(POLLED_EVERY)
            if await asyncio.to_thread(self._accounts.markers) < due:
                continue
            due += self.plan.kill_every
            shots += 1
            self._way.forget()
            if shots % DATABASE_ONE_IN == 2:
                await asyncio.to_thread(self._accounts.shoot)
            else:
                self._consumers.shoot()

    async def _mend(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            self._consumers.mend()

    async def _until_done(self, bars: Progress) -> None:
        """Until nothing is left, and every payment of the ledger has its marker; then a look would find no more to come."""
        bar = bars.add_task("to do", total=self.plan.messages)
        idle = 0
        while idle < 3:
            await asyncio.sleep(POLLED_EVERY)
            marked = await asyncio.to_thread(self._accounts.markers)
            bars.update(bar, completed=marked)
            idle = idle + 1 if await self._way.is_idle() and marked >= self.plan.messages else 0


def payment_of(plan: Plan, number: int) -> tuple[str, dict[str, int]]:
    """A payment and its idempotency key."""
    chance = random.Random(f"{plan.seed} {number}")
    return f"payment-{number}", {"account": chance.randrange(plan.accounts), "amount": chance.randrange(1, 1000)}


def perform(plan: Plan, console: Console, broker: str = "") -> Figures:
    """One run from beginning to end; on the RabbitMQ at ``broker``, else on one of its own.

    Raises ``TimeoutError`` where consumers don't finish.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="oncegate-run-") as name, PostgreSQLServer() as server:
        folder = Path(name)
        with WAYS[plan.way](folder, plan.seed, broker) as (way, command), progress(console) as bars:
            accounts, ledger = Accounts(server, plan.accounts, plan.seed), Ledger(folder / "ledger")
            outcomes = folder / "outcomes"
            environment = ENVIRONMENT | {
                "ONCEGATE_IDEMPOTENCY__LEASE": str(LEASE),
                "ONCEGATE_LOG_LEVEL": "error",
                DATABASE: accounts.url,
                OUTCOMES: str(outcomes),
                DIES: str(plan.dies_one_in),
                RECORDS: accounts.records if plan.way == ON_RECORDS else "memory://",
            }
            log = folder / "consumers.log"
            with Restarting([command] * plan.consumers, environment, log, plan.seed, preloaded=CONSUMERS) as consumers:
                run = Run(plan, way, accounts, ledger, consumers)
                asyncio.run(run.drive(bars))
            noted = Counter(outcomes.read_text().splitlines())
            owed, booked = ledger.balances(), accounts.balances()
            return Figures(
                messages=plan.messages,
                sent=run.sent,
                published_again=way.published_again,
                refused=way.refused,
                kills=consumers.kills,
                deaths_before_commit=noted[DIED_BEFORE],
                deaths_after_commit=noted[DIED_AFTER],
                database_crashes=accounts.crashes,
                database_processes_killed=accounts.processes_killed,
                records_forgotten=way.records_forgotten,
                executed=noted[EXECUTED],
                skipped=noted[SKIPPED],
                markers=accounts.markers(),
                dead_letters=run.dead_letters,
                wrong_accounts=sum(owed[account] != booked[account] for account in owed.keys() | booked.keys()),
                owed=owed.total(),
                booked=booked.total(),
                seconds=round(time.monotonic() - began, 1),
            )


if __name__ == "__main__":
    sys.exit(main(__doc__, Plan, perform))
