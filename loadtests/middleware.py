"""`scripts/bench middleware`: one FastAPI app alone, with oncegate, and with other middlewares for idempotency keys, on Redis.

All run at once, each measured in turn, round after round. They are started anew for each round: where a process happens to lie
in memory makes one or two in a hundred, for as long as it lives. The app has one core; wrk and Redis share the other. What each
one answers is looked at first, and told beside its figures: a replay that isn't one is fast.

Each is measured twice: by itself, for its rate and latencies, and in turn with the app alone, a twentieth of a second each, for
what it costs beside it (`loadtests.turns`).

oncegate runs from source and compiled, and once more each in an app that has frozen what the garbage collector looks at
(docs/decisions/0009-hot-path.md), beside the app alone with the same.
"""

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from loadtests import builds, machine, peers, processes, turns
from loadtests.app import FLOOR, MIDDLEWARES, REDIS_FLOOR, SPACED
from loadtests.load import QUICK_SECONDS, Target, Wrk
from loadtests.processes import BenchError, Process
from loadtests.report import Results, progress

MODES = {"none": "no key", "first": "first request", "replay": "replay"}
CONNECTIONS = 32
BEGUN_WITHIN = 5.0
ANSWERED_WITHIN = 5.0
"""Seconds; who has not answered by then waits for the first request."""
ORDER = {
    "amount": 1999, "currency": "EUR", "customer": "cus_1", "order": "4711", "items": [{"sku": "A-1", "count": 2}],
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """The app with one of the middlewares, on one of the builds; what is asked of it."""

    middleware: str
    modes: tuple[str, ...] = tuple(MODES)
    compiled: bool = False
    frozen: bool = False

    @property
    def name(self) -> str:
        """What it is called in results."""
        words = (self.middleware, "compiled" if self.compiled else "", "frozen" if self.frozen else "")
        return ", ".join(word for word in words if word)

    @property
    def base(self) -> "Variant":
        """What it is held against: the app alone, frozen where it is."""
        return next(variant for variant in VARIANTS if variant.is_base and variant.frozen is self.frozen)

    @property
    def is_base(self) -> bool:
        """Whether others are held against it."""
        return self.middleware == "alone"

    @property
    def ours(self) -> bool:
        """Whether its answers have to be right."""
        return self.middleware == "oncegate"


VARIANTS = (
    *(Variant(name) for name in MIDDLEWARES[:2]),
    Variant("oncegate", compiled=True),
    *(Variant(name) for name in MIDDLEWARES[2:]),
    Variant("alone", ("first",), frozen=True),
    Variant("oncegate", ("first",), frozen=True),
    Variant("oncegate", ("first",), compiled=True, frozen=True),
    Variant(FLOOR, ("replay",)),
    Variant(REDIS_FLOOR, ("replay",)),
    Variant(REDIS_FLOOR, ("replay",), compiled=True),
)
"""All that is measured; without the compiled build what is compiled is left out, and of a quick run what is frozen."""


@contextlib.contextmanager
def apps(
    server_core: int, load_core: int, variants: Sequence[Variant], compiled: Path | None, *, patient: bool = False
) -> Iterator[tuple[dict[Variant, Process], Process]]:
    """An app for each of the variants, and their Redis; each has a database of its own. ``patient``: see `bed.gateways`."""
    python = str(peers.python())
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncegate-bench-")))
        redis = stack.enter_context(processes.redis_server(folder, load_core))
        running = {}
        for number, variant in enumerate(variants):
            port = processes.free_port()
            command = [python, "-m", "loadtests.app", variant.middleware, str(port),
                       f"redis://127.0.0.1:{redis.port}/{number}", *(["frozen"] if variant.frozen else []),
                       *(["patient"] if patient else [])]  # fmt: skip
            path = [str(compiled)] if variant.compiled else []
            environment = {"PYTHONPATH": ":".join([*path, str(peers.SOURCES), str(processes.ROOT)])}
            app = Process(variant.name, command, port=port, core=server_core, folder=folder, environment=environment)
            running[variant] = app
            stack.push(app.__exit__)
            app.start()  # all at once: importing takes its time
        for variant, app in running.items():
            app.__enter__()
            verify(app, variant)
        yield running, redis


def verify(app: Process, variant: Variant) -> None:
    """Raise `BenchError` where an app isn't the variant that it is started as."""
    builds.verify(app, compiled=variant.compiled)
    if httpx.get(f"{app.url}/frozen", timeout=30, verify=False).json() is not variant.frozen:
        raise BenchError(f"{app.name}: is {'not ' if variant.frozen else ''}frozen")


def run(*, rounds: int, seconds: float, quick: bool) -> Results:
    """Measure all in turn, ``rounds`` times. Raises `BenchError` where oncegate answers wrongly; of others, it is told."""
    if quick:
        rounds, seconds = 1, QUICK_SECONDS
    server_core, load_core = machine.cores()
    wrk = Wrk(load_core, warm_up=0 if quick else 1)
    compiled = builds.compiled(quick=quick)
    settings = {
        "builds": list(builds.measured(compiled)), "quick": quick, "rounds": rounds, "seconds": seconds,
        "connections": CONNECTIONS, "turns": f"{turns.TURN_SECONDS} s",
        "app": "FastAPI on uvicorn (uvloop, httptools): pydantic models in and out, 300 bytes of JSON",
        "request": "POST, about 200 bytes of JSON, Authorization",
    }  # fmt: skip
    results = Results("middleware", settings, versions=peers.versions())
    variants = [each for each in VARIANTS if (compiled or not each.compiled) and not (quick and each.frozen)]
    cells = [(variant, mode) for mode in MODES for variant in variants if mode in variant.modes]
    with progress() as bar:
        task = bar.add_task("middleware", total=rounds * len(cells))
        for number in range(rounds):
            bar.update(task, description=f"the apps start, round {number + 1}")
            with apps(server_core, load_core, variants, compiled, patient=quick) as (running, redis):
                if number == 0:
                    results.checks |= check_all({variant: app.url for variant, app in running.items()})
                turn = number % len(cells)
                for variant, mode in cells[turn:] + cells[:turn]:
                    bar.update(task, description=f"{variant.name}, {MODES[mode]}, round {number + 1}")
                    sample = measure(wrk, variant, running[variant], redis, mode, seconds=seconds)
                    if not variant.is_base:
                        base = running[variant.base]
                        sample["turns"] = in_turns(wrk, variant, running[variant], base, redis, mode, seconds=seconds)
                    results.samples.append({"server": variant.name, "mode": mode, "round": number, **sample})
                    bar.advance(task)
    return results


def measure(wrk: Wrk, variant: Variant, app: Process, redis: Process, mode: str, *, seconds: float) -> dict[str, Any]:
    """One measurement. Raises `BenchError` where oncegate answers wrongly."""
    sample = wrk.measure(_target(variant, app, redis), mode, connections=CONNECTIONS, seconds=seconds)
    # Of the run before, one request per connection may arrive late.
    if variant.ours and (sample["errors"] or (mode == "replay" and sample["executed"] > CONNECTIONS)):
        wrong = f"{sample['errors']} errors, {sample['executed']} executions"
        raise BenchError(f"{variant.name}, {MODES[mode]}: {wrong}")
    return sample


def in_turns(
    wrk: Wrk, variant: Variant, app: Process, base: Process, redis: Process, mode: str, *, seconds: float
) -> dict[str, float]:
    """The CPU (us) per request of the app as ``variant``, and of the app alone, in turn with it."""
    one, other = _target(variant, app, redis), _target(variant.base, base, redis)
    server, alone = turns.measure(wrk, one, other, mode, connections=CONNECTIONS, seconds=seconds)
    with processes.redis_client(redis) as client:
        client.flushall()
    return {"server": server, "alone": alone}


def _target(variant: Variant, app: Process, redis: Process) -> Target:
    watched = {"server": app, "redis": redis}
    return Target(app.url, watched, partial(executions, app.url), redis, strict=variant.ours)


def executions(url: str) -> int:
    """How often the app behind the middleware has executed something."""
    return int(httpx.get(f"{url}/executions", timeout=30, verify=False).text)


def check_all(urls: dict[Variant, str]) -> dict[str, dict[str, str]]:
    """What each of the middlewares answers. Raises `BenchError` where oncegate, as whichever variant, answers wrongly."""
    outcomes = {}
    for variant, url in urls.items():
        if variant.ours or (variant.middleware in MIDDLEWARES and not variant.frozen):
            outcomes[variant.name] = check(url)
        if variant.ours:
            judge(variant.name, outcomes[variant.name])
    return outcomes


def check(url: str) -> dict[str, str]:
    """What a middleware answers, in words that stand for themselves."""
    outcomes: dict[str, str] = {}
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
        outcomes["replay"] = "executed again" if repeated else ("same status and bytes" if same else "another answer")
        kept = again.headers.get("location") == first.headers["location"]
        outcomes["headers"] = "executed again" if repeated else ("kept" if kept else "Location is lost")
        marks = [
            f"{name}: {value}"
            for name, value in again.headers.items()
            if "replay" in name and name not in first.headers
        ]
        outcomes["marked"] = "executed again" if repeated else (marks[0] if marks else "no")
        spaced, _ = post("/spaced", "2")
        again, repeated = post("/spaced", "2")
        same = again.content == spaced.content and len(spaced.content) >= len(SPACED) - 1
        outcomes["spaced JSON"] = "executed again" if repeated else ("same bytes" if same else f"became {again.text}")
        text, _ = post("/text", "3")
        again, repeated = post("/text", "3")
        outcomes["text/plain"] = (
            "executed again" if repeated else ("same bytes" if again.content == text.content else "changed")
        )
        other, ran = post("/payments", "1", json={**ORDER, "amount": 1})
        outcomes["other payload"] = "executed" if ran else _of_other_payload(other, first)
        other, ran = post("/payments", "1", caller="b")
        outcomes["other caller"] = "executed, as its own" if ran else "gets the first caller's answer"
        outcomes["concurrent"] = _concurrent(url, post)
    return outcomes


def _of_other_payload(answer: httpx.Response, first: httpx.Response) -> str:
    return "gets the first payload's answer" if answer.content == first.content else f"refused, {answer.status_code}"


def _concurrent(url: str, post: Any) -> str:
    """What a request gets whose first one is under way, and goes on until it is let go."""
    before = executions(url)
    slow = threading.Thread(target=post, args=("/slow", "4"))
    slow.start()
    until = time.monotonic() + BEGUN_WITHIN
    while executions(url) == before and time.monotonic() < until:
        time.sleep(0.01)
    answers: list[tuple[httpx.Response, int]] = []
    second = threading.Thread(target=lambda: answers.append(post("/slow", "4")))
    second.start()
    until = time.monotonic() + ANSWERED_WITHIN
    while second.is_alive() and executions(url) == before + 1 and time.monotonic() < until:
        time.sleep(0.01)
    waited = second.is_alive()
    httpx.get(f"{url}/go")
    slow.join()
    second.join()
    answer, ran = answers[0]
    if ran:
        return "executed beside the first"
    if answer.status_code == 200:
        return "waits, then the first one's answer"
    return f"{answer.status_code}{' after a wait' if waited else ' at once'}"


def judge(name: str, outcomes: dict[str, str]) -> None:
    """Raise `BenchError` where oncegate is not what it says it is."""
    wanted = {
        "replay": "same status and bytes", "headers": "kept", "marked": "idempotent-replayed: true",
        "spaced JSON": "same bytes", "text/plain": "same bytes", "other payload": "refused, 422",
        "other caller": "executed, as its own", "concurrent": "409 at once",
    }  # fmt: skip
    for what, word in wanted.items():
        if outcomes[what] != word:
            raise BenchError(f"{name}: {what}: {outcomes[what]}, not {word}")
