"""`scripts/bench cost`: what a request costs Redis, what a record costs it in memory, and how the gateway's time and memory go.

Commands per request, memory per record while records grow to a million (those of a soak of as many first requests, during
which the gateway's own memory is watched), and latency by concurrency, by size of the bodies, and with one worker and two.
All of one build: the compiled one where there is one, unless ``--build source`` asks for the other.
"""

import time
from collections.abc import Callable
from typing import Any

import httpx
import redis

from loadtests import bed, builds, machine, processes
from loadtests.bed import ONCEGATE, Bed
from loadtests.load import QUICK_SECONDS, Wrk
from loadtests.processes import BenchError
from loadtests.report import Results, progress

MILESTONES = (10_000, 100_000, 1_000_000)
CONNECTIONS: tuple[int, ...] = (1, 10, 32, 100, 316, 1000)
SIZES: tuple[int, ...] = (0, 1024, 16_384, 131_072, 1_048_576)
WORKERS: tuple[int, ...] = (1, 2)
COUNTED = 500
"""Requests of each kind whose commands are counted."""
LONGEST_CHUNK = 10
"""Seconds of the soak between two looks at the memory."""
SOAK_ENDS_WITHIN = 1800
COMMANDS = ("evalsha", "get", "set", "pttl", "getrange")


def run(*, rounds: int, seconds: float, records: int, build: str | None = None, quick: bool) -> Results:
    """Measure it all. ``records`` is how many first requests the soak makes; ``build`` is one of `builds.BUILDS`.

    Raises `BenchError` where a gateway answers wrongly, or there is no such build.
    """
    compiled = builds.chosen(build, quick=quick)
    server_core, load_core = map(str, machine.cores())
    connections, sizes, workers = CONNECTIONS, SIZES, WORKERS
    if quick:
        rounds, seconds, records = 1, QUICK_SECONDS, 1000
        connections, sizes, workers = (32,), (131_072,), (2,)
    settings: dict[str, Any] = {
        "builds": [builds.COMPILED if compiled else builds.SOURCE],
        "quick": quick, "rounds": rounds, "seconds": seconds, "records": records, "connections": list(connections),
        "sizes": list(sizes), "workers": list(workers), "body_bytes": len(processes.BODY),
    }  # fmt: skip
    results = Results("cost", settings)
    warm_up = 0 if quick else 1
    with progress() as bar:
        steps = 2 * rounds * (len(connections) + len(sizes) + len(workers))
        task = bar.add_task("cost", total=steps + 2)

        def take(part: str, value: int, running: Bed, wrk: Wrk, number: int, **options: Any) -> None:
            for mode in ("first", "replay"):
                bar.update(task, description=f"{part} {value:,}, {mode}, round {number + 1}")
                sample = measure(f"{part} {value:,}", running, wrk, mode, seconds=seconds, **options)
                results.samples.append({"part": part, "mode": mode, "round": number, part: value, **sample})
                bar.advance(task)

        wrk = Wrk(load_core, warm_up)
        with bed.oncegate(server_core, load_core, compiled=compiled, patient=quick) as running:
            bar.update(task, advance=1, description="commands per request")
            results.checks["commands"] = commands(running, COUNTED // 10 if quick else COUNTED)
            for number in range(rounds):
                for number_of in connections:
                    take("connections", number_of, running, wrk, number, connections=number_of)
                for size in sizes:
                    take("size", size, running, wrk, number, connections=8, body=b"x" * size, path=f"/bytes/{size}")
        everywhere = f"{server_core},{load_core}"
        for number in range(rounds):
            for count in workers:
                with bed.oncegate(everywhere, everywhere, workers=count, compiled=compiled, patient=quick) as running:
                    take("workers", count, running, Wrk(everywhere, warm_up), number, connections=64)
        with bed.oncegate(server_core, load_core, compiled=compiled, patient=quick) as running:
            results.samples += soak(running, wrk, records, lambda words: bar.update(task, description=words))
        bar.advance(task)
    return results


def measure(what: str, running: Bed, wrk: Wrk, mode: str, **options: Any) -> dict[str, Any]:
    """One measurement. Raises `BenchError` for an answer that is wrong."""
    sample = wrk.measure(running.target(ONCEGATE), mode, **options)
    if mode == "replay" and sample["executed"] > options["connections"]:  # late ones of the run before
        raise BenchError(f"{what}, replay: {sample['executed']} arrivals upstream")
    return sample


def commands(running: Bed, counted: int) -> dict[str, dict[str, float]]:
    """Commands per request, of ``counted`` requests of each kind: what is sent, and what scripts issue on the server."""
    issued = {}
    with (
        processes.redis_client(running.redis) as client,
        httpx.Client(base_url=running.urls[ONCEGATE], timeout=30) as http,
    ):
        keyed: list[dict[str, str]] = [{"Idempotency-Key": f"count-{number}"} for number in range(counted)]
        for name, headers in (("first", keyed), ("replay", keyed), ("none", [{}] * counted)):
            client.config_resetstat()
            for each in headers:
                if http.post("/payments", content=b"{}", headers=each).status_code != 201:
                    raise BenchError(f"{name}: not answered with 201")
            counts = client.info("commandstats")
            calls = {name.removeprefix("cmdstat_"): int(count["calls"]) for name, count in counts.items()}
            issued[name] = {command: calls.get(command, 0) / counted for command in COMMANDS}
            # A heartbeat of the gateway may have come between: no request's script writes into a hash.
            sent = calls.get("evalsha", 0) + calls.get("eval", 0) - calls.get("hset", 0)
            issued[name]["sent"] = round(sent / counted, 2)
        client.flushall()
    return issued


def soak(running: Bed, wrk: Wrk, records: int, on_chunk: Callable[[str], None]) -> list[dict[str, Any]]:
    """First requests until there are ``records``: after each chunk of them, what Redis and the gateway hold."""
    server, target = running.servers[ONCEGATE], running.target(ONCEGATE)
    samples: list[dict[str, Any]] = []
    with processes.redis_client(running.redis) as client:
        client.flushall()
        empty = client.info("memory")["used_memory"]
        held, number, rate, until = 0, 0, 2000.0, time.monotonic() + SOAK_ENDS_WITHIN
        while held < records:
            if time.monotonic() > until:
                raise BenchError(f"the soak did not end within {SOAK_ENDS_WITHIN} s: {held} records")
            goal = min(each for each in (*MILESTONES, records) if each > held)
            seconds = min(LONGEST_CHUNK, max(1, round((goal - held) / rate)))
            number += 1
            sample = wrk.run(target, "first", f"soak-{number}", connections=32, seconds=seconds)
            rate, held = sample["requests_per_s"], _settled(client)
            used = client.info("memory")["used_memory"] - empty
            samples.append({
                "part": "soak", "records": held, "redis_bytes": used, "redis_bytes_per_record": used / held,
                "record_bytes": client.memory_usage(_any_key(client)), "gateway_rss_bytes": machine.rss_bytes(server.pid),
                "requests_per_s": sample["requests_per_s"], "p99_ms": sample["p99_ms"], "errors": sample["errors"],
            })  # fmt: skip
            on_chunk(f"soak, {held:,} of {records:,} first requests")
    return samples


def _any_key(client: redis.Redis) -> bytes:
    key = client.randomkey()
    if not isinstance(key, bytes):
        raise BenchError("no records were made")
    return key


def _settled(client: redis.Redis) -> int:
    """How many records there are once the last requests of a chunk are through."""
    before, now = -1, int(client.dbsize())
    while before != now:
        time.sleep(0.1)
        before, now = now, int(client.dbsize())
    return now
