"""What the samples of `scripts/bench cost` say."""

from typing import Any

from loadtests import builds
from loadtests.cost import MILESTONES
from loadtests.report import Results, Table, errors, spread

MODES = {"first": "first request", "replay": "replay", "none": "no key"}
SETTLED = 0.1
"""The share of the soak after which the gateway's memory is expected not to grow any more."""


def build(results: Results) -> str:
    """The build that was measured, for a reader."""
    return "oncegate, compiled" if builds.of(results) == [builds.COMPILED] else "oncegate from source"


def milestones(results: Results) -> list[dict[str, Any]]:
    """The first look at or after each of 10^4, 10^5, 10^6 records."""
    samples = results.select(part="soak")
    found = []
    for milestone in MILESTONES:
        reached = [sample for sample in samples if sample["records"] >= milestone]
        found += reached[:1]
    return found or samples[-1:]


def growth(results: Results) -> tuple[float, float]:
    """How the gateway's memory changed after the first tenth of the soak: in bytes, and as what it is of what it was."""
    samples = results.select(part="soak")
    settled = [sample for sample in samples if sample["records"] >= SETTLED * samples[-1]["records"]]
    first, last = settled[0]["gateway_rss_bytes"], settled[-1]["gateway_rss_bytes"]
    return last - first, last / first


def tables(results: Results) -> list[Table]:
    """Commands, memory, and time by concurrency, size and workers."""
    issued = results.checks["commands"]
    commands = [
        [
            MODES[mode],
            f"{counts['sent']:g}",
            *(f"{counts[name]:g}" for name in counts if name not in ("sent", "evalsha")),
        ]
        for mode, counts in issued.items()
    ]
    names = [name.upper() for name in issued["first"] if name not in ("sent", "evalsha")]
    memory = [
        [f"{sample['records']:,}", f"{sample['redis_bytes_per_record']:.0f}", f"{sample['record_bytes']}",
         f"{sample['redis_bytes'] / 1e6:,.0f}", f"{sample['gateway_rss_bytes'] / 1e6:.1f}"]
        for sample in milestones(results)
    ]  # fmt: skip
    grown, ratio = growth(results)
    return [
        Table(
            "Redis commands per request",
            ["request", "sent (EVALSHA)", *(f"{name}, by the script" for name in names)],
            commands,
            f"All tables of this section: {build(results)}.",
        ),
        Table(
            "Memory per record",
            ["records", "Redis bytes per record", "MEMORY USAGE of one", "Redis, MB", "gateway RSS, MB"],
            memory,
            f"Responses of {results.settings['body_bytes']} bytes. After the first tenth of the soak the gateway's memory "
            f"changed by {grown / 1e6:+.1f} MB, to {ratio:.2f} of what it was. {errors(results)}",
        ),
        _table(results, "connections", "Latency by concurrency"),
        _table(results, "size", "Latency by size of both bodies, 8 connections"),
        _table(results, "workers", "Workers, on two cores shared with load, Redis and upstream, 64 connections"),
    ]


def _table(results: Results, by: str, title: str) -> Table:
    rows = []
    for mode in ("first", "replay"):
        for value in dict.fromkeys(sample[by] for sample in results.select(part=by)):
            cell = results.select(part=by, mode=mode, **{by: value})
            rows.append([
                f"{value:,}", MODES[mode], spread(cell, "requests_per_s").text(), spread(cell, "p50_ms").text(2),
                spread(cell, "p99_ms").text(2), spread(cell, "cpu_us", "server").text(1), spread(cell, "cpu_us", "redis").text(1),
            ])  # fmt: skip
    head = [
        "bytes" if by == "size" else by,
        "request",
        "requests/s",
        "p50, ms",
        "p99, ms",
        "gateway CPU, us",
        "Redis CPU, us",
    ]
    return Table(title, head, rows)


def plot(results: Results, axes: Any) -> None:
    """The gateway's memory over the soak, and Redis's per record."""
    samples = results.select(part="soak")
    axes.plot(
        [sample["records"] for sample in samples],
        [sample["gateway_rss_bytes"] / 1e6 for sample in samples],
        label="gateway RSS, MB",
    )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("first requests so far, a record each")
    axes.set_ylabel("MB")
    other = axes.twinx()
    other.plot(
        [sample["records"] for sample in samples],
        [sample["redis_bytes_per_record"] for sample in samples],
        "C1",
        label="Redis, bytes per record",
    )
    other.set_ylim(bottom=0)
    other.set_ylabel("bytes")
    axes.set_title(f"A soak of first requests: memory ({build(results)})")
    lines = [*axes.get_lines(), *other.get_lines()]
    axes.legend(lines, [line.get_label() for line in lines], loc="lower right")


def plot_concurrency(results: Results, axes: Any) -> None:
    """p50 and p99 by the number of connections."""
    counts = results.settings["connections"]
    for color, mode in enumerate(("first", "replay")):
        for name, style in (("p50_ms", "-"), ("p99_ms", "--")):
            values = [
                spread(results.select(part="connections", mode=mode, connections=count), name).median
                for count in counts
            ]
            axes.plot(counts, values, f"C{color}{style}", marker="o", label=f"{MODES[mode]}, {name[:3]}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("connections")
    axes.set_ylabel("ms")
    axes.set_title(
        f"Latency by concurrency, one worker on one core, as many requests as it can answer ({build(results)})"
    )
    axes.legend()
