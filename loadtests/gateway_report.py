"""What the samples of `scripts/bench gateway` say."""

from typing import Any

from loadtests.bed import COMPILED, LUA, ONCEGATE, PLAIN
from loadtests.gateway import CELLS, MODES
from loadtests.report import Results, Spread, Table, errors, paired, spread

OURS = (ONCEGATE, COMPILED)


def measured(results: Results, *names: str) -> list[str]:
    """Those of the servers that were measured: not every machine has the compiled build."""
    found = {sample["server"] for sample in results.samples}
    return [name for name in names if name in found]


def reference(mode: str) -> str:
    """What oncegate is held against."""
    return PLAIN if mode == "none" else LUA


def cpu_ratio(results: Results, mode: str, connections: int, name: str = ONCEGATE) -> Spread:
    """The reference's server CPU per request over oncegate's: above 1, oncegate needs less. Pairs of one round."""
    ours, theirs = _pair(results, mode, connections, name)
    return paired(theirs, ours, "cpu_us", "server")


def rate_ratio(results: Results, mode: str, connections: int, name: str = ONCEGATE) -> Spread:
    """oncegate's requests per second over the reference's, in pairs of one round."""
    return paired(*_pair(results, mode, connections, name), "requests_per_s")


def p99_ratio(results: Results, mode: str, connections: int, name: str = ONCEGATE) -> Spread:
    """oncegate's p99 over the reference's, in pairs of one round: above 1, oncegate's is longer."""
    return paired(*_pair(results, mode, connections, name), "p99_ms")


def _pair(
    results: Results, mode: str, connections: int, name: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    ours = results.select(server=name, mode=mode, connections=connections)
    return ours, results.select(server=reference(mode), mode=mode, connections=connections)


def tables(results: Results) -> list[Table]:
    """All cells, and oncegate beside its references."""
    rows, names = [], measured(results, PLAIN, LUA, *OURS)
    for connections in results.settings["connections"]:
        for name, mode in CELLS:
            if name not in names:
                continue
            cell = results.select(server=name, mode=mode, connections=connections)
            cpu = [spread(cell, "cpu_us", process).median for process in ("redis", "upstream")]
            rows.append([
                str(connections), name, MODES[mode], spread(cell, "requests_per_s").text(), spread(cell, "p50_ms").text(2),
                spread(cell, "p99_ms").text(2), spread(cell, "cpu_us", "server").text(1), *(f"{each:.1f}" for each in cpu),
                f"{spread(cell, 'cpu_share', 'server').median:.0%}",
            ])  # fmt: skip
    ratios = [
        [str(connections), MODES[mode], name, reference(mode), cpu_ratio(results, mode, connections, name).text(2),
         rate_ratio(results, mode, connections, name).text(2), p99_ratio(results, mode, connections, name).text(2)]
        for connections in results.settings["connections"] for mode in MODES for name in measured(results, *OURS)
    ]  # fmt: skip
    head = ["connections", "server", "request", "requests/s", "p50, ms", "p99, ms", "server CPU, us/request",
            "Redis CPU, us", "upstream CPU, us", "of the server's core"]  # fmt: skip
    note = "Median (least-most) over the rounds. Where the server's core is not full, the other core was: see the CPU. "
    note += errors(results)
    ratio_head = ["connections", "request", "server", "reference", "by server CPU per request", "by requests/s",
                  "p99 over the reference's"]  # fmt: skip
    return [
        Table("Gateways", head, rows, note),
        Table(
            "oncegate against nginx",
            ratio_head,
            ratios,
            "Above 1: oncegate needs less CPU, or answers more; of p99, below 1 is better. Pairs: median (least-most).",
        ),
    ]


def plot(results: Results, axes: Any) -> None:
    """Server CPU per request, by kind of request and server."""
    names = measured(results, PLAIN, LUA, *OURS)
    connections = results.settings["connections"][0]
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        places, heights, bars = [], [], []
        for place, mode in enumerate(MODES):
            cell = results.select(server=name, mode=mode, connections=connections)
            if cell:
                each = spread(cell, "cpu_us", "server")
                places.append(place + (index - (len(names) - 1) / 2) * width)
                heights.append(each.median)
                bars.append((each.median - each.least, each.most - each.median))
        axes.bar(places, heights, 0.92 * width, label=name, yerr=list(zip(*bars, strict=True)), capsize=3)
    axes.set_xticks(range(len(MODES)), MODES.values())
    axes.set_ylabel("server CPU per request, us")
    axes.set_title(f"Gateways, {connections} connections (less is better)")
    axes.legend()
