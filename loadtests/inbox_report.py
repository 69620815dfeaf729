"""What the results of `scripts/bench inbox` say: ratios with their aims, and the plot."""

from typing import Any, Final

from loadtests.inbox import HANDLERS, RATIOS
from loadtests.report import Results, Spread, Table, measured, paired, spread

MOST_BYTES: Final = 180
LEAST_PRUNED: Final = 50_000
MOST_LATE: Final = 2.0


def tables(results: Results) -> list[Table]:
    """The ratios, and what they are of."""
    rows = []
    for what, ours, theirs, least in RATIOS:
        both = results.select(handler=ours), results.select(handler=theirs)
        if not all(both):
            continue  # results of an earlier form
        ratio = paired(*both, "per_s")
        aim, reached = ("-", "-") if least is None else (f">= {least:g}", _yes(ratio.median >= least))
        rows.append([f"{what}, by rate", aim, ratio.text(2), reached])
    size = results.checks["bytes_per_marker"]
    rows.append(["bytes per marker, index included", f"<= {MOST_BYTES}", f"{size:.0f}", _yes(size <= MOST_BYTES)])
    if cleanup := results.select(handler="cleanup"):
        rate = spread(cleanup, "pruned_per_s")
        late = Spread.of(sample["p99_beside_ms"] / sample["p99_alone_ms"] for sample in cleanup)
        rows.append(
            ["markers pruned per second", f">= {LEAST_PRUNED:,}", rate.text(), _yes(rate.median >= LEAST_PRUNED)]
        )
        rows.append(
            [
                "p99 of deliveries, beside cleanup / alone",
                f"<= {MOST_LATE:g}",
                late.text(2),
                _yes(late.median <= MOST_LATE),
            ]
        )
    rates = [
        [words, spread(cell, "per_s").text(), spread(cell, "cpu_us").text()]
        for name, words in HANDLERS.items()
        if (cell := results.select(handler=name))
    ]
    versions = ", ".join(f"{name} {number}" for name, number in results.versions.items())
    note = (
        f"{versions}. {results.settings['at_once']} at once, each in a transaction of its own; PostgreSQL without "
        "fsync, which makes a marker's share of the time larger, not smaller. Median (least-most) over the rounds. "
        f"{measured(results)}"
    )
    return [
        Table("What a marker costs", ["what", "aim", "measured", "reached"], rows),
        Table("Handlers", ["handler", "transactions/s", "its own CPU, us"], rates, note),
    ]


def _yes(reached: bool) -> str:
    return "yes" if reached else "**no**"


def plot(results: Results, axes: Any) -> None:
    """Transactions per second, by handler."""
    names = [name for name in HANDLERS if results.select(handler=name)][::-1]
    rates = [spread(results.select(handler=name), "per_s") for name in names]
    bars = [(each.median - each.least, each.most - each.median) for each in rates]
    colors = ["C0" if "inbox" in name or "duplicate" in name else "C7" for name in names]
    axes.barh(
        [HANDLERS[name] for name in names],
        [each.median for each in rates],
        xerr=list(zip(*bars, strict=True)),
        color=colors,
        capsize=3,
    )
    axes.set_xlabel("transactions per second (more is better)")
    axes.set_title(f"Handlers with and without the inbox, PostgreSQL, {results.settings['at_once']} at once")
