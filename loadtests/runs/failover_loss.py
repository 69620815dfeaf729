"""What a failover under load forgets: completions that a master had acknowledged and its successor does not have.

    .venv/bin/python -m loadtests.runs.failover_loss --failovers 10

For each way of failing over, and with min-replicas-to-write 0 and 1, that many groups of a master, two replicas and a Sentinel
are started on loopback, put under load, and failed over once. `WAIT` is not used: oncegate never does.

- killed: SIGKILL for the master.
- directed: SENTINEL FAILOVER; the old master lives, and takes writes until it is demoted some ten seconds later.
- paused: the same, after CLIENT PAUSE ... WRITE on the old master.
- cut off: both replicas lose the master two seconds before it is killed (connections closed, replicas stopped).
"""

import argparse
import asyncio
import os
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from oncegate.cache.codec import decode
from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.record import ClaimRequest, Record, State, StoredResponse
from oncegate.cache.redis.store import RedisCache
from testing.groups import SentinelGroup

WAYS = ("killed", "directed", "paused", "cut off")
CALLERS = 16
BEFORE, CUT, AFTER = 1.0, 2.0, 1.0
"""Seconds of load before the fault, while the replicas are cut off, and once the new master takes completions."""
TTL_MS = 3_600_000
RESPONSE = StoredResponse(201, ((b"content-type", b"application/json"),), b"x" * 150, 1)


@dataclass
class Run:
    """One failover: the completions that were acknowledged, by key, and the times (s) at which."""

    tokens: dict[str, bytes] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    lost: int = 0

    @property
    def gap(self) -> float:
        """The longest time without a completion."""
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False)), default=0.0)


async def caller(cache: RedisCache, name: str, run: Run, stop: asyncio.Event) -> None:
    """Claim and complete one key after the other; what fails is left alone."""
    number = 0
    while not stop.is_set():
        number += 1
        key, token = f"{name}:{number}", os.urandom(16)
        try:
            await cache.claim(key, ClaimRequest(token=token, fingerprint=token, lease_ms=TTL_MS, retention_ms=TTL_MS))
            if await cache.complete(
                key,
                Record(token=token, fingerprint=token, attempt=1, state=State.SUCCEEDED, response=RESPONSE),
                ttl_ms=TTL_MS,
            ):
                run.tokens[key] = token
                run.times.append(time.monotonic())
        except CacheUnavailable:
            await asyncio.sleep(0.01)


async def fail_over(way: str, least: int) -> Run:
    """One group, one failover."""
    config = {"min-replicas-to-write": str(least), "min-replicas-max-lag": "1"}
    with SentinelGroup(down_after=1, replicas=2, config=config) as group:
        cache, run, stop = RedisCache.from_url(group.url), Run(), asyncio.Event()
        callers = [asyncio.ensure_future(caller(cache, f"c{each}", run, stop)) for each in range(CALLERS)]
        await asyncio.sleep(BEFORE)
        old = group.master
        if way == "cut off":
            for server in group.servers:
                if server is not old:
                    server.pause()
            old.command("CLIENT", "KILL", "TYPE", "replica")
            await asyncio.sleep(CUT)
        if way in ("directed", "paused"):
            if way == "paused":
                old.command("CLIENT", "PAUSE", 20_000, "WRITE")
            await asyncio.to_thread(group.fail_over)
        else:
            old.stop()
            for server in group.servers:
                if server is not old and way == "cut off":
                    server.resume()
            await asyncio.to_thread(group.wait_for_another_master, old)
        seen = len(run.times)
        while len(run.times) == seen:  # noqa: ASYNC110 - it comes true in a caller
            await asyncio.sleep(0.01)
        await asyncio.sleep(AFTER)
        stop.set()
        await asyncio.gather(*callers)
        await cache.close()
        run.lost = lost(group, run)
        return run


def lost(group: SentinelGroup, run: Run) -> int:
    """How many of the acknowledged completions the present master does not have."""
    missing = 0
    client: Any = group.master.client()
    keys = list(run.tokens)
    for first in range(0, len(keys), 1000):
        batch = keys[first : first + 1000]
        for key, data in zip(batch, client.mget(batch), strict=True):
            held = None if data is None else decode(data, TTL_MS)
            missing += held is None or held.state is not State.SUCCEEDED or held.token != run.tokens[key]
    return missing


def main() -> None:
    """Print a table for docs/decisions/0008-failover.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--failovers", type=int, default=10)
    parser.add_argument("--way", choices=WAYS, action="append")
    options = parser.parse_args()
    print("| way | min-replicas-to-write | failovers | acknowledged | lost | with losses | worst | median pause, s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for way in options.way or WAYS:
        for least in (0, 1):
            runs = [asyncio.run(fail_over(way, least)) for _ in range(options.failovers)]
            losses = [run.lost for run in runs]
            print(
                f"| {way} | {least} | {len(runs)} | {sum(len(run.tokens) for run in runs)} | {sum(losses)} "
                f"| {sum(loss > 0 for loss in losses)} | {max(losses)} "
                f"| {statistics.median(run.gap for run in runs):.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
