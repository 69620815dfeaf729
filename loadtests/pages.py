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

from loadtests import capacity, cost_report, duplicates, gateway, middleware
from loadtests.bed import ONCEGATE
from loadtests.processes import HERE, ROOT
from loadtests.report import Results, Table, spread

KEPT = ROOT / "docs" / "performance"
PAGES = ("docs/performance.md", "docs/scaling.md", "README.md")
BENCHES = ("gateway", "middleware", "cost", "duplicates")
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
                about["date"],
                f"`{about['commit']}`",
                rounds,
                f"{machine['load_before']:g}",
                f"`{about['command']}`",
            ]
        )
    machine = results["gateway"].about["machine"]
    versions = {**results["middleware"].versions, **results["gateway"].versions}
    told = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']:g} GiB, Linux {machine['kernel']}, "
        f"Python {machine['python']}; {machine['pinned']}. {told}.\n\n"
        + Table("", ["bench", "begun", "commit", "rounds", "load before", "command"], rows).markdown()
    )


def _bar(results: Everything) -> str:
    """Each figure that was promised beside the one that was measured."""
    ours, peers, cost = results["gateway"], results["middleware"], results["cost"]
    rows: list[tuple[str, float, str, bool]] = []

    def at_least(what: str, measured: float, least: float) -> None:
        rows.append((what, measured, f">= {least:g}", measured >= least))

    def at_most(what: str, measured: float, most: float) -> None:
        rows.append((what, measured, f"<= {most:g}", measured <= most))

    for mode, least in (("none", 0.97), ("first", 0.8), ("replay", 4.0)):
        ratio = middleware.by_rate(peers, "oncegate", "alone", mode).median
        at_least(f"middleware, {middleware.MODES[mode]}: requests/s, app alone = 1", ratio, least)
    for mode, least in (("first", 1.8), ("replay", 4.0)):
        best = middleware.best_peer(peers, mode)
        ratio = middleware.by_rate(peers, "oncegate", best, mode).median
        at_least(f"middleware, {middleware.MODES[mode]}: requests/s, {best} = 1", ratio, least)
    for mode, least in (("none", 0.38), ("first", 0.8), ("replay", 0.6)):
        reference = gateway.reference(mode)
        for connections in ours.settings["connections"]:
            ratio = gateway.cpu_ratio(ours, mode, connections).median
            at_least(f"gateway, {gateway.MODES[mode]}, {connections} connections: CPU, {reference} = 1", ratio, least)
    for mode in ("first", "replay"):
        p99 = gateway.p99_ratio(ours, mode, 256).median
        at_most(f"gateway, {gateway.MODES[mode]}, 256 connections: p99, nginx + Lua = 1", p99, 1.0)
    sent = cost.checks["commands"]
    at_most("Redis commands for a first request", sent["first"]["sent"], 2)
    at_most("Redis commands for a replay", sent["replay"]["sent"], 1)
    look = cost_report.milestones(cost)[-1]
    at_most("Redis bytes per 300-byte record, by MEMORY USAGE", look["record_bytes"], 620)
    at_most("the same, with its share of Redis's tables", look["redis_bytes_per_record"], 620)
    at_most("gateway memory at the end of the soak, after its first tenth = 1", cost_report.growth(cost)[1], 1.1)
    storm = results["duplicates"]
    largest = storm.settings["storms"][-1]
    arrivals = max(sample["arrivals"] for sample in storm.select(size=largest))
    at_most(f"arrivals of {largest:,} concurrent duplicates", arrivals, 1)
    lines = [
        [what, f"{measured:.2f}".rstrip("0").rstrip("."), bar, "yes" if met else "**no**"]
        for what, measured, bar, met in rows
    ]
    return Table("", ["what", "measured (median)", "aim", "reached"], lines).markdown()


def _scaling(results: Everything) -> str:
    costs, given, needs = capacity.needs(results["gateway"], results["cost"])
    per = [
        [part, f"{first:.0f}", f"{replay:.0f}", f"{1e6 / first:,.0f}", f"{1e6 / replay:,.0f}"]
        for part, first, replay in (
            ("gateway process", costs.gateway_first, costs.gateway_replay),
            ("Redis", costs.redis_first, costs.redis_replay),
        )
    ]
    loads = [
        [f"{need.requests_per_s:,.0f}", f"{need.ttl_hours:g} h", f"{need.gateway_cores:,}", f"{need.redis_cores:,}",
         f"{need.records:.2g}", f"{need.memory_tib:,.2f}", f"{need.masters:,}", f"{need.nodes:,}", f"{need.clusters:,}"]
        for need in needs
    ]  # fmt: skip
    assumed = (
        f"Assumed: {given.first_share:.0%} of the requests with a key are first requests, the others replays; cores "
        f"{given.busy:.0%} busy; nodes of {given.node_memory_gib} GiB, {given.filled:.0%} of it filled with records; "
        f"{given.replicas} replica of each master. Masters are what cores or memory ask for, whichever is more. A cluster is "
        f"meant for {capacity.CLUSTER_MOST:,} nodes at most."
    )
    size = f"A record of a 300-byte response takes {costs.record_bytes:.0f} bytes of Redis, its share of the tables included."
    costs_head = ["part", "CPU us, first", "CPU us, replay", "one core full at, first/s", "replays/s"]
    loads_head = ["requests/s", "ttl", "gateway cores", "Redis cores", "records", "TiB", "masters", "nodes", "clusters"]
    return _tables(
        [Table("What a request costs", costs_head, per, size), Table("What a load needs", loads_head, loads, assumed)]
    )


def _readme(results: Everything) -> str:
    peers, ours, cost = results["middleware"], results["gateway"], results["cost"]
    alone = {mode: middleware.by_rate(peers, "oncegate", "alone", mode).median for mode in ("first", "replay")}
    best = {mode: middleware.best_peer(peers, mode) for mode in alone}
    better = {mode: middleware.by_rate(peers, "oncegate", best[mode], mode).median for mode in best}
    rate = {
        mode: spread(ours.select(server=ONCEGATE, mode=mode, connections=32), "requests_per_s").median
        for mode in gateway.MODES
    }
    lua = {mode: gateway.cpu_ratio(ours, mode, 32).median for mode in gateway.MODES}
    look, sent = cost_report.milestones(cost)[-1], cost.checks["commands"]
    return f"""\
| requests/s | first request | replay |
| --- | --- | --- |
| in a FastAPI app, the app alone = 1 | {alone["first"]:.2f} | {alone["replay"]:.2f} |
| the same, the best other middleware = 1 | {better["first"]:.2f} ({best["first"]}) | {better["replay"]:.2f} ({best["replay"]}) |
| as a gateway, one process on one core | {rate["first"]:,.0f} | {rate["replay"]:,.0f} |
| the same by CPU per request, nginx with the job in Lua = 1 | {lua["first"]:.2f} | {lua["replay"]:.2f} |

{sent["first"]["sent"]:g} Redis commands for a first request, {sent["replay"]["sent"]:g} for a replay, {sent["none"]["sent"]:g} \
for what passes through ({lua["none"]:.2f} of nginx's proxy_pass by CPU). The record of a 300-byte response takes \
{look["record_bytes"]:.0f} bytes of Redis."""


PARTS: dict[str, Callable[[Everything], str]] = {
    "machine": _machine,
    "bar": _bar,
    "gateway": lambda results: _tables(gateway.tables(results["gateway"])),
    "middleware": lambda results: _tables(middleware.tables(results["middleware"])),
    "cost": lambda results: _tables(cost_report.tables(results["cost"])),
    "duplicates": lambda results: _tables(duplicates.tables(results["duplicates"])),
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
    from loadtests.plots import draw  # matplotlib takes a second that the other uses of this module need not

    plots: dict[str, tuple[str, Callable[[Results, Any], None]]] = {
        "gateway": ("gateway", gateway.plot), "middleware": ("middleware", middleware.plot), "soak": ("cost", cost_report.plot),
        "concurrency": ("cost", cost_report.plot_concurrency), "duplicates": ("duplicates", duplicates.plot),
    }  # fmt: skip
    for name, (bench, plot) in plots.items():
        draw(results[bench], plot, KEPT, name, formats=("svg",))


def main() -> None:
    """Take, draw, fill."""
    taken = take(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "results")
    results = kept()
    draw_all(results)
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(path.read_text(), results))
    print(f"scripts/performance: took {', '.join(taken) or 'nothing new'}; filled {', '.join(PAGES)}")


if __name__ == "__main__":
    main()
