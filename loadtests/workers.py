"""How evenly a gateway's workers share requests, and its rate with 1, 2 and 4 of them beside nginx's.

Load, Redis and the upstream take their part of the same cores. A worker's share is its part of the bytes that all of them have
written (``/proc/PID/io``), since every request here costs as many.
"""

import re
from itertools import product
from pathlib import Path
from typing import Any, Final

from loadtests import bed, builds, machine
from loadtests.bed import LUA, ONCEGATE, PLAIN, Bed
from loadtests.load import QUICK_SECONDS, Wrk
from loadtests.processes import BenchError
from loadtests.report import Results, Spread, Table, measured, progress, spread

WORKERS: Final = (1, 2, 4)
CONNECTIONS: Final = (32, 256, 1000)
LARGEST: Final = 1.2
"""What the busiest worker's share may be of the idlest one's."""
NOTHING: Final = 1000.0
"""A worker that does less than this part of another's has nothing to do."""
_WRITTEN: Final = re.compile(r"^wchar: (\d+)", re.MULTILINE)


def run(*, rounds: int, seconds: float, build: str | None = None, quick: bool) -> Results:
    """Measure first requests in each cell, ``rounds`` times. Raises `BenchError` where a gateway answers wrongly."""
    compiled = builds.chosen(build, quick=quick)
    workers: tuple[int, ...] = WORKERS
    connections: tuple[int, ...] = CONNECTIONS
    if quick:
        rounds, seconds, workers, connections = 1, QUICK_SECONDS, (2,), (32,)
    settings: dict[str, Any] = {
        "builds": [builds.COMPILED if compiled else builds.SOURCE], "quick": quick, "rounds": rounds, "seconds": seconds,
        "workers": list(workers), "connections": list(connections),
    }  # fmt: skip
    results = Results("workers", settings)
    ours = bed.COMPILED if compiled else ONCEGATE
    everywhere = ",".join(map(str, sorted(set(machine.cores()))))
    cells = [(ours, mode) for mode in ("none", "first")] + [(PLAIN, "none"), (LUA, "first")]
    wrk = Wrk(everywhere, 0 if quick else 1)
    with progress() as bar:
        task = bar.add_task("workers", total=rounds * len(workers) * len(connections) * len(cells))
        for number, count in product(range(rounds), workers):
            with bed.gateways(everywhere, everywhere, compiled, workers=count, patient=quick) as running:
                for size, (server, mode) in product(connections, cells):
                    bar.update(task, description=f"{server}, {count}, {mode}, {size} connections, round {number + 1}")
                    sample = _measure(running, server, wrk, mode, size, seconds)
                    results.samples.append({
                        "server": "ours" if server == ours else server, "workers": count, "mode": mode, "connections": size,
                        "round": number, **sample,
                    })  # fmt: skip
                    bar.advance(task)
    return results


def _measure(running: Bed, server: str, wrk: Wrk, mode: str, connections: int, seconds: float) -> dict[str, Any]:
    """One measurement, with the part that each worker had of it."""
    target = running.target(server)
    parent = running.servers[server].pid
    pids = machine.family(parent)[1:] or [parent]
    before = {pid: written(pid) for pid in pids}
    sample = wrk.measure(target, mode, connections=connections, seconds=seconds)
    wrote = [written(pid) - before[pid] for pid in pids]
    if not min(wrote) and len(wrote) == 1:
        raise BenchError(f"{server} has written nothing")
    whole = sum(wrote)
    return {
        "requests_per_s": sample["requests_per_s"],
        "p99_ms": sample["p99_ms"],
        "cpu_us": sample["cpu_us"],
        "errors": sample["errors"],
        "shares": [each / whole for each in wrote],
        "largest_to_smallest": max(wrote) / max(1, min(wrote)),
    }


def written(pid: int) -> int:
    """The bytes that a process has written by now, to sockets too."""
    found = _WRITTEN.search(Path(f"/proc/{pid}/io").read_text())
    if found is None:
        raise BenchError("the kernel does not count what processes write (/proc/PID/io)")
    return int(found[1])


def tables(results: Results) -> list[Table]:
    """Shares, and rates."""
    ours = "oncegate, compiled" if builds.of(results) == [builds.COMPILED] else "oncegate from source"
    cells = dict.fromkeys((sample["server"], sample["mode"]) for sample in results.samples)
    counts = results.settings["workers"]
    several = [count for count in counts if count > 1]
    shares, rates = [], []
    for (server, mode), size in product(cells, results.settings["connections"]):
        named = [ours if server == "ours" else server, "no key" if mode == "none" else "first request", f"{size:,}"]
        of = {count: results.select(server=server, mode=mode, connections=size, workers=count) for count in counts}
        rates.append([*named, *(spread(of[count], "requests_per_s").text() for count in counts)])
        shares.append([*named, *(_ratio(spread(of[count], "largest_to_smallest")) for count in several)])
    head = ["gateway", "request", "connections"]
    note = f"On two cores, which load, Redis and upstream share. {measured(results)}"
    return [
        Table(
            "Requests of the busiest worker, those of the idlest = 1",
            [*head, *(f"{count} workers" for count in several)],
            shares,
            f"Aim: at most {LARGEST:g}. {note}",
        ),
        Table("Requests per second", [*head, *(f"workers: {count}" for count in counts)], rates, note),
    ]


def _ratio(ratio: Spread) -> str:
    return ratio.text(2) if ratio.median < NOTHING else "one has nothing to do"
