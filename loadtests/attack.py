"""`scripts/bench attack`: 32 honest connections, alone and beside 32 of an attacker (see `loadtests.attackers`), in turn.

What counts: every honest request is answered, and their p99 beside the attacker is less than three times that without.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadtests import attackers, builds, machine, processes
from loadtests.load import Target, Wrk
from loadtests.processes import BenchError
from loadtests.report import Results, Table, paired, progress, spread

CONNECTIONS = 32
RAMP = 1.0
"""Seconds that the attacker is at it before the honest ones are measured, and for which it goes on behind them."""
ROUTES = """
[[routes]]
path = "/payments"
on_missing_key = "reject"

[[routes]]
path = "/a*b*c*d"

[[routes]]
path = "/json"
fingerprint = "json"
"""


def run(*, rounds: int, seconds: int, build: str | None = None, quick: bool) -> Results:
    """Measure first requests in pairs, ``rounds`` times. Raises `BenchError` where an honest request gets no success."""
    compiled = builds.chosen(build, quick=quick)
    rounds, seconds = (1, 1) if quick else (rounds, seconds)
    settings = {
        "builds": [builds.COMPILED if compiled else builds.SOURCE], "quick": quick, "rounds": rounds, "seconds": seconds,
        "connections": CONNECTIONS, "attacker": sum([*attackers.ANSWERED.values(), *attackers.HELD_OPEN.values()]),
    }  # fmt: skip
    results = Results("attack", settings)
    with _running(compiled, patient=quick) as (target, port, load_core), progress() as bar:
        task = bar.add_task("attack", total=2 * rounds)
        wrk = Wrk(load_core, warm_up=0)
        wrk.measure(target, "first", connections=CONNECTIONS, seconds=1)
        for number in range(rounds):
            for attacked in (False, True):
                bar.update(task, description=f"{'beside the attacker' if attacked else 'alone'}, round {number + 1}")
                with _attacker(port, seconds + 2 * RAMP if attacked else 0.0, load_core) as made:
                    sample = wrk.measure(target, "first", connections=CONNECTIONS, seconds=seconds)
                results.samples.append({"attacked": attacked, "round": number, **sample, "attacks": dict(made)})
                bar.advance(task)
    return results


def tables(results: Results) -> list[Table]:
    """Rates and latencies of the honest ones, and what the attacker made."""
    rows = []
    for attacked in (False, True):
        samples = results.select(attacked=attacked)
        errors = sum(sample["errors"] for sample in samples)
        figures = [spread(samples, name).text(1) for name in ("requests_per_s", "p50_ms", "p99_ms")]
        rows.append(["beside the attacker" if attacked else "alone", *figures, str(errors)])
    ratio = paired(results.select(attacked=True), results.select(attacked=False), "p99_ms")
    made = {kind: sum(sample["attacks"].get(kind, 0) for sample in results.samples) for kind in kinds()}
    note = f"p99 beside / alone: {ratio.text(2)}. The attacker's requests: " + ", ".join(
        f"{kind} {number:,}" for kind, number in made.items()
    )
    return [Table("Honest first requests", ["", "requests/s", "p50, ms", "p99, ms", "errors"], rows, note + ".")]


def kinds() -> list[str]:
    """What the attacker sends."""
    return [request.__name__[1:] for request in (*attackers.ANSWERED, *attackers.HELD_OPEN)]


@contextlib.contextmanager
def _running(compiled: Path | None, *, patient: bool) -> Iterator[tuple[Target, int, int]]:
    server_core, load_core = machine.cores()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncegate-bench-")))
        config = folder / "gateway.toml"
        config.write_text(ROUTES)
        redis = stack.enter_context(processes.redis_server(folder, load_core))
        upstream = processes.nginx("upstream.conf", core=load_core, folder=folder, upstream_port=processes.free_port())
        stack.enter_context(upstream)
        gateway = processes.oncegate(
            upstream.url,
            f"redis://127.0.0.1:{redis.port}/0",
            core=server_core,
            folder=folder,
            build=compiled,
            patient=patient,
            config=str(config),
        )
        stack.enter_context(gateway)
        watched = {"server": gateway, "redis": redis, "upstream": upstream}
        yield Target(gateway.url, watched, lambda: 0, redis), gateway.port, load_core


@contextlib.contextmanager
def _attacker(port: int, seconds: float, core: int) -> Iterator[dict[str, Any]]:
    """What it made is known behind it. Of no ``seconds`` there is none."""
    made: dict[str, Any] = {}
    if not seconds:
        yield made
        return
    command = ["taskset", "--cpu-list", str(core), sys.executable, "-m", "loadtests.attackers", str(port), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(RAMP)
            yield made
            printed, _ = process.communicate(timeout=seconds + attackers.ANSWERED_WITHIN)
        finally:
            process.kill()
    if process.returncode:
        raise BenchError("the attacker failed: what it said stands above")
    made |= json.loads(printed)
