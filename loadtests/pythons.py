"""`scripts/bench pythons`: a gateway in each of several environments, which differ by their Python, or by oncegate's build.

An environment is a virtual one in which oncegate is installed, in a folder beside the others. What is counted is the instructions
of a request, as `scripts/bench instructions` does; what is measured is its processor time under wrk, all in turn, as
`scripts/bench gateway` does, which also looks at the answers of each.
"""

import re
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtests import bed, builds, gateway, instructions, machine, processes
from loadtests.instructions import Checkout
from loadtests.load import QUICK_SECONDS, Wrk
from loadtests.processes import ROOT, BenchError
from loadtests.report import Results, Table, measured, progress, spread

FOLDER = Path(".cache/pythons")
CONNECTIONS = 32
MODES = {"none": "POST without a key", "first": "first request", "replay": "replay"}
"""What `scripts/bench gateway` calls a kind of request, and what `scripts/bench instructions` calls it."""
_VERSION = re.compile(r", (compiled|from source), (\S+ \S+)$")
_COMPILER = (
    "import platform, sysconfig; print(platform.python_compiler(), sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
)


@dataclass(frozen=True)
class Environment:
    """A Python with oncegate: ``build`` is one of `builds.BUILDS`, ``interpreter`` as `oncegate --version` names it."""

    name: str
    build: str
    interpreter: str
    compiler: str
    free_threaded: bool


def found(folder: Path) -> dict[Path, Environment]:
    """The environments in ``folder``, by name. Raises `BenchError` where there is none, or one has no oncegate."""
    there = sorted(path.parent.parent for path in folder.glob("*/bin/python"))
    if not there:
        raise BenchError(f"no environment in {folder}: make them there, as docs/performance.md shows")
    return {path: _described(path) for path in there}


def _described(path: Path) -> Environment:
    version = _printed(path / "bin" / "oncegate", "--version")
    match = _VERSION.search(version)
    if match is None:
        raise BenchError(f"{path.name}: oncegate --version says {version or 'nothing'}")
    compiler, _, free = _printed(path / "bin" / "python", "-c", _COMPILER).rpartition(" ")
    build = builds.COMPILED if match[1] == "compiled" else builds.SOURCE
    return Environment(path.name, build, match[2], compiler, free == "1")


def _printed(*command: str | Path) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise BenchError(f"{command[0]} does not run: is oncegate installed there? ({type(error).__name__})") from None


def run(*, folder: Path, rounds: int, seconds: float, quick: bool) -> Results:
    """Count all that is in ``folder``, and measure it in ``rounds``. Raises `BenchError` where a gateway answers wrongly."""
    if quick:
        rounds, seconds = 1, QUICK_SECONDS
    there = found(ROOT / folder)
    settings: dict[str, Any] = {
        "environments": [asdict(each) for each in there.values()],
        "builds": [build for build in builds.BUILDS if any(each.build == build for each in there.values())],
        "quick": quick, "rounds": rounds, "seconds": seconds, "connections": CONNECTIONS,
    }  # fmt: skip
    results = Results("pythons", settings)
    _count(results, there, quick=quick)
    if rounds:
        _measure(results, there, rounds, seconds, quick=quick)
    return results


def _count(results: Results, there: dict[Path, Environment], *, quick: bool) -> None:
    valgrind = processes.tool("valgrind")
    with progress() as bar:
        task = bar.add_task("instructions", total=len(there))
        for path, each in there.items():
            bar.update(task, description=f"instructions, {each.name}")
            checkout = Checkout(each.name, ROOT, each.build, None, environment=path)
            for mode, count in instructions.count_requests(checkout, "gateway", valgrind, quick=quick):
                if mode in MODES.values():
                    results.samples.append({"environment": each.name, "mode": mode, "instructions": count})
            bar.advance(task)


def _measure(results: Results, there: dict[Path, Environment], rounds: int, seconds: float, *, quick: bool) -> None:
    server_core, load_core = machine.cores()
    wrk = Wrk(load_core, warm_up=0 if quick else 1)
    compiled = {path: each.build == builds.COMPILED for path, each in there.items()}
    cells = [(each.name, mode) for mode in MODES for each in there.values()]
    with bed.environments(server_core, load_core, compiled, patient=quick) as running, progress() as bar:
        results.checks |= gateway.check_all(running)
        task = bar.add_task("processor time", total=rounds * len(cells))
        for number in range(rounds):
            turn = number % len(cells)
            for name, mode in cells[turn:] + cells[:turn]:
                bar.update(task, description=f"{name}, {gateway.MODES[mode]}, round {number + 1}")
                sample = gateway.measure(running, wrk, name, mode, connections=CONNECTIONS, seconds=seconds)
                results.samples.append({"environment": name, "mode": MODES[mode], "round": number, **sample})
                bar.advance(task)
        results.versions = bed.versions(running)


def tables(results: Results) -> list[Table]:
    """A row for each environment: thousands of instructions, then microseconds, of a request of each kind."""
    counted, timed = [], []
    for each in (Environment(**known) for known in results.settings["environments"]):
        free = ", free-threaded" if each.free_threaded else ""
        row = [each.name, f"{each.interpreter}, {each.compiler}{free}", each.build]
        samples = {mode: results.select(environment=each.name, mode=mode) for mode in MODES.values()}
        instructions_of = [_having("instructions", of) for of in samples.values()]
        cpu_of = [_having("cpu_us", of) for of in samples.values()]
        counted.append([*row, *(f"{spread(of, 'instructions').median / 1000:,.1f}" for of in instructions_of)])
        if all(cpu_of):
            timed.append([*row, *(spread(of, "cpu_us", "server").text(1) for of in cpu_of)])
    head = ["environment", "Python", "oncegate", *MODES.values()]
    rounds = (
        f"{results.settings['rounds']} rounds, {CONNECTIONS} connections: median, least and most. {measured(results)}"
    )
    note = f"In user space, without the kernel. Counted {results.about['date'][:10]} at `{results.about['commit']}`."
    made = [Table("Thousands of instructions of a request, by Python", head, counted, note)]
    if timed:
        made.append(Table("The gateway's CPU of a request in us, by Python", head, timed, rounds))
    return made


def _having(figure: str, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [sample for sample in samples if figure in sample]
