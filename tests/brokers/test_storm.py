"""A storm under an order: windows of 1 to 50 messages, poison, consumers that are killed, on RabbitMQ and NATS, in both forms
that FastStream has. Nobody stands still for longer than the pauses allow, and balances are the producer's.

Rules of docs/contract.md: R12.16, R12.17.
"""

import asyncio
import random
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from loadtests.restarting import Restarting
from testing.command_line import ENVIRONMENT, invoke
from testing.postgresql import PostgreSQLServer
from tests.brokers.benches import BENCHES, KEY, Bench
from tests.brokers.storm_consumer import ACK_WAIT, LEASE, MAX_PAUSE
from tests.sql.places import SyncPlace

PRELOADED = ("tests.brokers.storm_consumer", "faststream.rabbit", "faststream.nats", "asyncpg")
WINDOWS = (1, 2, 5, 10, 20, 50)
POISON_PAUSES = 2 * MAX_PAUSE + 1 + 2
"""Seconds of pauses that a number takes that fails twice: the broker's, or those of what is parked (1 s, 2 s)."""
OF_A_KILL = LEASE + ACK_WAIT + MAX_PAUSE
"""Seconds until somebody else may go on with what a killed consumer held."""
STALLS = 20.0
"""Seconds that a busy machine may take besides, to start a process and to serve it: no measure of speed."""


@dataclass
class Plan:
    """Events of some aggregates, in which order they are published, and what they make of the balances."""

    chance: random.Random
    form: str
    accounts: int
    numbers: int
    events: list[dict[str, Any]] = field(default_factory=list)
    published: list[dict[str, Any]] = field(default_factory=list)
    balances: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        poisoned = self.chance.sample(range(self.accounts), 2)
        kinds = dict(zip(poisoned, ("for good", "twice"), strict=True))
        for account in range(self.accounts):
            # The last one decides what "latest" comes to: it is no poison.
            poison = self.chance.randrange(1, self.numbers) if account in kinds else 0
            for number in range(1, self.numbers + 1):
                event: dict[str, Any] = {
                    "key": f"{account}-{number}-{uuid4().hex}",
                    "account": account,
                    "number": number,
                    "amount": self.chance.randrange(1, 1000),
                    "poison": kinds[account] if number == poison else "",
                }
                self.events.append(event)
                if event["poison"] != "for good":
                    self.balances[account] = event["amount"] + (self.form == "transaction") * self.balances[account]
        self.published = self.events + self.chance.sample(self.events, len(self.events) // 10)
        # Mostly backwards: nearly everything is early.
        self.published.sort(key=lambda event: self.chance.uniform(0, 20) - event["number"])

    @property
    def dead(self) -> dict[str, Any]:
        """The one that is given up."""
        return next(event for event in self.events if event["poison"] == "for good")

    @property
    def waits(self) -> int:
        """The aggregate that waits for an operator."""
        return int(self.dead["account"])


class Storm:
    """One run: what is published, consumers that are killed meanwhile, and who stands still."""

    def __init__(self, bench: Bench, plan: Plan, database: SyncPlace, kills: int) -> None:
        self._bench = bench
        self._plan = plan
        self._database = database
        self._kills = kills

    async def publish(self) -> None:
        for event in self._plan.published:
            headers = {
                KEY: event["key"],
                "oncegate-aggregate": str(event["account"]),
                "oncegate-sequence": str(event["number"]),
            }
            await self._bench.publish(event, headers)

    def last(self) -> dict[int, int]:
        return {row.id: row.last for row in self._database.execute("SELECT id, last FROM account")}

    async def rage(self, consumers: Restarting) -> None:
        """Until all aggregates are done but the one that waits. Raises `AssertionError` where one stands still."""
        began, killed_at = time.monotonic(), 0.0
        moved, last = dict.fromkeys(range(self._plan.accounts), began), self.last()
        while True:
            await asyncio.sleep(0.05)
            await asyncio.to_thread(consumers.mend)
            now, found = time.monotonic(), await asyncio.to_thread(self.last)
            done = {account for account, number in found.items() if number == self._plan.numbers}
            for account, number in found.items():
                if number != last[account] or account in done:
                    moved[account] = now
            last = found
            others = found.keys() - done - ({self._plan.waits} if self._plan.form == "transaction" else set())
            if not others:
                return
            still = max(now - moved[account] for account in others)
            allowed = POISON_PAUSES + (1 + self._kills) * OF_A_KILL + STALLS
            assert still < allowed, f"{others} stand still for {still:.1f} s: {found}"
            if consumers.kills < self._kills and now - killed_at > 0.5 and self._plan.chance.random() < 0.2:
                killed_at = now
                await asyncio.to_thread(consumers.shoot)

    async def becomes(self, wanted: dict[int, int], consumers: Restarting) -> None:
        deadline = time.monotonic() + 60
        while (found := await asyncio.to_thread(self.balances)) != wanted:
            assert time.monotonic() < deadline, f"{found} instead of {wanted}"
            await asyncio.to_thread(consumers.mend)
            await asyncio.sleep(0.05)

    def balances(self) -> dict[int, int]:
        return {row.id: row.balance for row in self._database.execute("SELECT id, balance FROM account")}

    def inversions(self) -> int:
        return int(self._database.execute("SELECT sum(inversions) AS n FROM account")[0].n)


async def storm(
    kind: str,
    form: str,
    *,
    url: str,
    redis_url: str,
    postgresql: PostgreSQLServer,
    folder: Path,
    seed: str,
    window: int,
    numbers: int,
    kills: int,
    consumers: int = 2,
) -> None:
    """One storm. Raises `AssertionError` for what went wrong."""
    chance = random.Random(seed)
    plan = Plan(chance, form, accounts=5, numbers=numbers)
    name = postgresql.database()
    place = SyncPlace(postgresql.url(name, "psycopg"))
    place.prepare()
    postgresql.execute("CREATE TABLE account (id INTEGER, balance INTEGER, last INTEGER, inversions INTEGER)", name)
    postgresql.execute(
        f"INSERT INTO account SELECT id, 0, 0, 0 FROM generate_series(0, {plan.accounts - 1}) AS id", name
    )
    bench = BENCHES[kind](url)
    await bench.open()
    run = Storm(bench, plan, place, kills)
    await run.publish()
    command = ["-m", "tests.brokers.storm_consumer", kind, form, url, bench.name, redis_url]
    commands = [[*command, postgresql.url(name, "asyncpg"), str(window)] for _ in range(consumers)]
    with ExitStack() as stack:
        running = Restarting(
            commands, ENVIRONMENT, folder / "consumers.log", chance.randrange(1000), preloaded=PRELOADED
        )
        stack.enter_context(running)
        await run.rage(running)
        while running.kills < kills:
            await asyncio.to_thread(running.shoot)
        if form == "transaction":
            await given_up(bench, plan, place, running)
        await run.becomes(dict(plan.balances), running)
    assert running.deaths == 0, "nobody dies but by our hand"
    # The one number that an operator has skipped is a gap.
    assert run.inversions() == (1 if form == "transaction" else 0)
    assert {event["key"] for event in await bench.dead()} <= {plan.dead["key"]}
    await bench.clear()
    await bench.close()
    place.sync_engine.dispose()


async def given_up(bench: Bench, plan: Plan, place: SyncPlace, running: Restarting) -> None:
    """The aggregate of the poison waits, is seen by operators, and goes on once one has skipped the number."""
    shown = await asyncio.to_thread(invoke, "inbox", "waiting", "--database", place.url, "--json")
    deadline = time.monotonic() + 60
    while f'"{plan.waits}"' not in shown.stdout or "NotRetryable" not in shown.stdout:
        assert time.monotonic() < deadline, f"{shown.stdout}{shown.stderr}"
        await asyncio.to_thread(running.mend)
        await asyncio.sleep(0.1)
        shown = await asyncio.to_thread(invoke, "inbox", "waiting", "--database", place.url, "--json")
    number = str(plan.dead["number"])
    arguments = (
        "ledger",
        str(plan.waits),
        "--sequence",
        number,
        "--reason",
        "no such account",
        "--database",
        place.url,
    )
    done = await asyncio.to_thread(invoke, "inbox", "skip", *arguments)
    assert done.returncode == 0, done.stderr


@pytest.fixture(params=["rabbit", "nats"])
def broker(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A broker's kind and URL."""
    return request.param, request.getfixturevalue(f"{request.param}_broker_url")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", ["transaction", "middleware"])
async def test_in_a_storm_nobody_stands_still_and_balances_are_right(
    broker: tuple[str, str], form: str, redis_url: str, postgresql: PostgreSQLServer, tmp_path: Path
) -> None:
    kind, url = broker
    seed = f"{kind} {form}"
    window = random.Random(seed).choice(WINDOWS[1:])
    await storm(
        kind,
        form,
        url=url,
        redis_url=redis_url,
        postgresql=postgresql,
        folder=tmp_path,
        seed=seed,
        window=window,
        numbers=12,
        kills=1,
    )


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("form", ["transaction", "middleware"])
async def test_in_long_storms_with_each_window(
    broker: tuple[str, str], form: str, window: int, redis_url: str, postgresql: PostgreSQLServer, tmp_path: Path
) -> None:
    kind, url = broker
    await storm(
        kind,
        form,
        url=url,
        redis_url=redis_url,
        postgresql=postgresql,
        folder=tmp_path,
        seed=f"{kind} {form} {window}",
        window=window,
        numbers=80,
        kills=6,
    )


@pytest.mark.long
@pytest.mark.timeout(7200)
async def test_two_hundred_small_storms(
    rabbit_broker_url: str, redis_url: str, postgresql: PostgreSQLServer, tmp_path: Path
) -> None:
    """More early messages than the window takes, and a kill at any instant."""
    for number in range(200):
        seed = f"small {number}"
        draw = random.Random(seed)
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            await storm(
                "rabbit",
                "transaction",
                url=rabbit_broker_url,
                redis_url=redis_url,
                postgresql=postgresql,
                folder=folder,
                seed=seed,
                window=draw.randint(1, 12),
                numbers=draw.randint(3, 12),
                kills=1,
                consumers=draw.randint(1, 2),
            )
        except AssertionError as error:
            raise AssertionError(f"storm {seed!r}: {error}") from error
