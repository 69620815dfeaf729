"""A benchmark of something that answers wrongly ends with an error, and has no figures to show."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from loadtests import bed, builds, duplicates, gateway, machine, middleware, processes
from loadtests.load import QUICK_SECONDS, Target, Wrk
from loadtests.middleware import Variant
from loadtests.processes import BenchError

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="the benchmarks read processor times from /proc"
)


OTHERS = processes.HERE.parent / "src"
"""A folder for PYTHONPATH from which oncegate is imported as it is in source."""


def test_a_gateway_or_a_storm_without_enforcement_is_noticed() -> None:
    server_core, load_core = machine.cores()
    with bed.gateways(server_core, load_core, patient=True) as running:
        with pytest.raises(BenchError, match="nginx proxy_pass: replay: 201, 1 arrivals, not 201, 0 arrivals"):
            gateway.check(running, bed.PLAIN)
        gateway.check_all(running)
        for name in bed.OURS.values():
            # In the place of one of ours there is one that enforces nothing.
            running.urls[name], running.servers[name] = running.urls[bed.PLAIN], running.servers[bed.PLAIN]
            with pytest.raises(BenchError, match=f"^{name}: replay: 201, 1 arrivals, not 201, 0 arrivals"):
                gateway.check_all(running)
            with pytest.raises(BenchError, match=f"^{name}, replay: [1-9][0-9]* arrivals upstream"):
                gateway.measure(
                    running, Wrk(load_core, warm_up=0), name, "replay", connections=2, seconds=QUICK_SECONDS
                )
            running.urls.pop(name)
        bare = bed.Bed({}, {bed.ONCEGATE: running.upstream}, running.redis, running.upstream, running.queries)
        # What the load before has still on its way may arrive with them.
        with pytest.raises(BenchError, match=r"5 duplicates: ([5-9]|[1-9][0-9]+) arrivals"):
            asyncio.run(duplicates.storm(bare, 5, wait=True))


def test_a_middleware_that_enforces_nothing_is_noticed() -> None:
    server_core, load_core = machine.cores()
    alone, frozen = Variant("alone"), Variant("alone", frozen=True)
    with middleware.apps(server_core, load_core, [alone, frozen], None, patient=True) as (running, redis):
        assert middleware.check_all({alone: running[alone].url})["alone"]["replay"] == "executed again"
        for ours in (variant for variant in middleware.VARIANTS if variant.ours):
            with pytest.raises(BenchError, match=f"^{ours.name}: replay: executed again"):
                middleware.check_all({ours: running[alone].url})
            with pytest.raises(BenchError, match=f"^{ours.name}, replay: 0 errors, [1-9][0-9]* executions"):
                middleware.measure(
                    Wrk(load_core, warm_up=0), ours, running[alone], redis, "replay", seconds=QUICK_SECONDS
                )
        with pytest.raises(BenchError, match=r"^alone: is not frozen"):
            middleware.verify(running[alone], frozen)
        with pytest.raises(BenchError, match=r"^alone, frozen: is frozen"):
            middleware.verify(running[frozen], alone)
        with pytest.raises(BenchError, match=r"^alone runs the sources"):
            middleware.verify(running[alone], Variant("alone", compiled=True))


def test_a_middleware_whose_answers_are_not_ours_is_noticed() -> None:
    outcomes = {
        "replay": "same status and bytes", "headers": "kept", "marked": "idempotent-replayed: true",
        "spaced JSON": "same bytes", "text/plain": "same bytes", "other payload": "refused, 422",
        "other caller": "executed, as its own", "concurrent": "409 at once",
    }  # fmt: skip
    middleware.judge("oncegate", outcomes)
    for what in outcomes:
        with pytest.raises(BenchError, match=f"oncegate: {what}: another answer"):
            middleware.judge("oncegate", {**outcomes, what: "another answer"})


def test_a_gateway_that_is_called_compiled_and_runs_the_sources_is_noticed() -> None:
    cores = machine.cores()
    with pytest.raises(BenchError, match=r"^oncegate, compiled runs the sources"), bed.gateways(*cores, OTHERS):
        pass
    where = [str(core) for core in cores]
    with pytest.raises(BenchError, match=r"^oncegate runs the sources"), bed.oncegate(*where, compiled=OTHERS):
        pass


def test_a_gateway_from_source_is_of_no_other_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found first in the environment of a bench is not found by what it measures."""
    (tmp_path / "oncegate.py").write_text("raise SystemExit('another oncegate')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with bed.oncegate(*map(str, machine.cores())) as running:
        builds.verify(running.servers[bed.ONCEGATE], compiled=False)


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

    def interrupted_start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        signal.raise_signal(signal.SIGTERM)
        return started[-1]

    def stop(*_: object) -> None:
        raise SystemExit(1)

    popen = subprocess.Popen
    before = signal.signal(signal.SIGTERM, stop)
    monkeypatch.setattr(subprocess, "Popen", interrupted_start)
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
    command = [sys.executable, "-m", "loadtests", "cost", "--build", "source", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(processes.ROOT)}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as bench:
        until = time.monotonic() + 60
        while len(started := machine.family(bench.pid)) < 4 and time.monotonic() < until:  # Redis, nginx, oncegate
            time.sleep(0.05)
        assert len(started) >= 4
        bench.terminate()
        assert bench.wait(60) == 1
    until = time.monotonic() + 30
    while any(map(machine.runs, started)) and time.monotonic() < until:  # whose child one has become reaps it
        time.sleep(0.01)
    assert [pid for pid in started if machine.runs(pid)] == []
    assert not (tmp_path / "results.json").exists()


class Refusing(BaseHTTPRequestHandler):
    """Has no room for anything."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(503 if "first" in self.path else 409)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_the_statuses_that_nobody_expected_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        running = SimpleNamespace(cpu_seconds=lambda: 0.0, last_words=lambda: "its last words")
        for mode, status in (("first", 503), ("replay", 409)):
            target = Target(url, {"server": running}, lambda: 0, running)  # type: ignore[dict-item, arg-type]  # what is used of them
            with pytest.raises(BenchError, match="its last words"):
                Wrk(machine.cores()[1]).run(target, mode, "seed", connections=2, seconds=1, path=f"/{mode}")
            assert f" x {status}\n" in capsys.readouterr().err
        server.shutdown()
