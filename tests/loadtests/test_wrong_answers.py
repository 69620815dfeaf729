"""A benchmark of something that answers wrongly ends with an error, and has no figures to show."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from loadtests import bed, duplicates, gateway, machine, middleware, processes
from loadtests.processes import BenchError

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="the benchmarks read processor times from /proc"
)


def test_a_gateway_or_a_storm_without_enforcement_is_noticed() -> None:
    with bed.gateways(*machine.cores()) as running:
        with pytest.raises(BenchError, match="nginx proxy_pass: replay: 201, 1 arrivals, not 201, 0 arrivals"):
            gateway.check(running, bed.PLAIN)
        gateway.check(running, bed.LUA)
        bare = bed.Bed({}, {bed.ONCEGATE: running.upstream}, running.redis, running.upstream, running._asked)
        with pytest.raises(BenchError, match="5 duplicates: 5 arrivals"):
            asyncio.run(duplicates._storm(bare, 5, wait=True))


def test_a_middleware_whose_answers_are_not_ours_is_noticed() -> None:
    told = {
        "replay": "same status and bytes", "headers": "kept", "spaced JSON": "same bytes", "text/plain": "same bytes",
        "other payload": "refused, 422", "other caller": "executed, as its own", "concurrent": "409 at once",
    }  # fmt: skip
    middleware.judge(told)
    for what in told:
        with pytest.raises(BenchError, match=f"oncegate: {what}: another answer"):
            middleware.judge({**told, what: "another answer"})


def test_what_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo begun; echo no such thing >&2; exit 3"]
    with (
        pytest.raises(BenchError, match="broken does not start: no such thing"),
        processes.Process("broken", command, port=processes.free_port(), core=machine.cores()[0], folder=tmp_path),
    ):
        pass


def test_what_was_started_is_ended(tmp_path: Path) -> None:
    server = processes.redis_server(tmp_path, machine.cores()[0])
    with server:
        pid = server.pid
        assert machine.rss_bytes(pid) > 1e6
        assert 0 < machine.cpu_seconds(pid) < 60
    assert not Path(f"/proc/{pid}").exists()


def test_what_is_just_being_started_when_a_bench_is_told_to_stop_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def told_to_stop_meanwhile(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        signal.raise_signal(signal.SIGTERM)
        return started[-1]

    def stop(*_: object) -> None:
        raise SystemExit(1)

    popen = subprocess.Popen
    before = signal.signal(signal.SIGTERM, stop)
    monkeypatch.setattr(subprocess, "Popen", told_to_stop_meanwhile)
    try:
        with pytest.raises(SystemExit), processes.redis_server(tmp_path, machine.cores()[0]):
            pass
        assert started[0].poll() is not None, "it still runs"
    finally:
        signal.signal(signal.SIGTERM, before)
        for process in started:
            process.kill()
            process.wait()


def test_a_bench_that_is_told_to_stop_leaves_nothing_running(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadtests", "duplicates", "--rounds", "1000", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(processes.ROOT)}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as bench:
        until = time.monotonic() + 60
        while len(started := machine.family(bench.pid)) < 4 and time.monotonic() < until:  # Redis, nginx, oncegate
            time.sleep(0.05)
        assert len(started) >= 4
        bench.terminate()
        assert bench.wait(60) == 1
    assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []
    assert not (tmp_path / "results.json").exists()
