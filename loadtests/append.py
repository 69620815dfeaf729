"""`scripts/bench append`: what a number, and an expected version, cost an append in Redis's own time; bytes of an aggregate.

Redis says itself how long each call took (SLOWLOG). The three ways take turns of a hundred calls, so that what disturbs the
machine disturbs all alike; of each turn the quickest three quarters count, since others were interrupted.
"""

import asyncio
import statistics
from hashlib import blake2b
from typing import Any, Final

from loadtests import builds
from loadtests.report import Results, Table, paired, spread
from oncegate.cache.redis.calls import Numbering
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.redis.streams.stream import Command
from testing.servers import RedisServer

WAYS: Final = {
    "plain": "without a number",
    "number": "with a number",
    "version": "with a number and an expected version",
}
TURN: Final = 100
AGGREGATES: Final = 1000
LEAST: Final = 0.8
_COMMAND: Final = Command(
    command="09qCqGFMd5g_6hU4Megs:uSNy8UN7nKoF4s0Uzlpq",
    key="3e4b1a0c-7f0e-4c0e-9a55-8d2f6c1f2b11",
    fingerprint=bytes(16),
    method="POST",
    target="/orders/1795282931391",
    route="/orders/*",
    body=b"x" * 300,
    content_type="application/json",
    correlation="8e03978e-40d5-43dd-bc93-6894a57f9324",
    traceparent="00-11111111111111111111111111111111-2222222222222222-01",
    accepted_at_ms=1_795_282_931_391,
    headers=(("content-type", "application/json"), ("idempotency-key", "3e4b1a0c-7f0e-4c0e-9a55-8d2f6c1f2b11")),
)


def run(*, rounds: int, quick: bool) -> Results:
    """Measure it, ``rounds`` times ten turns of each way."""
    turns = rounds * 10
    aggregates = 300_000
    if quick:
        turns, aggregates = 3, 1000
    results = Results("append", {"builds": [builds.SOURCE], "quick": quick, "rounds": turns, "turn": TURN})
    with RedisServer() as server:
        asyncio.run(_measure(server, turns, results))
    with RedisServer() as server:
        results.checks["bytes"] = _bytes(server, aggregates)
    return results


async def _measure(server: RedisServer, turns: int, results: Results) -> None:
    redis = server.client()
    redis.config_set("slowlog-log-slower-than", 0)
    redis.config_set("slowlog-max-len", 4 * TURN)
    cache = RedisCache.from_url(server.url, timeout=60)
    parts = _COMMAND.parts()
    about = [b"aggregate", b"1795282931391", *parts]
    count = 0
    try:
        for turn in range(turns):
            for way in WAYS:
                redis.slowlog_reset()
                for call in range(TURN):
                    count += 1
                    stream = f"{{bench:stream:{way}}}"
                    if way == "plain":
                        await cache.append(stream, parts, limit=10**8)
                        continue
                    number = turn * TURN + call
                    expected = b"%d" % (number // AGGREGATES) if way == "version" else b""
                    numbering = Numbering(
                        f"{stream}:numbers".encode(),
                        _digest(number % AGGREGATES, 16),
                        _digest(count, 20),
                        expected,
                        10**8,
                        10**8,
                    )
                    answer = await cache.append_numbered(stream, about, limit=10**8, numbering=numbering)
                    if answer is None or not answer.entry:
                        raise RuntimeError("it was not appended")
                log: Any = redis.slowlog_get(4 * TURN)
                took = [each["duration"] for each in log if each["command"].startswith(b"EVALSHA")]
                results.samples.append(
                    {"way": way, "round": turn, "us": statistics.mean(sorted(took)[: TURN * 3 // 4])}
                )
    finally:
        await cache.close()


def _digest(number: int, size: int) -> bytes:
    return blake2b(b"%d" % number, digest_size=size).digest()


def _bytes(server: RedisServer, count: int) -> dict[str, float]:
    """What ``count`` aggregates take, each, and as many commands whose position is kept."""
    redis = server.client()
    taken = {}
    for what, size, value in (("aggregate", 16, "1234"), ("command", 20, "1795282931391-0 1234")):
        redis.flushall()
        before: Any = redis.info("memory")
        for begin in range(0, count, 1000):
            fields = {_digest(number, size): value for number in range(begin, begin + 1000)}
            redis.hset("numbers", mapping=fields)  # type: ignore[arg-type]  # bytes are taken, too
        after: Any = redis.info("memory")
        taken[what] = (after["used_memory"] - before["used_memory"]) / count
    return taken


def tables(results: Results) -> list[Table]:
    """Redis's time for each way, and its ratio to the one that was there before."""
    plain = results.select(way="plain")
    rows = []
    for way, meaning in WAYS.items():
        ours = results.select(way=way)
        ratio = paired(
            [{**each, "rate": 1 / each["us"]} for each in ours],
            [{**each, "rate": 1 / each["us"]} for each in plain],
            "rate",
        )
        rows.append(
            [
                meaning,
                spread(ours, "us").text(1),
                "" if way == "plain" else ratio.text(2),
                "" if way == "plain" else f">= {LEAST:g}",
            ]
        )
    taken = results.checks["bytes"]
    note = (
        f"Microseconds of Redis for one append (SLOWLOG): medians of {len(plain)} turns. "
        f"An aggregate takes {taken['aggregate']:.0f} bytes for good, "
        f"and each numbered command {taken['command']:.0f} for as long as it may be in doubt."
    )
    return [Table("An append in Redis", ["append", "us", "without / with", "aim"], rows, note)]
