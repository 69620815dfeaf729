"""How many commands one `oncegate worker --forward` takes from a stream, and what each one costs.

Commands are submitted through a gateway first, which then ends: each has the record of its submission, as in service. Then one
worker on a core of its own forwards them to a service that answers at once. What counts is the middle of the backlog, from a
tenth to nine tenths of it. Each command must reach the service once, and the stream be empty at the end.
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import redis

from loadtests import bed, builds, machine, processes
from loadtests.bed import OURS, Bed
from loadtests.load import QUICK_SECONDS, Wrk
from loadtests.processes import BenchError, Process
from loadtests.report import Results, Table, measured, progress, spread
from oncegate.cache.redis.streams.stream import stream_key

CONCURRENCY: Final = 10
"""The worker's, as it is by default."""
CONNECTIONS: Final = 32
FIRST_SHARE, LAST_SHARE = 0.9, 0.1
"""What is left of the backlog when a measurement begins, and when it ends."""
PATIENCE: Final = 120.0
"""Seconds after which a backlog that isn't done is given up."""
AIM: Final = 3000
"""Commands a second of one worker."""
STREAM: Final = stream_key("default", "commands")
ROUTES: Final = '[[routes]]\npath = "/payments"\nmode = "async"\non_missing_key = "reject"\n'
ISSUED: Final = ("evalsha", "xreadgroup")
"""Commands that the worker sends."""
LOOKS: Final = 0.02
"""Seconds between two looks at the stream."""


def run(*, rounds: int, seconds: float, build: str | None = None, quick: bool) -> Results:
    """Measure the worker ``rounds`` times, with what is submitted in twice so many ``seconds``; one ``build``, or both.

    Raises `BenchError` where a command is lost, or executed twice.
    """
    compiled = builds.chosen(build, quick=quick)
    seconds, rounds = (QUICK_SECONDS, 1) if quick else (2 * seconds, rounds)
    both = builds.measured(compiled) if build is None else {build: compiled}
    settings = {"builds": list(both), "quick": quick, "rounds": rounds, "seconds": seconds, "concurrency": CONCURRENCY}
    results = Results("commands", settings)
    server_core, load_core = machine.cores()
    with progress() as bar:
        task = bar.add_task("commands", total=rounds * len(both))
        for number in range(rounds):
            for build, path in list(both.items())[:: -1 if number % 2 else 1]:
                bar.update(task, description=f"{build}, round {number + 1}")
                with _submitted(server_core, load_core, path, seconds, patient=quick) as (running, held):
                    sample = _worked(running, held, server_core, path)
                results.samples.append({"build": build, "round": number, **sample})
                bar.advance(task)
    return results


@contextlib.contextmanager
def _submitted(
    server_core: int, load_core: int, build: Path | None, seconds: float, *, patient: bool
) -> Iterator[tuple[Bed, int]]:
    """A Redis with commands that wait, and how many; a service for them."""
    with bed.behind(load_core) as (folder, store, upstream):
        config = folder / "gateway.toml"
        config.write_text(ROUTES)
        cache = bed.cache_of(store)
        gateway = processes.oncegate(
            upstream.url, cache, core=server_core, folder=folder, build=build, patient=patient, config=str(config)
        )
        running = Bed({}, {}, store, upstream)
        with gateway:
            builds.verify(gateway, compiled=build is not None)
            running.urls[OURS[builds.SOURCE]], running.servers[OURS[builds.SOURCE]] = gateway.url, gateway
            target = running.target(OURS[builds.SOURCE])
            Wrk(load_core).run(target, "first", f"{time.monotonic_ns()}", connections=CONNECTIONS, seconds=seconds)
        with processes.redis_client(store) as client:
            yield running, int(client.xlen(STREAM))


def _worked(running: Bed, held: int, core: int, build: Path | None) -> dict[str, Any]:
    """What the middle of ``held`` commands took."""
    with (
        tempfile.TemporaryDirectory(prefix="oncegate-bench-") as folder,
        processes.redis_client(running.redis) as client,
        worker(running, core=core, folder=Path(folder), build=build) as process,
    ):
        watched = {"worker": process, "redis": running.redis, "upstream": running.upstream}
        first = _until(client, FIRST_SHARE * held, process)
        builds.verify(process, compiled=build is not None)
        client.config_resetstat()
        began, before = time.perf_counter(), {name: each.cpu_seconds() for name, each in watched.items()}
        last = _until(client, LAST_SHARE * held, process)
        taken = time.perf_counter() - began
        used = {name: each.cpu_seconds() - before[name] for name, each in watched.items()}
        issued = client.info("commandstats")
        _until(client, 0, process)
        arrivals = running.arrivals()
    if arrivals != held:
        raise BenchError(f"commands: {held} were accepted, {arrivals} reached the service")
    done = first - last
    return {
        "commands": done,
        "per_s": done / taken,
        "cpu_us": {name: spent / done * 1e6 for name, spent in used.items()},
        "cpu_share": {name: spent / taken for name, spent in used.items()},
        "issued": {name: issued.get(f"cmdstat_{name}", {}).get("calls", 0) / done for name in ISSUED},
    }


def worker(running: Bed, *, core: int | str, folder: Path, build: Path | None) -> Process:
    """A worker as anybody starts it, which forwards to the upstream. It listens nowhere: the store's port stands for its own."""
    binary = Path(sys.executable).parent / "oncegate"
    command = [str(binary), "worker", "--cache", bed.cache_of(running.redis), "--forward", running.upstream.url]
    environment = {} if build is None else {"PYTHONPATH": str(build)}
    return Process("worker", command, port=running.redis.port, core=core, folder=folder, environment=environment)


def _until(client: redis.Redis, most: float, process: Process) -> int:
    """How many entries the stream has, once those are at most ``most``."""
    until = time.monotonic() + PATIENCE
    while (left := int(client.xlen(STREAM))) > most:
        if time.monotonic() > until:
            raise BenchError(f"commands: {left} are left: {process.last_words()}")
        time.sleep(LOOKS)
    return left


def tables(results: Results) -> list[Table]:
    """The rate and the costs of each build."""
    rows = []
    for build in dict.fromkeys(sample["build"] for sample in results.samples):
        samples = results.select(build=build)
        costs = [spread(samples, "cpu_us", name).text() for name in ("worker", "redis", "upstream")]
        sent = [spread(samples, "issued", name).text(2) for name in ISSUED]
        full = 1e6 / spread(samples, "cpu_us", "worker").median
        busy = spread(samples, "cpu_share", "worker").text(2)
        rows.append([OURS[build], *costs, *sent, f"{full:,.0f}", spread(samples, "per_s").text(), busy])
    head = ["", "worker CPU, us", "Redis CPU, us", "service CPU, us", "scripts", "reads", "its core full at, commands/s",
            "commands/s here", "its core busy"]  # fmt: skip
    note = (
        f"Per command; {results.settings['concurrency']} at once, as by default; the service answers at once. "
        f"Aim: {AIM:,} commands/s. {measured(results)}"
    )
    return [Table("One oncegate worker --forward on a core of its own", head, rows, note)]
