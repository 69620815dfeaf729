"""What the samples of `scripts/bench console` say: the aims, each page, and clients beside those that are open."""

from typing import Any

from loadtests import builds
from loadtests.console import OPEN
from loadtests.report import Results, Table, measured, paired, spread

FIRST_BYTE_MS, HOLD_MS, P99, WHEEL_KB = 300.0, 5.0, 1.1, 150.0
"""The aims."""


def tables(results: Results) -> list[Table]:
    """The aims; each page; clients beside those that are open."""
    shown = dict.fromkeys(sample["page"] for sample in results.select(part="page"))
    pages = {name: results.select(part="page", page=name) for name in sorted(shown)}
    firsts = {name: spread(samples, "first_byte_ms") for name, samples in pages.items()}
    holds = {name: spread(samples, "hold_ms") for name, samples in pages.items()}
    nobody = results.select(part="clients", page="")
    beside = {name: results.select(part="clients", page=name) for name in OPEN}
    ratios = {name: paired(samples, nobody, "p99_ms") for name, samples in beside.items()}
    sizes = results.checks["wheel"]
    grown = (sizes["whole"] - sizes["without"]) / 1000
    worst = [
        ("first byte of the slowest page, ms", FIRST_BYTE_MS, max(each.median for each in firsts.values()), 0),
        ("longest hold of the event loop by a page, ms", HOLD_MS, max(each.median for each in holds.values()), 1),
        ("clients' p99 beside an open page, nobody looks = 1", P99, max(each.median for each in ratios.values()), 2),
        ("what the wheel has for console and demo, kB", WHEEL_KB, grown, 0),
    ]  # fmt: skip
    aims = [
        [what, f"<= {aim:g}", f"{found:.{digits}f}", "yes" if round(found, digits) <= aim else "**no**"]
        for what, aim, found, digits in worst
    ]
    settings = results.settings
    of = "the compiled build" if builds.of(results) == [builds.COMPILED] else "the build from source"
    held = f"{settings['records']:,} records and {settings['letters']:,} dead letters on Redis; {of}"
    rows = [[name, firsts[name].text(1), holds[name].text(2)] for name in pages]
    clients = [
        ["nobody", spread(nobody, "p50_ms").text(2), spread(nobody, "p99_ms").text(2), "1"],
        *(
            [name, spread(each, "p50_ms").text(2), spread(each, "p99_ms").text(2), ratios[name].text(2)]
            for name, each in beside.items()
        ),
    ]
    return [
        Table(
            "What the console is to keep to",
            ["what (medians)", "aim", "measured", "reached"],
            aims,
            f"Beside {held}. {measured(results)}",
        ),
        Table(
            "Its pages",
            ["page", "first byte, ms", "event loop held for, ms"],
            rows,
            f"Beside {held}. Medians of {settings['rounds']} loads, and the least and the most of them.",
        ),
        Table(
            "Clients beside an open page",
            ["who looks at", "p50, ms", "p99, ms", "p99, nobody looks = 1"],
            clients,
            f"First requests of {settings['connections']} connections that are always busy; a page is loaded each second.",
        ),
    ]


def plot(results: Results, axes: Any) -> None:
    """Each page's first byte."""
    shown = sorted({sample["page"] for sample in results.select(part="page")}, reverse=True)
    medians = [spread(results.select(part="page", page=name), "first_byte_ms").median for name in shown]
    axes.barh(shown, medians)
    axes.axvline(FIRST_BYTE_MS, linestyle="--", color="grey")
    axes.set_xlabel("first byte, ms")
    axes.set_title("The console's pages")
