"""The parts of documents that are made from results: everything between a marker and its end is replaced.

    <!-- made by scripts/performance: NAME -->
    ...
    <!-- until here -->

``python -m loadtests.pages`` takes the newest results, draws the plots and fills the pages; `scripts/performance` runs it.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from loadtests import (
    aims,
    budget,
    builds,
    capacity,
    cluster,
    commands,
    console_report,
    cores,
    cost_report,
    duplicates,
    gateway_report,
    inbox,
    middleware_report,
    order,
    projections,
    pythons,
    relay,
    workers,
)
from loadtests.bed import OURS
from loadtests.machine import summary as describe
from loadtests.plots import draw
from loadtests.processes import HERE, ROOT
from loadtests.report import Results, Spread, Table, spread

KEPT = ROOT / "docs" / "performance"
PAGES = (
    "docs/performance.md",
    "docs/scaling.md",
    "docs/inbox.md",
    "docs/ordering.md",
    "docs/outbox.md",
    "docs/projections.md",
    "README.md",
)
BENCHES = (
    "gateway",
    "middleware",
    "cost",
    "duplicates",
    "inbox",
    "order",
    "relay",
    "projections",
    "budget",
    "console",
    "pythons",
    "cores",
)
MARKED = re.compile(r"(<!-- made by scripts/performance: ([a-z-]+) -->\n).*?(<!-- until here -->)", re.DOTALL)

Everything = dict[str, Results]


def kept() -> Everything:
    """The results that are in docs/performance."""
    return {name: Results.read(KEPT / f"{name}.json") for name in BENCHES}


def filled(text: str, results: Everything) -> str:
    """``text`` with every marked part made anew. Raises ``KeyError`` for a part that nobody makes."""
    return MARKED.sub(lambda found: f"{found[1]}\n{PARTS[found[2]](results)}\n\n{found[3]}", text)


# -- the parts --------------------------------------------------------------------------------------------------------


def _tables(tables: Iterable[Table]) -> str:
    return "\n\n".join(f"**{table.title}**\n\n{table.markdown()}" for table in tables)


def _machine(results: Everything) -> str:
    rows = []
    for name, each in results.items():
        about, machine = each.about, each.about["machine"]
        rounds = f"{each.settings['rounds']} x {each.settings.get('seconds', '-')} s"
        rows.append(
            [
                name,
                ", ".join(builds.of(each)),
                about["date"],
                f"`{about['commit']}`",
                rounds,
                f"{machine['load_before']:g}",
                f"`{about['command']}`",
            ]
        )
    machine = results["gateway"].about["machine"]
    versions = {**results["middleware"].versions, **results["gateway"].versions}
    listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return (
        f"{describe(machine)}. {listed}.\n\n"
        + Table("", ["bench", "builds", "begun", "commit", "rounds", "load before", "command"], rows).markdown()
    )


def others() -> list[Results]:
    """The results of `scripts/bench gateway` on other machines that are kept: docs/performance/others/NAME.json."""
    return [Results.read(path) for path in sorted((KEPT / "others").glob("*.json"))]


def on_other_machines(found: list[Results]) -> str:
    """Their machines and tables."""
    parts = [
        f"{describe(each.about['machine'])}; commit `{each.about['commit']}`.\n\n{_tables(gateway_report.tables(each))}"
        for each in found
    ]
    return "\n\n".join(parts) or "No other machine's results are kept yet."


def _of(what: str, build: str) -> str:
    """A heading, with the build where it is not the one from source."""
    return what if build == builds.SOURCE else f"{what}, {build}"


def _scaling(results: Everything) -> str:
    by_build = {
        build: capacity.needs(results["gateway"], results["cost"], build) for build in builds.of(results["gateway"])
    }
    costs, given, needs = by_build[builds.SOURCE]
    parts = [
        (_of("gateway process", build), of.gateway_first, of.gateway_replay) for build, (of, _, _) in by_build.items()
    ]
    parts.append(("Redis", costs.redis_first, costs.redis_replay))
    per = [
        [part, f"{first:.0f}", f"{replay:.0f}", f"{1e6 / first:,.0f}", f"{1e6 / replay:,.0f}"]
        for part, first, replay in parts
    ]
    loads = [
        [f"{need.requests_per_s:,.0f}", f"{need.ttl_hours:g} h",
         *(f"{of[number].gateway_cores:,}" for _, _, of in by_build.values()), f"{need.redis_cores:,}",
         f"{need.records:.2g}", f"{need.memory_tib:,.2f}", f"{need.masters:,}", f"{need.nodes:,}", f"{need.clusters:,}"]
        for number, need in enumerate(needs)
    ]  # fmt: skip
    assumed = (
        f"Assumed: {given.first_share:.0%} of the requests with a key are first requests, the others replays; cores "
        f"{given.busy:.0%} busy; nodes of {given.node_memory_gib} GiB, {given.filled:.0%} of it filled with records; "
        f"{given.replicas} replica of each master. Masters are what cores or memory ask for, whichever is more. A cluster is "
        f"meant for {capacity.CLUSTER_MOST:,} nodes at most."
    )
    size = f"A record of a 300-byte response takes {costs.record_bytes:.0f} bytes of Redis, its share of the tables included."
    costs_head = ["part", "CPU us, first", "CPU us, replay", "one core full at, first/s", "replays/s"]
    cores = [_of("gateway cores", build) for build in by_build]
    loads_head = ["requests/s", "ttl", *cores, "Redis cores", "records", "TiB", "masters", "nodes", "clusters"]
    return _tables(
        [Table("What a request costs", costs_head, per, size), Table("What a load needs", loads_head, loads, assumed)]
    )


_COMPILED = "Compiled is what released wheels and the image are; an installation from a checkout runs from source."
_MODES = {"first": "first request", "replay": "replay"}
_PERCENTILES = ("p50_ms", "p99_ms")


def _readme(results: Everything) -> str:
    """What people ask of speed first: milliseconds, requests per second and core, memory. Ratios are in docs/performance.md."""
    peers, ours, cost = results["middleware"], results["gateway"], results["cost"]
    measured = [build for build in builds.of(ours) if build in builds.of(peers)]
    rows: list[list[str]] = [
        ["gateway, one request at a time: ms added at p50 / p99, at most"],
        ["gateway, full: ms added to nginx's proxy_pass at p50 / p99"],
        ["gateway: requests per second and core"],
        ["FastAPI app with the middleware: requests per second and core"],
    ]
    head = [""]
    for build in measured:
        for mode, name in _MODES.items():
            head.append(_of(name, build))
            alone = cost.select(part="connections", mode=mode, connections=1) if builds.of(cost) == [build] else []
            full = ours.select(server=OURS[build], mode=mode, connections=32)
            passing = ours.select(server="nginx proxy_pass", mode="none", connections=32)
            app = peers.select(server=OURS[build], mode=mode)
            figures = (
                " / ".join(f"{spread(alone, each).median:.2f}" for each in _PERCENTILES) if alone else "-",
                " / ".join(f"{_added(full, passing, each):.2f}" for each in _PERCENTILES),
                f"{spread(full, 'requests_per_s').median:,.0f}",
                f"{spread(app, 'requests_per_s').median:,.0f}",
            )
            for row, figure in zip(rows, figures, strict=True):
                row.append(figure)
    without = spread(peers.select(server="alone", mode="first"), "requests_per_s").median
    largest, sent = cost_report.milestones(cost)[-1], cost.checks["commands"]
    return f"""\
{Table("", head, rows).markdown()}

A million keys take {largest["redis_bytes_per_record"]:.0f} MB of Redis, with responses of {cost.settings["body_bytes"]} bytes. \
{sent["first"]["sent"]:g} Redis commands for a first request, {sent["replay"]["sent"]:g} for a replay, {sent["none"]["sent"]:g} \
for what passes through. The app without the middleware answers {without:,.0f} requests per second.

"At most", since it is all of a request's time, the service's own, which answers at once, included. "Full" is 32 connections \
that are always busy. A dash: not measured of this build.{f" {_COMPILED}" if builds.COMPILED in measured else ""}"""


def _added(ours: list[dict[str, Any]], passing: list[dict[str, Any]], name: str) -> float:
    """The median of what ``name`` is more, round by round."""
    other = {sample["round"]: sample[name] for sample in passing}
    return Spread.of(sample[name] - other[sample["round"]] for sample in ours).median


PARTS: dict[str, Callable[[Everything], str]] = {
    "machine": _machine,
    "bar": lambda results: aims.table(results).markdown(),
    "gateway": lambda results: _tables(gateway_report.tables(results["gateway"])),
    "middleware": lambda results: _tables(middleware_report.tables(results["middleware"])),
    "cost": lambda results: _tables(cost_report.tables(results["cost"])),
    "duplicates": lambda results: _tables(duplicates.tables(results["duplicates"])),
    "inbox": lambda results: _tables(inbox.tables(results["inbox"])),
    "order": lambda results: _tables(order.tables(results["order"])),
    "relay": lambda results: _tables(relay.tables(results["relay"])),
    "projections": lambda results: _tables(projections.tables(results["projections"])),
    "budget": lambda results: _tables(budget.tables(results["budget"])),
    "console": lambda results: _tables(console_report.tables(results["console"])),
    "pythons": lambda results: _tables(pythons.tables(results["pythons"])),
    "worker": lambda results: _tables(commands.tables(cores.of_part(results["cores"], "commands"))),
    "workers": lambda results: _tables(workers.tables(cores.of_part(results["cores"], "workers"))),
    "cluster": lambda results: _tables(cluster.tables(cores.of_part(results["cores"], "cluster"))),
    "others": lambda _: on_other_machines(others()),
    "scaling": _scaling,
    "readme": _readme,
}


# -- the command ------------------------------------------------------------------------------------------------------


def take(folder: Path) -> list[str]:
    """Take over the results under ``folder``, where there are any, unless they are of a quick run. Says what was taken."""
    taken = []
    for name in BENCHES:
        source = folder / name / "results.json"
        if source.exists() and not json.loads(source.read_text())["settings"]["quick"]:
            KEPT.mkdir(parents=True, exist_ok=True)
            (KEPT / f"{name}.json").write_text(source.read_text())
            taken.append(name)
    return taken


def draw_all(results: Everything) -> None:
    """The plots of docs/performance.md."""
    plots: dict[str, tuple[str, Callable[[Results, Any], None]]] = {
        "gateway": ("gateway", gateway_report.plot), "middleware": ("middleware", middleware_report.plot),
        "soak": ("cost", cost_report.plot), "concurrency": ("cost", cost_report.plot_concurrency),
        "duplicates": ("duplicates", duplicates.plot), "inbox": ("inbox", inbox.plot),
        "order": ("order", order.plot),
        "relay": ("relay", relay.plot),
        "projections": ("projections", projections.plot),
        "budget": ("budget", budget.plot),
        "console": ("console", console_report.plot),
        "cores": ("cores", cores.plot),
    }  # fmt: skip
    for name, (bench, plot) in plots.items():
        draw(results[bench], plot, KEPT, name, formats=("svg",))


def fill(folder: Path) -> None:
    """Take what is under ``folder``, draw, and fill the pages; a line on standard output says what was done."""
    taken = take(folder)
    results = kept()
    draw_all(results)
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(path.read_text(), results))
    print(f"scripts/performance: took {', '.join(taken) or 'nothing new'}; filled {', '.join(PAGES)}")


if __name__ == "__main__":
    fill(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "results")
