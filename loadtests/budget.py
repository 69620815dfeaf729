"""`scripts/bench budget`: where the instructions of one request go, by stage, in both builds; beside the floor of `floor.py`.

Counted as `scripts/bench instructions` counts, by function (`functions.py`), and put together by the table of `stages.py`.
Results keep what each function took, so that another cut into stages needs no other run.
"""

import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from loadtests import builds, functions, processes, stages
from loadtests.instructions import CONNECTIONS, MODES, READY_WITHIN, Checkout, control, in_lockstep, serving
from loadtests.processes import ROOT, BenchError, Process
from loadtests.report import Results, Table, progress

REQUESTS = 16
"""Of each connection and each kind, behind half as many that warm up."""
SHOWN = 12
"""The functions that took most: so many rows of each kind."""
SUBMISSIONS = {"ONCEGATE_ROUTES": '[{"path": "/payments", "mode": "either"}]'}
BUDGETED: tuple[tuple[str, tuple[str, ...], Mapping[str, str]], ...] = (
    ("gateway", ("GET that passes", "first request", "replay"), {}),
    ("gateway", ("submission",), SUBMISSIONS),
    ("app", MODES["app"], {}),
)
"""A door, the requests that are counted there, and what is set for them. The floor is counted with the gateway's first three."""
FLOOR = "floor"


def run(*, build: str | None, quick: bool) -> Results:
    """Count each request of `BUDGETED` by function. Raises `BenchError` where there is no C compiler, or an answer is wrong."""
    valgrind = processes.tool("valgrind")
    requests = 4 if quick else REQUESTS
    checkouts = [Checkout("this", ROOT, each, path) for each, path in _paths(build, quick=quick)]
    runs = [(checkout, *each) for checkout in checkouts for each in BUDGETED]
    settings = {
        "quick": quick,
        "rounds": 1,
        "requests": requests * CONNECTIONS,
        "builds": [each.build for each in checkouts],
    }
    results = Results("budget", settings)
    with progress() as bar, tempfile.TemporaryDirectory(prefix="oncegate-bench-") as name:
        folder = Path(name)
        functions.built(folder)
        task = bar.add_task("budget", total=2 * len(runs) + 1)
        floor = Checkout("this", ROOT, FLOOR, None)
        for mode, cost, objects in _whole(floor, FLOOR, BUDGETED[0][1], {}, valgrind, requests, folder):
            found = {"instructions": cost, "functions": {}, "objects": objects}
            results.samples.append({"build": FLOOR, "door": FLOOR, "mode": mode, **found})
        bar.advance(task)
        for checkout, door, modes, variables in runs:
            bar.update(task, description=f"{door}, {checkout.build}")
            wholes = {
                mode: {"instructions": cost, "objects": objects}
                for mode, cost, objects in _whole(checkout, door, modes, variables, valgrind, requests, folder)
            }
            bar.advance(task)
            for mode, costs in _by_function(checkout, door, modes, variables, valgrind, requests, folder):
                sample = {"build": checkout.build, "door": door, "mode": mode}
                results.samples.append({**sample, **wholes[mode], "functions": costs})
            bar.advance(task)
    return results


def _paths(build: str | None, *, quick: bool) -> Iterator[tuple[str, Path | None]]:
    if build != builds.COMPILED:
        yield builds.SOURCE, None
    if build != builds.SOURCE:
        path = builds.chosen(build, quick=quick)
        if path is not None:
            yield builds.COMPILED, path


def _whole(
    checkout: Checkout,
    door: str,
    modes: Sequence[str],
    variables: Mapping[str, str],
    valgrind: str,
    requests: int,
    folder: Path,
) -> Iterator[tuple[str, float, dict[str, float]]]:
    """What each request takes in all, undisturbed, and how many objects it makes."""
    out = folder / "callgrind.whole"
    options = [f"--callgrind-out-file={out}", "--dump-line=no"]
    with serving(checkout, door, valgrind, callgrind=options, variables=variables) as (server, clients):
        numbers = count()
        control(valgrind, "-i", "on", server)
        for mode in modes:
            in_lockstep(clients, mode, max(2, requests // 2), numbers)
            dumped(valgrind, server, out)
            in_lockstep(clients, mode, requests, numbers)
            dump = dumped(valgrind, server, out)
            many = requests * CONNECTIONS
            objects = {name: made / many for name, made in functions.made(functions.calls(dump)).most_common()}
            yield mode, functions.costs(dump).total() / many, objects


def _by_function(
    checkout: Checkout,
    door: str,
    modes: Sequence[str],
    variables: Mapping[str, str],
    valgrind: str,
    requests: int,
    folder: Path,
) -> Iterator[tuple[str, dict[str, float]]]:
    out, listed = folder / "callgrind.out", folder / "functions"
    options = [*functions.skipped(), f"--callgrind-out-file={out}", "--dump-line=no"]
    with serving(
        checkout,
        door,
        valgrind,
        callgrind=options,
        variables={**variables, "BENCH_FRAMES": str(listed)},
        modules=folder,
    ) as (server, clients):
        numbers = count()
        control(valgrind, "-i", "on", server)
        for mode in modes:
            in_lockstep(clients, mode, max(2, requests // 2), numbers)
            dumped(valgrind, server, out)
            in_lockstep(clients, mode, requests, numbers)
            costs = functions.named(functions.costs(dumped(valgrind, server, out)), listed)
            yield mode, {name: cost / (requests * CONNECTIONS) for name, cost in costs.most_common()}


def dumped(valgrind: str, server: Process | subprocess.Popen[str], out: Path) -> Path:
    """What was counted since the last dump. Raises `BenchError` where callgrind doesn't write it."""
    for old in out.parent.glob(f"{out.name}*"):
        old.unlink()
    control(valgrind, "-d", None, server)
    until = time.monotonic() + READY_WITHIN
    while not (found := list(out.parent.glob(f"{out.name}.*"))) or "\ntotals:" not in found[0].read_text(
        errors="replace"
    ):
        if time.monotonic() > until:
            raise BenchError("callgrind has not written down what it counted")
        time.sleep(0.05)
    return found[0]


def by_stage(sample: Mapping[str, Any]) -> dict[str, float]:
    """Instructions of each stage. What counting by function adds is taken out again, of each stage as much of it."""
    costs: Counter[str] = Counter()
    for function, cost in sample["functions"].items():
        costs[stages.of(function)] += cost
    scale = sample["instructions"] / sum(costs.values())
    return {stage: costs[stage] * scale for stage in stages.ORDER}


def tables(results: Results) -> list[Table]:
    """Thousands of instructions by stage, each build; beside it the floor."""
    made = []
    for build in results.settings["builds"]:
        samples = results.select(build=build)
        parts = [by_stage(sample) for sample in samples]
        rows = [[stage, *(_thousands(part[stage]) for part in parts)] for stage in stages.ORDER]
        rows.append(["**all**", *(_thousands(sample["instructions"]) for sample in samples)])
        floors = {sample["mode"]: _thousands(sample["instructions"]) for sample in results.select(build=FLOOR)}
        rows.append(
            ["the bare floor", *(floors.get(s["mode"], "-") if s["door"] == "gateway" else "-" for s in samples)]
        )
        head = ["stage", *(f"{sample['door']}: {sample['mode']}" for sample in samples)]
        added = max(sum(s["functions"].values()) / s["instructions"] for s in samples) - 1
        note = (
            "Thousands of instructions per request. Counting by function adds at most "
            f"{added:.0%}, which is taken out of each stage alike."
        )
        made.append(Table(f"Instructions by stage, {_build(build)}", head, rows, note))
    return [*made, objects_table(results)]


OBJECTS_AT_LEAST = 0.5
"""Of a request: what is made more rarely is left out of the table."""


def objects_table(results: Results) -> Table:
    """How many objects a request at the gateway makes anew, by type; compiled classes by their names."""
    samples = [sample for sample in results.samples if sample["door"] == "gateway"]
    kinds = {kind: most for sample in samples for kind, most in sample["objects"].items() if most >= OBJECTS_AT_LEAST}
    most = {kind: max(sample["objects"].get(kind, 0) for sample in samples) for kind in kinds}
    rows = [
        [f"`{kind}`", *(f"{sample['objects'].get(kind, 0):,.1f}" for sample in samples)]
        for kind in sorted(most, key=lambda kind: -most[kind])
    ]
    head = ["made anew", *(f"{sample['mode']}, {_build(sample['build'])}" for sample in samples)]
    note = "By calls of what makes them. From source a class's instances are among all objects alone."
    return Table("Objects that one request makes, gateway", head, rows, note)


def functions_table(results: Results, build: str, door: str) -> Table:
    """The functions that took most."""
    rows = []
    for sample in results.select(build=build, door=door):
        most = sorted(sample["functions"].items(), key=lambda each: -each[1])[:SHOWN]
        rows += [[sample["mode"], f"`{name}`", stages.of(name), f"{cost:,.0f}"] for name, cost in most]
    head = ["request", "function", "stage", "instructions"]
    return Table(f"The functions with most instructions, {door}, {_build(build)}", head, rows)


def _build(build: str) -> str:
    return "from source" if build == builds.SOURCE else build


def _thousands(instructions: float) -> str:
    return f"{instructions / 1000:,.1f}"


def plot(results: Results, axes: Any) -> None:
    """A bar for each request: its stages, one behind the other."""
    samples = [sample for sample in results.samples if sample["build"] != FLOOR]
    names = [f"{sample['door']}, {sample['mode']}, {_build(sample['build'])}" for sample in samples]
    parts = [by_stage(sample) for sample in samples]
    left = [0.0] * len(samples)
    for number, stage in enumerate(stages.ORDER):
        widths = [part[stage] / 1000 for part in parts]
        axes.barh(
            names, widths, left=left, label=stage, color=f"C{number % 10}", hatch=["", "///", "..."][number // 10]
        )
        left = [before + width for before, width in zip(left, widths, strict=True)]
    floors = {sample["mode"]: sample["instructions"] for sample in results.select(build=FLOOR)}
    for row, sample in enumerate(samples):
        if sample["door"] == "gateway" and sample["mode"] in floors:
            floor = floors[sample["mode"]] / 1000
            axes.plot([floor, floor], [row - 0.4, row + 0.4], "k--", label="the bare floor" if not row else None)
    axes.invert_yaxis()
    axes.set_xlabel("thousands of instructions in user space per request")
    axes.set_title("Where the instructions of a request go")
    axes.figure.legend(fontsize=6, ncols=5, loc="outside lower center")
