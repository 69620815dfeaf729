"""wrk, for a while: what came of it, and what each process used meanwhile."""

import http.client
import json
import math
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadtests import processes
from loadtests.processes import HERE, BenchError, Process
from loadtests.report import console

BODY = (
    b'{"amount":1999,"currency":"EUR","customer":"cus_0123456789","order":"4711","items":[{"sku":"A-1","count":2},'
    b'{"sku":"B-22","count":1}],"note":"two hundred bytes of a request, as commands are: no more."}'
)
AUTHORIZATION = "Bearer sk_live_0123456789"  # as in requests.lua
MOST_ERRORS = 0.001
"""The share of errors that a measurement may have. There should be none, but on a machine that stands still for half a second a
gateway rightly answers 503. Each is counted, and told."""
QUICK_SECONDS = 0.25
"""Of a measurement that is to show only that it runs: enough for processor times, which are counted in hundredths of a second."""
LEEWAY_SECONDS = 30
"""More than the duration, and wrk is ended."""


@dataclass(frozen=True)
class Target:
    """What is measured: where it listens, the processes whose CPU counts, how to ask how many requests have been executed."""

    url: str
    watched: Mapping[str, Process]
    executed: Callable[[], int]
    redis: Process
    strict: bool = True
    """Whether errors in its answers end the measurement."""


@dataclass(frozen=True)
class Wrk:
    """wrk on ``core``. A measurement begins with ``warm_up`` seconds of the same requests."""

    core: int | str
    warm_up: int = 1

    def measure(
        self,
        target: Target,
        mode: str,
        *,
        connections: int,
        seconds: float,
        body: bytes = BODY,
        path: str = "/payments",
    ) -> dict[str, Any]:
        """Requests of ``mode`` (see requests.lua) for ``seconds``; a replay has one key per connection.

        A thousand connections get two seconds more: all of them send at once, and a busy server's first answer takes long.
        Times in ms; processor time in us per request and as a share of a core; ``executed`` is how many requests were executed
        meanwhile, late ones of the warm-up too. Redis is emptied afterwards.
        """
        seed = self.prepare(target, mode, connections=connections, body=body, path=path)
        more = connections // 500
        if self.warm_up:
            warm = seed if mode == "replay" else f"{seed}w"
            self.run(target, mode, warm, connections=connections, seconds=self.warm_up + more, body=body, path=path)
        executed = target.executed()
        sample = self.run(target, mode, seed, connections=connections, seconds=seconds + more, body=body, path=path)
        sample["executed"] = target.executed() - executed
        with processes.redis_client(target.redis) as client:
            client.flushall()
        return sample

    def prepare(
        self, target: Target, mode: str, *, connections: int, body: bytes = BODY, path: str = "/payments"
    ) -> str:
        """A seed for `run` that no other run has; where it replays, the first requests have been sent."""
        seed = f"{time.monotonic_ns()}"
        if mode == "replay":
            _prime(target.url, path, body, [f"{seed}-{number}" for number in range(1, connections + 1)])
        return seed

    def run(
        self,
        target: Target,
        mode: str,
        seed: str,
        *,
        connections: int,
        seconds: float,
        body: bytes = BODY,
        path: str = "/payments",
    ) -> dict[str, Any]:
        """One run of wrk, and nothing else."""
        before = {name: process.cpu_seconds() for name, process in target.watched.items()}
        used = os.times()
        with tempfile.NamedTemporaryFile(prefix="oncegate-bench-") as file:
            file.write(body)
            file.flush()
            arguments = [mode, seed, str(connections), path, file.name]
            for more in (0, 1, LEEWAY_SECONDS):  # a busy machine answers nothing within a quick run's part of a second
                if more and mode != "replay":  # new keys: first requests of the last one may be in flight
                    arguments[1] = f"{seed}m{more}"
                counted = self._run(target.url, connections, seconds + more, arguments)
                if counted["requests"]:
                    break
            cpu = {name: process.cpu_seconds() - before[name] for name, process in target.watched.items()}
            cpu["wrk"] = (
                os.times().children_user + os.times().children_system - used.children_user - used.children_system
            )
            if target.strict and counted["status_errors"]:
                self._show_statuses(target.url, connections, arguments)
        requests, taken = counted["requests"], counted["duration_us"] / 1e6
        errors = counted["status_errors"] + counted["socket_errors"]
        if not requests:
            raise BenchError(f"{target.url} answered nothing within {seconds + LEEWAY_SECONDS:g} s")
        if target.strict and errors > MOST_ERRORS * requests:
            raise BenchError(f"{mode}: {errors} errors in {requests} requests: {target.watched['server'].last_words()}")
        return {
            "requests": requests,
            "requests_per_s": requests / taken,
            "p50_ms": counted["p50_us"] / 1e3,
            "p99_ms": counted["p99_us"] / 1e3,
            "max_ms": counted["max_us"] / 1e3,
            "cpu_us": {name: spent / requests * 1e6 for name, spent in cpu.items()},
            "cpu_share": {name: spent / taken for name, spent in cpu.items()},
            "errors": errors,
        }

    def _show_statuses(self, url: str, connections: int, arguments: list[str]) -> None:
        """Say which errors come: the same requests for a second more, since wrk counts errors without their statuses."""
        mode, seed, *rest = arguments
        with tempfile.NamedTemporaryFile(prefix="oncegate-bench-", mode="r") as file:
            again = seed if mode == "replay" else f"{seed}s"
            self._run(url, connections, 1, [mode, again, *rest, file.name])
            statuses = Counter(file.read().split())
        found = ", ".join(f"{count:,} x {status}" for status, count in sorted(statuses.items())) or "none any more"
        console.print(
            f"{mode}: errors at {url}; in a second more of the same: {found}", highlight=False, soft_wrap=True
        )

    def _run(self, url: str, connections: int, seconds: float, arguments: list[str]) -> dict[str, Any]:
        # wrk knows whole seconds; by SIGINT it ends earlier, and prints what it has counted.
        ended = [] if seconds == int(seconds) else ["timeout", "--preserve-status", "--signal=INT", f"{seconds}"]
        command = [*ended, "taskset", "--cpu-list", str(self.core), processes.wrk(), "--threads", "1", "--connections",
                   str(connections), "--duration", f"{math.ceil(seconds)}s", "--timeout", "20s", "--script",
                   str(HERE / "requests.lua"), url, "--", *arguments]  # fmt: skip
        try:
            output = subprocess.run(command, capture_output=True, text=True, timeout=seconds + LEEWAY_SECONDS)
        except subprocess.TimeoutExpired:
            raise BenchError(f"wrk did not end: is {url} answering?") from None
        if ended and output.returncode == 128 + signal.SIGINT:
            return {"requests": 0}  # it had not even begun
        if output.returncode:
            raise BenchError(f"wrk failed: {output.stderr.strip() or output.stdout.strip()}")
        counted: dict[str, Any] = json.loads(output.stdout.strip().splitlines()[-1])
        return counted


def _prime(url: str, path: str, body: bytes, keys: list[str]) -> None:
    """Send the first request of each key, as wrk will send its retries."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    for key in keys:
        headers = {"Idempotency-Key": key, "Authorization": AUTHORIZATION, "Content-Type": "application/json"}
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status >= 300:
            raise BenchError(f"{url} answers {answer.status} to a first request")
    connection.close()
