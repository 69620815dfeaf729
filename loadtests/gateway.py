"""`scripts/bench gateway`: oncegate beside nginx's proxy_pass and nginx with the same job in Lua, in front of one upstream.

All run at once, each measured in turn, round after round, so that what disturbs the machine disturbs all. The server under
test has one core; wrk, Redis and the upstream share another. Before any of it, and during all of it, answers are checked.
"""

import threading
import time
from typing import Any

import httpx

from loadtests import bed, machine, processes
from loadtests.bed import LUA, ONCEGATE, PLAIN, Bed
from loadtests.load import Wrk
from loadtests.processes import BenchError
from loadtests.report import Results, Spread, Table, errors, paired, progress, spread

MODES = {"none": "pass-through", "first": "first request", "replay": "replay"}
CELLS = [
    (PLAIN, "none"), (LUA, "none"), (ONCEGATE, "none"),
    (LUA, "first"), (ONCEGATE, "first"), (LUA, "replay"), (ONCEGATE, "replay"),
]  # fmt: skip
CONNECTIONS = (32, 256)
ARRIVES_WITHIN = 0.4
"""Seconds for a request to be at the upstream, which takes 0.5 for it."""


def run(*, rounds: int, seconds: int, quick: bool) -> Results:
    """Measure all cells in turn, ``rounds`` times. Raises `BenchError` where a gateway answers wrongly."""
    if quick:
        rounds = seconds = 1
    server_core, load_core = machine.cores()
    wrk = Wrk(load_core, warm_up=0 if quick else 1)
    settings: dict[str, Any] = {
        "quick": quick, "rounds": rounds, "seconds": seconds, "connections": list(CONNECTIONS[:1] if quick else CONNECTIONS),
        "upstream": f"nginx: return 201 with {len(processes.BODY)} bytes of JSON",
        "request": "POST, about 200 bytes of JSON, Authorization",
    }  # fmt: skip
    results = Results("gateway", settings)
    with bed.gateways(server_core, load_core) as running, progress() as bar:
        for name in (LUA, ONCEGATE):
            results.checks[name] = check(running, name)
        task = bar.add_task("gateway", total=rounds * len(CELLS) * len(settings["connections"]))
        for number in range(rounds):
            for connections in settings["connections"]:
                turn = number % len(CELLS)
                for name, mode in CELLS[turn:] + CELLS[:turn]:
                    bar.update(
                        task, description=f"{name}, {MODES[mode]}, {connections} connections, round {number + 1}"
                    )
                    sample = _measure(running, wrk, name, mode, connections, seconds)
                    results.samples.append(
                        {"server": name, "mode": mode, "connections": connections, "round": number, **sample}
                    )
                    bar.advance(task)
        results.versions = bed.versions(running)
    return results


def _measure(running: Bed, wrk: Wrk, name: str, mode: str, connections: int, seconds: int) -> dict[str, Any]:
    sample = wrk.measure(running.target(name), mode, connections=connections, seconds=seconds)
    arrivals = sample["arrivals"] = sample.pop("executed")
    # wrk leaves when its time is over: one request per connection may arrive without having been counted, of this run and of
    # the one before.
    least = 0 if mode == "replay" else sample["requests"] - sample["errors"]
    most = 0 if mode == "replay" else sample["requests"] + 2 * connections
    if not least <= arrivals <= most:
        raise BenchError(f"{name}, {MODES[mode]}: {arrivals} arrivals upstream for {sample['requests']} requests")
    return sample


def check(running: Bed, name: str) -> dict[str, str]:
    """Look at a gateway's answers before it is measured; what is not as it should be ends the benchmark."""
    key = f"check-{time.monotonic_ns()}"
    told: dict[str, str] = {}
    with httpx.Client(base_url=running.urls[name], timeout=10) as client:

        def post(
            key: str = key, *, path: str = "/payments", content: bytes = b'{"amount":1999}', **headers: str
        ) -> httpx.Response:
            return client.post(path, content=content, headers={"Idempotency-Key": key, **headers})

        def expect(what: str, status: int, arrivals: int, *arguments: Any, **options: Any) -> httpx.Response:
            before = running.arrivals()
            answer = post(*arguments, **options)
            told[what] = f"{answer.status_code}, {running.arrivals() - before} arrivals"
            if told[what] != f"{status}, {arrivals} arrivals":
                raise BenchError(f"{name}: {what}: {told[what]}, not {status}, {arrivals} arrivals")
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
        slow = threading.Thread(target=post, args=(f"{key}-slow",), kwargs={"path": "/slow"})
        slow.start()
        until = time.monotonic() + ARRIVES_WITHIN
        while running.arrivals() == before and time.monotonic() < until:
            time.sleep(0.01)
        expect("concurrent request", 409, 0, f"{key}-slow", path="/slow")
        slow.join()
    return told


# -- what the samples say ---------------------------------------------------------------------------------------------


def reference(mode: str) -> str:
    """What oncegate is held against."""
    return PLAIN if mode == "none" else LUA


def cpu_ratio(results: Results, mode: str, connections: int) -> Spread:
    """The reference's server CPU per request over oncegate's: above 1, oncegate needs less. Pairs of one round."""
    ours, theirs = _pair(results, mode, connections)
    return paired(theirs, ours, "cpu_us", "server")


def rate_ratio(results: Results, mode: str, connections: int) -> Spread:
    """oncegate's requests per second over the reference's, in pairs of one round."""
    return paired(*_pair(results, mode, connections), "requests_per_s")


def p99_ratio(results: Results, mode: str, connections: int) -> Spread:
    """oncegate's p99 over the reference's, in pairs of one round: above 1, oncegate's is longer."""
    return paired(*_pair(results, mode, connections), "p99_ms")


def _pair(results: Results, mode: str, connections: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    ours = results.select(server=ONCEGATE, mode=mode, connections=connections)
    return ours, results.select(server=reference(mode), mode=mode, connections=connections)


def tables(results: Results) -> list[Table]:
    """All cells, and oncegate beside its references."""
    rows = []
    for connections in results.settings["connections"]:
        for name, mode in CELLS:
            cell = results.select(server=name, mode=mode, connections=connections)
            cpu = [spread(cell, "cpu_us", process).median for process in ("redis", "upstream")]
            rows.append([
                str(connections), name, MODES[mode], spread(cell, "requests_per_s").text(), spread(cell, "p50_ms").text(2),
                spread(cell, "p99_ms").text(2), spread(cell, "cpu_us", "server").text(1), *(f"{each:.1f}" for each in cpu),
                f"{spread(cell, 'cpu_share', 'server').median:.0%}",
            ])  # fmt: skip
    ratios = [
        [str(connections), MODES[mode], reference(mode), cpu_ratio(results, mode, connections).text(2),
         rate_ratio(results, mode, connections).text(2), p99_ratio(results, mode, connections).text(2)]
        for connections in results.settings["connections"] for mode in MODES
    ]  # fmt: skip
    head = ["connections", "server", "request", "requests/s", "p50, ms", "p99, ms", "server CPU, us/request",
            "Redis CPU, us", "upstream CPU, us", "of the server's core"]  # fmt: skip
    note = "Median (least-most) over the rounds. Where the server's core is not full, the other core was: see the CPU. "
    note += errors(results)
    return [
        Table("Gateways", head, rows, note),
        Table(
            "oncegate against nginx",
            [
                "connections",
                "request",
                "reference",
                "by server CPU per request",
                "by requests/s",
                "p99 over the reference's",
            ],
            ratios,
            "Above 1: oncegate needs less CPU, or answers more; of p99, below 1 is better. Pairs: median (least-most).",
        ),
    ]


def plot(results: Results, axes: Any) -> None:
    """Server CPU per request, by kind of request and server."""
    names = [PLAIN, LUA, ONCEGATE]
    connections = results.settings["connections"][0]
    for index, name in enumerate(names):
        places, heights, bars = [], [], []
        for place, mode in enumerate(MODES):
            cell = results.select(server=name, mode=mode, connections=connections)
            if cell:
                each = spread(cell, "cpu_us", "server")
                places.append(place + (index - 1) * 0.27)
                heights.append(each.median)
                bars.append((each.median - each.least, each.most - each.median))
        axes.bar(places, heights, 0.25, label=name, yerr=list(zip(*bars, strict=True)), capsize=3)
    axes.set_xticks(range(len(MODES)), MODES.values())
    axes.set_ylabel("server CPU per request, us")
    axes.set_title(f"Gateways, {connections} connections (less is better)")
    axes.legend()
