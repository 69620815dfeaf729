"""`scripts/bench middleware`: one FastAPI app alone, with oncegate, and with other middlewares for idempotency keys, on Redis.

All run at once, each measured in turn, round after round. The app has one core; wrk and Redis share the other. What each one
answers is looked at first, and told beside its figures: a replay that isn't one is fast.
"""

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from loadtests import machine, peers, processes
from loadtests.app import FLOOR, MIDDLEWARES, SPACED
from loadtests.load import Target, Wrk
from loadtests.processes import BenchError, Process
from loadtests.report import Results, Spread, Table, errors, paired, progress, spread

MODES = {"none": "no key", "first": "first request", "replay": "replay"}
CONNECTIONS = 32
BEGUN_WITHIN = 5.0
ORDER = {
    "amount": 1999, "currency": "EUR", "customer": "cus_1", "order": "4711", "items": [{"sku": "A-1", "count": 2}],
}  # fmt: skip


@contextlib.contextmanager
def apps(server_core: int, load_core: int) -> Iterator[tuple[dict[str, Process], Process]]:
    """An app for each middleware, and their Redis; each has a database of its own."""
    python = str(peers.python())
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncegate-bench-")))
        redis = stack.enter_context(processes.redis_server(folder, load_core))
        running = {}
        for number, name in enumerate((*MIDDLEWARES, FLOOR)):
            port = processes.free_port()
            command = [python, "-m", "loadtests.app", name, str(port), f"redis://127.0.0.1:{redis.port}/{number}"]
            environment = {"PYTHONPATH": f"{peers.SOURCES}:{processes.ROOT}"}
            running[name] = Process(name, command, port=port, core=server_core, folder=folder, environment=environment)
            stack.push(running[name].__exit__)
            running[name].start()  # all at once: importing takes its time
        for process in running.values():
            process.__enter__()
        yield running, redis


def run(*, rounds: int, seconds: int, quick: bool) -> Results:
    """Measure all in turn, ``rounds`` times. Raises `BenchError` where oncegate answers wrongly; of others, it is told."""
    if quick:
        rounds = seconds = 1
    server_core, load_core = machine.cores()
    wrk = Wrk(load_core, warm_up=0 if quick else 1)
    settings = {
        "quick": quick, "rounds": rounds, "seconds": seconds, "connections": CONNECTIONS,
        "app": "FastAPI on uvicorn (uvloop, httptools): pydantic models in and out, 300 bytes of JSON",
        "request": "POST, about 200 bytes of JSON, Authorization",
    }  # fmt: skip
    results = Results("middleware", settings, versions=peers.versions())
    cells = [*((name, mode) for mode in MODES for name in MIDDLEWARES), (FLOOR, "replay")]
    with apps(server_core, load_core) as (running, redis), progress() as bar:
        for name in MIDDLEWARES:
            results.checks[name] = check(running[name].url)
        judge(results.checks["oncegate"])
        task = bar.add_task("middleware", total=rounds * len(cells))
        for number in range(rounds):
            turn = number % len(cells)
            for name, mode in cells[turn:] + cells[:turn]:
                bar.update(task, description=f"{name}, {MODES[mode]}, round {number + 1}")
                sample = wrk.measure(target(running[name], redis), mode, connections=CONNECTIONS, seconds=seconds)
                if name == "oncegate" and (sample["errors"] or (mode == "replay" and sample["executed"])):
                    raise BenchError(
                        f"oncegate, {MODES[mode]}: {sample['errors']} errors, {sample['executed']} executions"
                    )
                results.samples.append({"server": name, "mode": mode, "round": number, **sample})
                bar.advance(task)
    return results


def target(app: Process, redis: Process) -> Target:
    """An app, to be measured."""
    return Target(
        app.url, {"server": app, "redis": redis}, partial(executions, app.url), redis, strict=app.name == "oncegate"
    )


def executions(url: str) -> int:
    """How often the app behind the middleware has executed something."""
    return int(httpx.get(f"{url}/executions", timeout=30).text)


def check(url: str) -> dict[str, str]:
    """What a middleware answers, in words that stand for themselves."""
    told: dict[str, str] = {}
    unique = f"check-{time.monotonic_ns()}"
    with httpx.Client(base_url=url, timeout=30) as client:

        def post(path: str, key: str, *, json: Any = ORDER, caller: str = "a") -> tuple[httpx.Response, int]:
            before = executions(url)
            headers = {"Idempotency-Key": f"{unique}-{key}", "Authorization": f"Bearer {caller}"}
            answer = client.post(path, json=json, headers=headers)
            return answer, executions(url) - before

        first, _ = post("/payments", "1")
        again, repeated = post("/payments", "1")
        same = (again.status_code, again.content) == (first.status_code, first.content)
        told["replay"] = "executed again" if repeated else ("same status and bytes" if same else "another answer")
        kept = again.headers.get("location") == first.headers["location"]
        told["headers"] = "executed again" if repeated else ("kept" if kept else "Location is lost")
        spaced, _ = post("/spaced", "2")
        again, repeated = post("/spaced", "2")
        same = again.content == spaced.content and len(spaced.content) >= len(SPACED) - 1
        told["spaced JSON"] = "executed again" if repeated else ("same bytes" if same else f"became {again.text}")
        text, _ = post("/text", "3")
        again, repeated = post("/text", "3")
        told["text/plain"] = (
            "executed again" if repeated else ("same bytes" if again.content == text.content else "changed")
        )
        other, ran = post("/payments", "1", json={**ORDER, "amount": 1})
        told["other payload"] = "executed" if ran else _told(other, first)
        other, ran = post("/payments", "1", caller="b")
        told["other caller"] = "executed, as its own" if ran else "gets the first caller's answer"
        told["concurrent"] = _concurrent(url, post)
    return told


def _told(answer: httpx.Response, first: httpx.Response) -> str:
    return "gets the first payload's answer" if answer.content == first.content else f"refused, {answer.status_code}"


def _concurrent(url: str, post: Any) -> str:
    """What a request gets whose first one is under way."""
    before = executions(url)
    slow = threading.Thread(target=post, args=("/slow", "4"))
    slow.start()
    until = time.monotonic() + BEGUN_WITHIN
    while executions(url) == before and time.monotonic() < until:
        time.sleep(0.01)
    answer, ran = post("/slow", "4")
    waited = not slow.is_alive()
    slow.join()
    if ran:
        return "executed beside the first"
    if answer.status_code == 200:
        return "waits, then the first one's answer"
    return f"{answer.status_code}{' after a wait' if waited else ' at once'}"


def judge(told: dict[str, str]) -> None:
    """Raise `BenchError` where oncegate is not what it says it is."""
    wanted = {
        "replay": "same status and bytes", "headers": "kept", "spaced JSON": "same bytes", "text/plain": "same bytes",
        "other payload": "refused, 422", "other caller": "executed, as its own", "concurrent": "409 at once",
    }  # fmt: skip
    for what, word in wanted.items():
        if told[what] != word:
            raise BenchError(f"oncegate: {what}: {told[what]}, not {word}")


# -- what the samples say ---------------------------------------------------------------------------------------------


def by_rate(results: Results, name: str, other: str, mode: str) -> Spread:
    """Requests per second over another's, in pairs of one round."""
    samples = results.select(server=name, mode=mode)
    return paired(samples, results.select(server=other, mode=mode), "requests_per_s")


def by_cpu(results: Results, name: str, other: str, mode: str) -> Spread:
    """Another's CPU of the app per request over this one's, in pairs of one round: above 1, this one needs less."""
    samples = results.select(server=other, mode=mode)
    return paired(samples, results.select(server=name, mode=mode), "cpu_us", "server")


def best_peer(results: Results, mode: str) -> str:
    """The fastest of the others."""
    return max(peers.PEERS, key=lambda name: spread(results.select(server=name, mode=mode), "requests_per_s").median)


def tables(results: Results) -> list[Table]:
    """Speed, speed against the best of the others, and what the answers were."""
    speed = []
    for name in (*MIDDLEWARES, FLOOR):
        for mode, words in MODES.items():
            cell = results.select(server=name, mode=mode)
            if not cell:
                continue
            speed.append([
                name, words, by_rate(results, name, "alone", mode).text(2), by_cpu(results, name, "alone", mode).text(2),
                spread(cell, "requests_per_s").text(), spread(cell, "p50_ms").text(2), spread(cell, "p99_ms").text(2),
                spread(cell, "cpu_us", "server").text(), f"{spread(cell, 'cpu_us', 'redis').median:.1f}",
            ])  # fmt: skip
    floor = f"{FLOOR}: a middleware that answers at once, always the same, without a store: no replay can be faster. "
    best = []
    for mode in ("first", "replay"):
        peer = best_peer(results, mode)
        ratios = (by_rate(results, "oncegate", peer, mode), by_cpu(results, "oncegate", peer, mode))
        best.append([MODES[mode], peer, *(ratio.text(2) for ratio in ratios)])
    checks = list(results.checks["oncegate"])
    answers = [[name, *(results.checks[name][check] for check in checks)] for name in MIDDLEWARES]
    return [
        Table(
            "Middleware on FastAPI",
            ["middleware", "request", "app alone = 1, by requests/s", "by app CPU", "requests/s", "p50, ms", "p99, ms",
             "app CPU, us/request", "Redis CPU, us"],
            speed,
            f"{floor if results.select(server=FLOOR, mode='replay') else ''}"
            f"Median (least-most) over the rounds; shares and ratios are of pairs of the same round. {errors(results)}",
        ),
        Table("oncegate against the best of the others", ["request", "the best", "oncegate, by requests/s", "by app CPU"], best),
        Table("What they answer", ["middleware", *checks], answers),
    ]  # fmt: skip


def plot(results: Results, axes: Any) -> None:
    """The share of the app alone, by kind of request and middleware."""
    names = MIDDLEWARES[1:]
    for index, name in enumerate(names):
        values = [by_rate(results, name, "alone", mode) for mode in MODES]
        bars = [(each.median - each.least, each.most - each.median) for each in values]
        places = [place + (index - 1) * 0.27 for place in range(len(MODES))]
        heights = [each.median for each in values]
        axes.bar(places, heights, 0.25, label=name, yerr=list(zip(*bars, strict=True)), capsize=3)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(MODES)), MODES.values())
    axes.set_ylabel("requests/s, app alone = 1")
    axes.set_title(f"Middleware on FastAPI, {CONNECTIONS} connections (more is better)")
    axes.legend()
