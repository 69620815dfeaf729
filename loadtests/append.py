"""`scripts/bench append`: what a number, and an expected version, cost an append in Redis's own time; bytes of an aggregate.

Redis says itself how long each call took (SLOWLOG). The ways take turns of a hundred calls, so that what disturbs the
machine disturbs all alike; of each turn the quickest three quarters count, since others were interrupted. What each step takes is
counted in instructions, which nothing disturbs (`append_steps`).
"""

import asyncio
import statistics
from typing import Any, Final

from loadtests import append_steps, builds
from loadtests.append_steps import ABOUT, BEFORE, LIMIT, PARTS, digest, numbering
from loadtests.report import Results, Table, paired, spread
from oncegate.cache.redis.scripts import pack
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.redis.streams.append import append_entry
from testing.servers import RedisServer

WAYS: Final = {
    "before": "as it was before there were numbers",
    "plain": "without a number",
    "number": "with a number",
    "version": "with a number and an expected version",
}
TURN: Final = 100
LEAST: Final = 0.8


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
    results.checks["steps"] = {} if quick else append_steps.count()
    return results


async def _measure(server: RedisServer, turns: int, results: Results) -> None:
    redis = server.client()
    redis.config_set("slowlog-log-slower-than", 0)
    redis.config_set("slowlog-max-len", 4 * TURN)
    cache = RedisCache.from_url(server.url, timeout=60)
    before = str(redis.script_load(BEFORE)).encode()
    count = 0
    try:
        for turn in range(turns):
            for way in WAYS:
                stream = f"{{bench:stream:{way}}}"
                redis.slowlog_reset()
                for call in range(TURN):
                    count += 1
                    if way == "before":
                        await cache.client.command(
                            stream, pack(b"EVALSHA", before, b"1", stream.encode(), b"%d" % LIMIT, *PARTS)
                        )
                        continue
                    if way == "plain":
                        await append_entry(cache.client, stream, PARTS, limit=LIMIT)
                        continue
                    number = turn * TURN + call
                    given = numbering(stream, number, count, expects=way == "version")
                    answer = await append_entry(cache.client, stream, ABOUT, limit=LIMIT, numbering=given)
                    if answer is None or not answer.entry:
                        raise RuntimeError("it was not appended")
                log: Any = redis.slowlog_get(4 * TURN)
                took = [each["duration"] for each in log if each["command"].startswith(b"EVALSHA")]
                results.samples.append(
                    {"way": way, "round": turn, "us": statistics.mean(sorted(took)[: TURN * 3 // 4])}
                )
    finally:
        await cache.close()


def _bytes(server: RedisServer, count: int) -> dict[str, float]:
    """What ``count`` aggregates take, each, and as many commands whose position is kept."""
    redis = server.client()
    taken = {}
    for what, size, value in (("aggregate", 16, "1234"), ("command", 20, "1795282931391-0 1234")):
        redis.flushall()
        before: Any = redis.info("memory")
        for begin in range(0, count, 1000):
            fields = {digest(number, size): value for number in range(begin, begin + 1000)}
            redis.hset("numbers", mapping=fields)  # type: ignore[arg-type]  # bytes are taken, too
        after: Any = redis.info("memory")
        taken[what] = (after["used_memory"] - before["used_memory"]) / count
    return taken


def tables(results: Results) -> list[Table]:
    """Redis's time for each way, and its ratio to the one that was there before; what each step takes."""
    before = results.select(way="before")
    rows = []
    for way, meaning in WAYS.items():
        ours = results.select(way=way)
        ratio = paired(
            [{**each, "rate": 1 / each["us"]} for each in ours],
            [{**each, "rate": 1 / each["us"]} for each in before],
            "rate",
        )
        is_aim = way in ("number", "version")
        rows.append(
            [
                meaning,
                spread(ours, "us").text(1),
                "" if way == "before" else ratio.text(2),
                f">= {LEAST:g}" if is_aim else "",
            ]
        )
    taken = results.checks["bytes"]
    note = (
        f"Microseconds of Redis for one append (SLOWLOG): medians of {len(before)} turns. "
        f"An aggregate takes {taken['aggregate']:.0f} bytes for good, "
        f"and each numbered command {taken['command']:.0f} for as long as it may be in doubt."
    )
    times = Table("An append in Redis", ["append", "us", "before / this", "aim"], rows, note)
    steps = results.checks["steps"]
    return [times, append_steps.table(steps)] if steps else [times]
