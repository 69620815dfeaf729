"""`scripts/bench cost`: what a request costs Redis, what a record costs it in memory, and how the gateway's time and memory go.

Commands per request, memory per record while records grow to a million (those of a soak of as many first requests, during
which the gateway's own memory is watched), and latency by concurrency, by size of the bodies, and with one worker and two.
"""

import time
from typing import Any

import httpx
import redis

from loadtests import bed, machine, processes
from loadtests.bed import ONCEGATE, Bed
from loadtests.load import load
from loadtests.processes import BenchError
from loadtests.report import Results, progress

MILESTONES = (10_000, 100_000, 1_000_000)
CONNECTIONS = (1, 10, 32, 100, 316, 1000)
SIZES = (0, 1024, 16_384, 131_072, 1_048_576)
WORKERS = (1, 2)
COUNTED = 500
"""Requests of each kind whose commands are counted."""
LONGEST_CHUNK = 10
"""Seconds of the soak between two looks at the memory."""
SOAK_ENDS_WITHIN = 1800
COMMANDS = ("evalsha", "get", "set", "pttl", "getrange")
BODIES = "/bytes/"


def run(*, rounds: int, seconds: int, records: int, quick: bool) -> Results:
    """Measure it all. ``records`` is how many first requests the soak makes."""
    server_core, load_core = map(str, machine.cores())
    short = slice(0, 2) if quick else slice(None)
    settings = {
        "quick": quick, "rounds": rounds, "seconds": seconds, "records": records, "connections": list(CONNECTIONS[short]),
        "sizes": list(SIZES[:: 4 if quick else 1]), "workers": list(WORKERS[short]), "body_bytes": len(processes.BODY),
    }  # fmt: skip
    results = Results("cost", settings)
    wrk = processes.wrk()
    with progress() as bar:
        steps = 2 * rounds * (len(settings["connections"]) + len(settings["sizes"]) + len(settings["workers"]))
        task = bar.add_task("cost", total=steps + 2)

        def step(words: str) -> None:
            bar.update(task, advance=1, description=words)

        with bed.oncegate(server_core, load_core) as running:
            step("commands per request")
            results.checks["commands"] = commands(running)
            for number in range(rounds):
                for mode in ("first", "replay"):
                    for connections in settings["connections"]:
                        step(f"{connections} connections, {mode}, round {number + 1}")
                        sample = measure(running, wrk, load_core, mode, seconds, connections=connections)
                        results.samples.append(
                            {"part": "concurrency", "mode": mode, "round": number, "connections": connections, **sample}
                        )
                    for size in settings["sizes"]:
                        step(f"bodies of {size} bytes, {mode}, round {number + 1}")
                        sample = measure(
                            running, wrk, load_core, mode, seconds, connections=8, size=size, path=f"{BODIES}{size}"
                        )
                        results.samples.append({"part": "size", "mode": mode, "round": number, "size": size, **sample})
        everywhere = f"{server_core},{load_core}"
        for number in range(rounds):
            for workers in settings["workers"]:
                with bed.oncegate(everywhere, everywhere, workers=workers) as running:
                    for mode in ("first", "replay"):
                        step(f"{workers} workers, {mode}, round {number + 1}")
                        sample = measure(running, wrk, everywhere, mode, seconds, connections=64)
                        results.samples.append(
                            {"part": "workers", "mode": mode, "round": number, "workers": workers, **sample}
                        )
        with bed.oncegate(server_core, load_core) as running:
            step(f"soak, {records:,} first requests")
            results.samples += soak(running, wrk, load_core, records, lambda words: bar.update(task, description=words))
    return results


def measure(running: Bed, wrk: str, core: str, mode: str, seconds: int, **options: Any) -> dict[str, Any]:
    """One measurement, after a second of the same. Raises `BenchError` for an answer that is wrong."""
    seed = f"{time.monotonic_ns()}"
    watched = {"server": running.servers[ONCEGATE], **running.watched}
    options |= {"core": core, "watched": watched}
    load(wrk, running.urls[ONCEGATE], mode, seed if mode == "replay" else f"{seed}w", seconds=1, **options)
    before = running.arrivals()
    sample = load(wrk, running.urls[ONCEGATE], mode, seed, seconds=seconds, **options)
    arrivals = running.arrivals() - before
    if sample["errors"] or (mode == "replay" and arrivals):
        raise BenchError(f"{mode}, {options}: {sample['errors']} errors, {arrivals} arrivals upstream")
    with processes.redis_client(running.redis) as client:
        client.flushall()
    return sample


def commands(running: Bed) -> dict[str, dict[str, float]]:
    """Commands per request, of each kind of request: what is sent, and what scripts issue on the server."""
    told = {}
    with (
        processes.redis_client(running.redis) as client,
        httpx.Client(base_url=running.urls[ONCEGATE], timeout=10) as http,
    ):
        keyed = [{"Idempotency-Key": f"count-{number}"} for number in range(COUNTED)]
        for name, headers in (("first", keyed), ("replay", keyed), ("none", [{}] * COUNTED)):
            client.config_resetstat()
            for each in headers:
                if http.post("/payments", content=b"{}", headers=each).status_code != 201:
                    raise BenchError(f"{name}: not answered with 201")
            counts = client.info("commandstats")
            per_request = {name.removeprefix("cmdstat_"): count["calls"] / COUNTED for name, count in counts.items()}
            told[name] = {command: per_request.get(command, 0.0) for command in COMMANDS}
            told[name]["sent"] = round(sum(per_request.get(command, 0.0) for command in ("evalsha", "eval")), 2)
        client.flushall()
    return told


def soak(running: Bed, wrk: str, core: str, records: int, say: Any) -> list[dict[str, Any]]:
    """First requests until there are ``records``: after each chunk of them, what Redis and the gateway hold."""
    server, watched = running.servers[ONCEGATE], {"server": running.servers[ONCEGATE]}
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
            sample = load(
                wrk,
                running.urls[ONCEGATE],
                "first",
                f"soak-{number}",
                connections=32,
                seconds=seconds,
                core=core,
                watched=watched,
            )
            if sample["errors"]:
                raise BenchError(f"soak: {sample['errors']} errors")
            rate, held = sample["requests_per_s"], _settled(client)
            used = client.info("memory")["used_memory"] - empty
            samples.append({
                "part": "soak", "records": held, "redis_bytes": used, "redis_bytes_per_record": used / held,
                "record_bytes": client.memory_usage(client.randomkey()), "gateway_rss_bytes": machine.rss_bytes(server.pid),
                "requests_per_s": sample["requests_per_s"], "p99_ms": sample["p99_ms"],
            })  # fmt: skip
            say(f"soak, {held:,} of {records:,} first requests")
    return samples


def _settled(client: redis.Redis) -> int:
    """How many records there are once the last requests of a chunk are through."""
    before, now = -1, int(client.dbsize())
    while before != now:
        time.sleep(0.1)
        before, now = now, int(client.dbsize())
    return now
