"""wrk, for a while: what came of it, and what each process used meanwhile."""

import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any

from loadtests.processes import HERE, BenchError, Process

LEEWAY_SECONDS = 30
"""More than the duration, and wrk is ended."""


def load(
    wrk: str,
    url: str,
    mode: str,
    seed: str,
    *,
    connections: int,
    seconds: float,
    core: int | str,
    watched: Mapping[str, Process],
    keys: int | None = None,
    path: str = "/payments",
    size: int | None = None,
) -> dict[str, Any]:
    """Requests of ``mode`` (see requests.lua) to ``url`` for ``seconds``; ``keys`` is how many keys a replay has, by default
    one per connection, ``size`` how many bytes a body (200 of JSON else). Times in ms, processor time in us per request and,
    for the whole core, as a share.
    """
    duration = max(1, round(seconds))
    arguments = [mode, seed, str(keys or connections), path, *([] if size is None else [str(size)])]
    command = ["taskset", "--cpu-list", str(core), wrk, "--threads", "1", "--connections", str(connections),
               "--duration", f"{duration}s", "--timeout", "20s", "--script", str(HERE / "requests.lua"), url, "--",
               *arguments]  # fmt: skip
    before = {name: process.cpu_seconds() for name, process in watched.items()}
    used = os.times()
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=duration + LEEWAY_SECONDS)
    except subprocess.TimeoutExpired:
        raise BenchError(f"wrk did not end: is {url} answering?") from None
    after = {name: process.cpu_seconds() for name, process in watched.items()}
    if output.returncode:
        raise BenchError(f"wrk failed: {output.stderr.strip() or output.stdout.strip()}")
    told = json.loads(output.stdout.strip().splitlines()[-1])
    requests, taken = told["requests"], told["duration_us"] / 1e6
    if not requests:
        raise BenchError(f"{url} answered nothing within {duration} s")
    cpu = {name: after[name] - before[name] for name in watched}
    cpu["wrk"] = os.times().children_user + os.times().children_system - used.children_user - used.children_system
    return {
        "requests": requests,
        "requests_per_s": requests / taken,
        "p50_ms": told["p50_us"] / 1e3,
        "p99_ms": told["p99_us"] / 1e3,
        "max_ms": told["max_us"] / 1e3,
        "cpu_us": {name: spent / requests * 1e6 for name, spent in cpu.items()},
        "cpu_share": {name: spent / taken for name, spent in cpu.items()},
        "errors": told["status_errors"] + told["socket_errors"],
    }
