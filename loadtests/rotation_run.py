"""``python -m loadtests.rotation_run``: secrets and encryption keys are introduced and replaced, while clients retry all along.

Gateways are replaced in turn, from one step of the rotation to the next (testing/rotation.py), once its successor serves. The
upstream counts what arrives. A key is retried for as long as its record lives, of both kinds of gateways and of many clients at
once. No key may arrive twice, and no record be unreadable. ``--at-once`` leaves the steps between out: then both happen.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from testing.gateway import Gateway
from testing.rotation import STEPS
from testing.servers import RedisServer
from testing.upstreams import Peer, Upstream

OF_STEP = 0.8
"""The time to live, as a part of a step's length: when one ends, what was written before it is gone."""
RETRIED = 0.6
"""For which part of its time to live a key is retried."""
PATIENCE = 60.0


@dataclass
class Run:
    """What has happened so far."""

    folder: Path
    ttl: float
    arrivals: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    """Answers, by what they were."""
    bodies: dict[str, bytes] = field(default_factory=dict)
    recent: list[tuple[float, str]] = field(default_factory=list)
    """When each key was answered first."""
    gateways: list[Gateway] = field(default_factory=list)
    restarts: int = 0
    over: bool = False
    serving: asyncio.Event = field(default_factory=asyncio.Event)

    async def upstream(self, peer: Peer) -> None:
        """Counts what arrives by its key; what it answers no other arrival gets."""
        while True:
            request = await peer.request()
            self.arrivals[request.value("idempotency-key") or ""] += 1
            await asyncio.sleep(random.uniform(0, 0.02))
            body = uuid4().hex.encode()
            await peer.send(b"HTTP/1.1 201 Created\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    def key(self) -> str:
        """A new one, or one whose record lives."""
        until = time.monotonic() - self.ttl * RETRIED
        while self.recent and self.recent[0][0] < until:
            self.recent.pop(0)
        if self.recent and random.random() < 0.6:
            return random.choice(self.recent)[1]
        return uuid4().hex

    async def pay(self, client: httpx.AsyncClient, key: str) -> None:
        """Send a request until it is answered for good."""
        began = time.monotonic()
        while time.monotonic() < began + PATIENCE:
            gateway = random.choice(self.gateways)
            try:
                answer = await client.post(f"{gateway.url}/pay", headers={"Idempotency-Key": key}, content=key.encode())
            except httpx.TransportError:
                self.seen["connection lost"] += 1
                continue
            if answer.status_code == 201:
                self.seen["replayed" if "idempotent-replayed" in answer.headers else "executed"] += 1
                if self.bodies.setdefault(key, answer.content) != answer.content:
                    self.seen["another answer"] += 1
                return
            code = answer.json()["code"]
            self.seen[code] += 1
            if code == "record-unreadable":
                return
            await asyncio.sleep(0.02)
        self.seen["never answered"] += 1

    async def client(self) -> None:
        """Sends new and old keys, each by one, two or three copies at once."""
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            while not self.over:
                key = self.key()
                new = key not in self.bodies
                await asyncio.gather(*[self.pay(client, key) for _ in range(random.randint(1, 3))])
                if new:
                    self.recent.append((time.monotonic(), key))

    def start(self, upstream: str, cache: str, step: dict[str, Any]) -> Gateway:
        """A gateway of a step, which serves."""
        rules = {"ttl": self.ttl, "error_ttl": min(self.ttl, 1), "lease": 15}
        name = self.folder / f"{uuid4().hex}.log"
        settings = {"cache_timeout": 5, "log_level": "info", **step}
        return Gateway(name, upstream, cache, idempotency=rules, **settings).ready()

    async def rotate(self, upstream: str, cache: str, steps: list[dict[str, Any]], count: int, length: float) -> None:
        """Every step in turn: replace one gateway after the other, then stay there."""
        for number, step in enumerate(steps):
            began = time.monotonic()
            for place in range(count):
                successor = await asyncio.to_thread(self.start, upstream, cache, step)
                if number == 0:
                    self.gateways.append(successor)
                    continue
                former, self.gateways[place] = self.gateways[place], successor
                former.terminate()
                await asyncio.to_thread(former.exit_code)
                self.restarts += 1
            self.serving.set()
            print(f"step {number}: {', '.join(step) or 'neither'} after {time.monotonic() - began:.1f} s", flush=True)
            await asyncio.sleep(max(0.0, length))
        self.over = True


async def run(options: argparse.Namespace) -> Run:
    """The whole of it."""
    steps = [STEPS[3], STEPS[6]] if options.at_once else STEPS
    length = options.seconds / len(steps)
    with tempfile.TemporaryDirectory() as folder, RedisServer() as redis:
        done = Run(Path(folder), ttl=max(2.0, round(length * OF_STEP, 1)))
        async with Upstream(done.upstream) as upstream:
            rotating = asyncio.create_task(done.rotate(upstream.url, redis.url, steps, options.gateways, length))
            await done.serving.wait()
            clients = [asyncio.create_task(done.client()) for _ in range(options.clients)]
            try:
                await asyncio.gather(rotating, *clients)
            finally:
                for gateway in done.gateways:
                    with suppress(ProcessLookupError):
                        await asyncio.to_thread(gateway.end)
    return done


def main() -> int:
    """Print what was seen; 1 where a key arrived twice, a record was unreadable, or an answer was another one's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=140.0)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--at-once", action="store_true", help="replace both at once, without the steps between")
    done = asyncio.run(run(parser.parse_args()))
    twice = sum(count > 1 for count in done.arrivals.values())
    wrong = {name: done.seen[name] for name in ("record-unreadable", "another answer", "never answered")}
    print(f"{len(done.arrivals)} commands, {sum(done.seen.values())} answers, {done.restarts} gateways replaced")
    print(", ".join(f"{name} {count}" for name, count in sorted(done.seen.items())))
    print(f"executed twice: {twice}; unreadable: {wrong['record-unreadable']}")
    return int(bool(twice or any(wrong.values())))


if __name__ == "__main__":
    sys.exit(main())
