"""Thousands of commands through a real gateway, while the workers that process them are killed at random: is each booked once?

    .venv/bin/python -m loadtests.commands_run --commands 20000

A redis-server, a gateway and some workers are started on loopback. Every command is submitted, some twice at the same time,
some again later; some of their entries are published again under new ids. Meanwhile workers are killed (SIGKILL) and started
anew, and the handler kills its own process now and then between its effect and the record of it. At the end the books of
the handler, an SQLite file, must hold exactly the keys that were accepted.

A third of the bodies is compressed, and now and then the handler raises what is no ``Exception``, hangs or ends its worker. A
fifth of the commands is forwarded, by a worker that is shot at too, to a service that is now and then slower than the gateway in
front of it waits. Redis is full again and again (``maxmemory``): what is refused then is submitted again.

The handler checks before it acts, so no key is booked twice; how often it was entered for a key that it had entered before
is the number of executions in the documented window, and it is told. Exit code 0 where the books are right, 1 where not.
"""

import asyncio
import gzip
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from redis.exceptions import OutOfMemoryError
from rich.console import Console
from rich.progress import Progress

from loadtests.commands_handler import BOOKS, DIES, FAILS, open_books
from loadtests.commands_service import RESPONSE_TIMEOUT, slow_service
from loadtests.restarting import Restarting
from loadtests.runs import main, progress, submissions
from oncegate.cache.redis.streams.stream import dead_letters_key, stream_key
from testing.command_line import ENVIRONMENT
from testing.gateway import Gateway
from testing.servers import RedisServer

WORKER = ["-c", "from oncegate.app.cli.main import main; main()", "worker"]
NAMESPACE, ROUTE = "run", "/bookings"
SLOW_ROUTE, SLOW_STREAM, FORWARDED_ONE_IN = "/slow-bookings", "slow", 5
"""Every fifth command is forwarded to the slow service."""
FULL_SECONDS, ROOM_SECONDS, ROOM_BYTES = 0.4, 1.2, 64 * 1024 * 1024
"""For how long Redis is full, and for how long it has room again, and how much."""
LONGEST_SECONDS, LONGEST_PER_COMMAND = 300.0, 0.2
"""After which a run is given up while it submits."""
AGAIN_AT_ONCE, AGAIN_LATER, COPIED = 0.05, 0.05, 0.05
"""Shares of the commands that are submitted twice at the same time, submitted again later, and published again."""
PATIENCE = 300.0
"""Seconds for the workers to finish once everything is submitted and nobody is killed any more."""


@dataclass(frozen=True)
class Plan:
    """What to do. ``kill_every`` are the submissions accepted between two kills; ``dies_one_in`` and ``fails_one_in``: see
    the handler.

    Neither is a time, so that a fast machine has its share of kills too. ``lease``: the seconds until what a killed worker held
    is taken over. What happens to which command follows from ``seed`` and its number alone.
    """

    commands: int = 20_000
    workers: int = 3
    callers: int = 24
    kill_every: int = field(default=250, metadata={"metavar": "COMMANDS"})
    dies_one_in: int = field(default=500, metadata={"metavar": "CALLS"})
    fails_one_in: int = field(default=50, metadata={"metavar": "CALLS"})
    lease: float = field(default=3.0, metadata={"metavar": "SECONDS"})
    seed: int = 1


@dataclass
class Figures:
    """What came of it."""

    commands: int = 0
    submissions: int = 0
    answers: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    times_full: int = 0
    forwarded: int = 0
    published_again: int = 0
    entries: int = 0
    copies_skipped: int = 0
    kills: int = 0
    deaths_in_the_window: int = 0
    handler_entries: int = 0
    executed_again: int = 0
    booked: int = 0
    missing: int = 0
    unknown: int = 0
    dead_letters: int = 0
    seconds_submitting: float = 0.0
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """Whether the books hold exactly what was accepted."""
        return not (self.missing or self.unknown or self.dead_letters) and self.booked == self.commands


class Workers(Restarting):
    """The workers, on whom somebody shoots. The first of them forwards."""

    def __init__(self, plan: Plan, redis_url: str, folder: Path, service: str) -> None:
        environment = ENVIRONMENT | {
            "ONCEGATE_IDEMPOTENCY__LEASE": str(plan.lease),
            "ONCEGATE_LOG_LEVEL": "warning",
            BOOKS: str(folder / "books.sqlite"),
            DIES: str(plan.dies_one_in),
            FAILS: str(plan.fails_one_in),
        }
        worker = [*WORKER, "--cache", redis_url, "--namespace", NAMESPACE]
        forwarding = [*worker, "--stream", SLOW_STREAM, "--forward", service]
        handling = [*worker, "--handler", "loadtests.commands_handler:book"]
        super().__init__([forwarding, *[handling] * plan.workers], environment, folder / "workers.log", plan.seed)


class Run:
    """One run of ``plan``."""

    def __init__(self, plan: Plan, server: RedisServer, gateway: Gateway, workers: Workers) -> None:
        self.plan = plan
        self.figures = Figures(commands=plan.commands)
        self._accepted = 0
        self._redis: Any = server.client()
        self._gateway = gateway
        self._workers = workers
        self._answers: Counter[str] = Counter()
        self._stream = stream_key(NAMESPACE, "commands")
        self._streams = (self._stream, stream_key(NAMESPACE, SLOW_STREAM))

    async def submit_all(self, bars: Progress) -> None:
        """Submit every command, and some of them again."""
        bar = bars.add_task("accepted", total=self.plan.commands)
        numbers = iter(range(self.plan.commands))
        limits = httpx.Limits(max_connections=self.plan.callers)
        async with httpx.AsyncClient(base_url=self._gateway.url, limits=limits, timeout=60, trust_env=False) as client:

            async def caller() -> None:
                for number in numbers:
                    fate = random.Random(f"{self.plan.seed}-{number}")
                    chance = fate.random()
                    twice = chance < AGAIN_AT_ONCE
                    await asyncio.gather(*[self._submit(client, number) for _ in range(1 + twice)])
                    if AGAIN_AT_ONCE <= chance < AGAIN_AT_ONCE + AGAIN_LATER and number:
                        await self._submit(client, fate.randrange(number))  # long ago, or just now
                    if chance > 1 - COPIED:
                        self._publish_again()
                    bars.advance(bar)

            await asyncio.gather(*[caller() for _ in range(self.plan.callers)])

    async def _submit(self, client: httpx.AsyncClient, number: int) -> None:
        headers = {"idempotency-key": key_of(number), "content-type": "application/json"}
        body = b'{"number": %d}' % number
        if number % 3 == 0:
            headers["content-encoding"] = "gzip"
            body = gzip.compress(body, mtime=0)
        route = SLOW_ROUTE if number % FORWARDED_ONE_IN == 0 else ROUTE
        while True:
            answer = await client.post(route, content=body, headers=headers)
            self.figures.submissions += 1
            self._answers[_kind(answer)] += 1
            if answer.status_code == 202:
                self._accepted += 1
                if self._accepted % self.plan.kill_every == 0:
                    self._workers.shoot()
                return
            self.figures.refused += answer.status_code == 503
            if answer.status_code not in (409, 503):
                raise RuntimeError(f"a submission was answered {answer.status_code}: {answer.text}")
            await asyncio.sleep(0.05)

    def _publish_again(self) -> None:
        """A copy of the newest entry, under a new id, as a broker makes it that redelivers what it published."""
        newest = self._redis.xrevrange(self._stream, count=1)
        if newest:
            try:
                self._redis.xadd(self._stream, newest[0][1])
            except OutOfMemoryError:
                return
            self.figures.published_again += 1

    async def mend(self) -> None:
        """Replace the workers that died."""
        while True:
            await asyncio.sleep(0.05)
            self._workers.mend()

    async def fill(self) -> None:
        """Leave Redis no memory, then some again, over and over."""
        while True:
            await asyncio.sleep(ROOM_SECONDS)
            used = int(self._redis.info("memory")["used_memory"])
            self._redis.config_set("maxmemory", used)
            self.figures.times_full += 1
            await asyncio.sleep(FULL_SECONDS)
            self._redis.config_set("maxmemory", used + ROOM_BYTES)

    async def until_done(self, bars: Progress) -> None:
        """Wait until everything was delivered and acknowledged. Raises ``TimeoutError``."""
        bar = bars.add_task("to do", total=None)
        async with asyncio.timeout(PATIENCE):
            while left := self._left():
                bars.update(bar, description=f"{left} to do")
                await asyncio.sleep(0.1)
        bars.update(bar, description="nothing left to do")

    def _left(self) -> int:
        return sum(self._left_in(stream) for stream in self._streams if self._redis.exists(stream))

    def _left_in(self, stream: str) -> int:
        groups = self._redis.xinfo_groups(stream)
        if not groups:
            return 1
        newest = self._redis.xinfo_stream(stream)["last-generated-id"]
        return int(groups[0]["pending"]) or int(groups[0]["last-delivered-id"] != newest)

    def count(self, books: str) -> Figures:
        """Compare the books with what was accepted."""
        figures = self.figures
        figures.answers = dict(self._answers)
        figures.entries = sum(int(self._redis.xinfo_stream(stream)["entries-added"]) for stream in self._streams)
        figures.forwarded = int(self._redis.xinfo_stream(self._streams[1])["entries-added"])
        figures.copies_skipped = figures.entries - figures.commands
        figures.kills, figures.deaths_in_the_window = self._workers.kills, self._workers.deaths
        figures.dead_letters = sum(
            int(self._redis.xlen(dead_letters_key(NAMESPACE, name))) for name in ("commands", SLOW_STREAM)
        )
        accepted = {key_of(number) for number in range(self.plan.commands)}
        connection = open_books(books)
        booked = {key for (key,) in connection.execute("SELECT key FROM booked")}
        (figures.handler_entries,) = connection.execute("SELECT count(*) FROM entered").fetchone()
        connection.close()
        figures.booked = len(booked)
        figures.executed_again = figures.handler_entries - figures.booked
        figures.missing, figures.unknown = len(accepted - booked), len(booked - accepted)
        return figures


def _kind(answer: httpx.Response) -> str:
    """Its status, and whether it was stored, or why it was refused: by the watermark (``overloaded``), or out of memory."""
    if answer.status_code == 503:
        return f"503 {answer.json()['code']}"
    return f"{answer.status_code} {answer.headers.get('cache-status', '').partition(';')[2].strip()[:3]}"


def key_of(number: int) -> str:
    """The idempotency key of a command."""
    return f"run-{number}"


@contextmanager
def machinery(plan: Plan, folder: Path) -> Iterator[Run]:
    """Redis, a gateway and the workers."""
    books = str(folder / "books.sqlite")
    open_books(books).close()
    with RedisServer(config={"maxmemory-policy": "noeviction"}) as server, slow_service(books) as service:
        behind = Gateway(
            folder / "service.log",
            service,
            server.url,
            namespace="service",
            log_level="info",
            idempotency={"lease": plan.lease, "on_missing_key": "reject", "response_timeout": RESPONSE_TIMEOUT},
        )
        routes = [{"path": ROUTE, "mode": "async"}, {"path": SLOW_ROUTE, "mode": "async", "stream": SLOW_STREAM}]
        gateway = submissions(folder / "gateway.log", server.url, NAMESPACE, routes, lease=plan.lease)
        workers = Workers(plan, server.url, folder, behind.ready().url)
        try:
            yield Run(plan, server, gateway.ready(), workers)
        finally:
            workers.end()
            gateway.end()
            behind.end()


async def drive(run: Run, bars: Progress) -> None:
    """Submit, and wait for the end."""
    began = time.monotonic()
    mending, filling = asyncio.create_task(run.mend()), asyncio.create_task(run.fill())
    try:
        async with asyncio.timeout(LONGEST_SECONDS + run.plan.commands * LONGEST_PER_COMMAND):
            await run.submit_all(bars)
        run.figures.seconds_submitting = round(time.monotonic() - began, 1)
        await run.until_done(bars)
    finally:
        mending.cancel()
        filling.cancel()
    run.figures.seconds = round(time.monotonic() - began, 1)


def perform(plan: Plan, console: Console) -> Figures:
    """One run from beginning to end. Raises ``TimeoutError`` where the workers don't finish."""
    with tempfile.TemporaryDirectory(prefix="oncegate-run-") as folder, machinery(plan, Path(folder)) as run:
        with progress(console) as bars:
            asyncio.run(drive(run, bars))
        return run.count(str(Path(folder) / "books.sqlite"))


if __name__ == "__main__":
    sys.exit(main(__doc__, Plan, perform))
