"""`scripts/bench gateway`: oncegate, from source and compiled, beside nginx's proxy_pass and nginx with the same job in Lua.

All stand in front of one upstream and run at once, each measured in turn, round after round, so that what disturbs the
machine disturbs all. The server under test has one core; wrk, Redis and the upstream share another. Before any of it, and
during all of it, answers are checked.
"""

import threading
import time
from typing import Any

import httpx

from loadtests import bed, builds, machine, processes
from loadtests.bed import COMPILED, LUA, ONCEGATE, PLAIN, Bed
from loadtests.load import QUICK_SECONDS, Wrk
from loadtests.processes import BenchError
from loadtests.report import Results, progress

MODES = {"none": "pass-through", "first": "first request", "replay": "replay"}
CELLS = [
    (PLAIN, "none"), (LUA, "none"), (ONCEGATE, "none"), (COMPILED, "none"),
    (LUA, "first"), (ONCEGATE, "first"), (COMPILED, "first"),
    (LUA, "replay"), (ONCEGATE, "replay"), (COMPILED, "replay"),
]  # fmt: skip
"""The servers, and what is asked of each; without the compiled build its cells are left out."""
CONNECTIONS = (32, 256)
ARRIVES_WITHIN = 30.0
ANSWERED_WITHIN = 15.0
"""Seconds; who has not answered by then waits for the first request, which is let go."""


def run(*, rounds: int, seconds: float, quick: bool) -> Results:
    """Measure all cells in turn, ``rounds`` times. Raises `BenchError` where a gateway answers wrongly."""
    if quick:
        rounds, seconds = 1, QUICK_SECONDS
    server_core, load_core = machine.cores()
    wrk = Wrk(load_core, warm_up=0 if quick else 1)
    compiled = builds.compiled(quick=quick)
    settings: dict[str, Any] = {
        "builds": list(builds.measured(compiled)), "quick": quick, "rounds": rounds, "seconds": seconds,
        "connections": list(CONNECTIONS[:1] if quick else CONNECTIONS),
        "upstream": f"nginx: return 201 with {len(processes.BODY)} bytes of JSON",
        "request": "POST, about 200 bytes of JSON, Authorization",
    }  # fmt: skip
    results = Results("gateway", settings)
    with bed.gateways(server_core, load_core, compiled, patient=quick) as running, progress() as bar:
        results.checks |= check_all(running)
        cells = [(name, mode) for name, mode in CELLS if name in running.servers]
        task = bar.add_task("gateway", total=rounds * len(cells) * len(settings["connections"]))
        for number in range(rounds):
            for connections in settings["connections"]:
                turn = number % len(cells)
                for name, mode in cells[turn:] + cells[:turn]:
                    bar.update(
                        task, description=f"{name}, {MODES[mode]}, {connections} connections, round {number + 1}"
                    )
                    sample = measure(running, wrk, name, mode, connections=connections, seconds=seconds)
                    results.samples.append(
                        {"server": name, "mode": mode, "connections": connections, "round": number, **sample}
                    )
                    bar.advance(task)
        results.versions = bed.versions(running)
    return results


def measure(running: Bed, wrk: Wrk, name: str, mode: str, *, connections: int, seconds: float) -> dict[str, Any]:
    """One measurement. Raises `BenchError` where more or fewer requests arrived upstream than should."""
    sample = wrk.measure(running.target(name), mode, connections=connections, seconds=seconds)
    arrivals = sample["arrivals"] = sample.pop("executed")
    # wrk leaves when its time is over: one request per connection may arrive without having been counted, of this run and of
    # the one before.
    least = 0 if mode == "replay" else sample["requests"] - sample["errors"]
    most = connections if mode == "replay" else sample["requests"] + 2 * connections
    if not least <= arrivals <= most:
        raise BenchError(f"{name}, {MODES[mode]}: {arrivals} arrivals upstream for {sample['requests']} requests")
    return sample


def check_all(running: Bed) -> dict[str, dict[str, str]]:
    """What each server that enforces anything answers. Raises `BenchError` for a wrong answer."""
    return {name: check(running, name) for name in running.urls if name != PLAIN}


def check(running: Bed, name: str) -> dict[str, str]:
    """Look at a gateway's answers before it is measured; what is not as it should be ends the benchmark."""
    key = f"check-{time.monotonic_ns()}"
    outcomes: dict[str, str] = {}
    with httpx.Client(base_url=running.urls[name], timeout=30) as client:

        def post(
            key: str = key, *, path: str = "/payments", content: bytes = b'{"amount":1999}', **headers: str
        ) -> httpx.Response:
            return client.post(path, content=content, headers={"Idempotency-Key": key, **headers})

        def expect(what: str, status: int, arrivals: int, *arguments: Any, **options: Any) -> httpx.Response:
            before = running.arrivals()
            answer = post(*arguments, **options)
            outcomes[what] = f"{answer.status_code}, {running.arrivals() - before} arrivals"
            if outcomes[what] != f"{status}, {arrivals} arrivals":
                raise BenchError(f"{name}: {what}: {outcomes[what]}, not {status}, {arrivals} arrivals")
            return answer

        first = expect("first request", 201, 1)
        again = expect("replay", 201, 0)
        same = again.content == first.content == processes.BODY.encode()
        if not same or again.headers.get("content-type") != first.headers.get("content-type"):
            raise BenchError(f"{name}: a replay differs from its original")
        if again.headers.get("idempotent-replayed") != "true" or "idempotent-replayed" in first.headers:
            raise BenchError(f"{name}: replays are not marked, or first requests are")
        expect("quoted key", 201, 0, f'"{key}"')
        expect("other payload", 422, 0, content=b"{}")
        expect("other path", 422, 0, path="/refunds")
        expect("other caller", 201, 1, Authorization="Bearer other")
        expect("key with a comma", 400, 0, "a,b")
        expect("key of 256 characters", 400, 0, "k" * 256)
        before = running.arrivals()
        held = threading.Thread(target=post, args=(f"{key}-held",), kwargs={"path": "/held"})
        held.start()
        until = time.monotonic() + ARRIVES_WITHIN
        while running.arrivals() == before and time.monotonic() < until:
            time.sleep(0.01)
        late = threading.Timer(ANSWERED_WITHIN, _go, [running])
        late.start()
        try:
            expect("concurrent request", 409, 0, f"{key}-held", path="/held")
        finally:
            late.cancel()
            _go(running)
            held.join()
    return outcomes


def _go(running: Bed) -> None:
    """Let go what the upstream holds."""
    httpx.get(f"{running.upstream.url}/go", timeout=30)
