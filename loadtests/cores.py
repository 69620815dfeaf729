"""`scripts/bench cores`: what more than one core brings: a worker beside a gateway, workers of a gateway, masters under gateways.

Each part is a file of its own: `loadtests.commands`, `loadtests.workers`, `loadtests.cluster`.
"""

from types import ModuleType
from typing import Any, Final

from loadtests import builds, cluster, commands, workers
from loadtests.report import Results, Table, spread

PARTS: Final[dict[str, ModuleType]] = {"commands": commands, "workers": workers, "cluster": cluster}


def run(*, rounds: int, seconds: float, build: str | None = None, quick: bool) -> Results:
    """Measure all of it. ``build`` is one of `builds.BUILDS`, of gateways; the worker is measured in both.

    Raises `BenchError` where something answers wrongly, or there is no such build.
    """
    compiled = builds.chosen(build, quick=quick)
    there = [builds.COMPILED if compiled else builds.SOURCE]
    settings: dict[str, Any] = {"builds": there, "quick": quick, "rounds": rounds, "seconds": seconds}
    results = Results("cores", settings)
    for name, part in PARTS.items():
        measured: Results = part.run(rounds=rounds, seconds=seconds, build=build, quick=quick)
        settings[name] = measured.settings
        results.samples += [{"part": name, **sample} for sample in measured.samples]
    return results


def of_part(results: Results, name: str) -> Results:
    """The results of one part."""
    settings = results.settings[name] | {"builds": builds.of(results)}
    return Results(name, settings, results.select(part=name), about=results.about)


def tables(results: Results) -> list[Table]:
    """Those of all parts."""
    return [table for name, part in PARTS.items() for table in part.tables(of_part(results, name))]


def plot(results: Results, axes: Any) -> None:
    """How much more the busiest worker does than the idlest one."""
    settings = results.settings["workers"]
    most = max(settings["workers"])
    for server in dict.fromkeys(sample["server"] for sample in results.select(part="workers")):
        for mode in ("none", "first"):
            cells = [
                results.select(part="workers", server=server, mode=mode, connections=size, workers=most)
                for size in settings["connections"]
            ]
            if all(cells):
                kind = "no key" if mode == "none" else "first request"
                name = "oncegate" if server == "ours" else server
                values = [spread(each, "largest_to_smallest").median for each in cells]
                axes.plot(settings["connections"], values, marker="o", label=f"{name}, {kind}")
    axes.axhline(workers.LARGEST, color="grey", linestyle=":", label="aim")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("connections")
    axes.set_ylabel("requests of the busiest worker / of the idlest")
    axes.set_title(f"How {most} workers share requests")
    axes.legend()
