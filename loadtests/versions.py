"""Writers with expected versions, on gateways that are killed: ``python -m loadtests.versions``.

Each of ``writers`` moves each of ``aggregates`` on ``rounds`` times: it sends the version that it believes in, learns by the
conflicts what the others have done, and sends the same command again until it has an answer, through any gateway, whatever is
killed. What is accepted is known from the answers, and held against the stream: accepted + conflicts = requests; the numbers of
each aggregate are 1 to n, each once; and no command that is in the stream was answered with a conflict.
"""

import argparse
import asyncio
import json
import random
import tempfile
from collections import Counter, defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from oncegate.cache.redis.streams.stream import Command, stream_key
from testing.gateway import Gateway
from testing.servers import RedisServer

ROUTES = [
    {"path": "/orders/*", "mode": "async", "on_missing_key": "reject", "aggregate": "path", "require_version": True}
]
RULES = {"lease": 3}
NAMESPACE = "versions"


@dataclass
class Tally:
    """What writers were answered: by command its number, and by kind how many answers ended a request."""

    numbers: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    """Aggregate, number and position of each command that was accepted, by its key."""
    refused: set[str] = field(default_factory=set)
    """Commands that were given up after a conflict."""
    answers: Counter[str] = field(default_factory=Counter)
    requests: int = 0


class Writer:
    """One caller. Its requests go on until they have an answer."""

    def __init__(self, client: httpx.AsyncClient, gateways: list[Gateway], tally: Tally, seed: int) -> None:
        self._client = client
        self._gateways = gateways
        self._tally = tally
        self._random = random.Random(seed)

    async def write(self, aggregates: int, rounds: int) -> None:
        """Move every aggregate on by a command ``rounds`` times, in an order of its own."""
        work = [str(each) for each in range(aggregates)] * rounds
        self._random.shuffle(work)
        versions: defaultdict[str, int] = defaultdict(int)
        for aggregate in work:
            versions[aggregate] = await self._command(aggregate, versions[aggregate])

    async def _command(self, aggregate: str, version: int) -> int:
        """One command, from the version that was seen last on, until it is accepted; the version that it made."""
        while True:
            key = uuid4().hex
            answer = await self._answer(aggregate, key, version)
            if answer["status"] == "accepted":
                self._tally.numbers[key] = aggregate, answer["sequence"], answer["position"]
                if answer["sequence"] != version + 1:
                    raise AssertionError(f"expected {version}, and got {answer['sequence']}")
                return version + 1
            self._tally.refused.add(key)
            version = answer["current"]

    async def _answer(self, aggregate: str, key: str, version: int) -> dict[str, Any]:
        self._tally.requests += 1
        headers = {"idempotency-key": key, "authorization": "Bearer alice", "expected-version": str(version)}
        while True:
            gateway = self._random.choice(self._gateways)
            with suppress(httpx.TransportError):
                response = await self._client.post(f"{gateway.url}/orders/{aggregate}", content=b"{}", headers=headers)
                answer: dict[str, Any] = response.json()
                code = answer.get("code", "accepted")
                if code in ("accepted", "version-conflict"):
                    self._tally.answers[code] += 1
                    return answer
                if code not in ("in-flight", "cache-unavailable", "overloaded"):
                    raise AssertionError(f"{response.status_code} {answer}")
            await asyncio.sleep(self._random.random() / 5)


async def _kill(gateways: list[Gateway], start: Any, kills: int, pause: float) -> None:
    """SIGKILL one after the other, each followed by a new one in its place."""
    for number in range(kills):
        await asyncio.sleep(pause)
        doomed = gateways[number % len(gateways)]
        fresh = start()
        await asyncio.to_thread(fresh.ready)
        doomed.kill()
        gateways[number % len(gateways)] = fresh


def run(*, writers: int, aggregates: int, rounds: int, gateways: int, kills: int, pause: float) -> dict[str, int]:
    """Run it, and count. Raises ``AssertionError`` for an oracle that does not hold."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server = stack.enter_context(RedisServer())

        def start() -> Gateway:
            log = Path(folder) / f"{uuid4().hex}.log"
            options: dict[str, Any] = {"namespace": NAMESPACE, "cache_timeout": 1, "log_level": "info"}
            gateway = Gateway(log, "http://127.0.0.1:1", server.url, routes=ROUTES, idempotency=RULES, **options)
            stack.callback(gateway.end)
            return gateway

        running = [start() for _ in range(gateways)]
        for gateway in running:
            gateway.ready()
        tally = Tally()
        asyncio.run(_all(running, start, tally, writers, aggregates, rounds, kills, pause))
        return _judge(server, tally)


async def _all(
    running: list[Gateway],
    start: Any,
    tally: Tally,
    writers: int,
    aggregates: int,
    rounds: int,
    kills: int,
    pause: float,
) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=20, limits=limits) as client, asyncio.TaskGroup() as group:
        group.create_task(_kill(running, start, kills, pause))
        for number in range(writers):
            group.create_task(Writer(client, running, tally, number).write(aggregates, rounds))


def _judge(server: RedisServer, tally: Tally) -> dict[str, int]:
    entries = server.command("XRANGE", stream_key(NAMESPACE, "commands"), "-", "+")
    held: defaultdict[str, list[int]] = defaultdict(list)
    appended: dict[str, tuple[str, int, str]] = {}
    for entry, fields in entries:
        command = Command.read(fields)
        number = command.sequence or 0
        _expect(command.key not in appended, "a command is in the stream twice")
        appended[command.key] = command.aggregate, number, entry.decode()
        held[command.aggregate].append(number)
    _expect(tally.answers["accepted"] + tally.answers["version-conflict"] == tally.requests, "a request has no answer")
    _expect(not tally.refused & set(appended), "the author of an accepted command was told of a conflict")
    _expect(appended == tally.numbers, "the stream has other commands than those that were accepted")
    for aggregate, numbers in held.items():
        _expect(numbers == list(range(1, len(numbers) + 1)), f"{aggregate} has the numbers {numbers}")
    return {
        "requests": tally.requests,
        "accepted": tally.answers["accepted"],
        "conflicts": tally.answers["version-conflict"],
        "aggregates": len(held),
    }


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def main() -> None:
    """Run it with the arguments of the command line, and print the counts as JSON."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.versions", description=__doc__)
    for name, default in (("writers", 8), ("aggregates", 100), ("rounds", 5), ("gateways", 3), ("kills", 6)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between kills")
    print(json.dumps(run(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
