"""The command line: ``scripts/bench NAME``, which brings what is needed and runs ``python -m loadtests NAME``."""

import signal
import sys
from pathlib import Path

import click

from loadtests import gateway, plots
from loadtests.processes import BenchError
from loadtests.report import publish

RESULTS = Path(__file__).parent / "results"
_quick = click.option("--quick", is_flag=True, help="A short run, to see that it runs: its figures say nothing.")
_out = click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for the results [loadtests/results/NAME]."
)


@click.group()
def main() -> None:
    """Measurements, with real servers on loopback. Results: a table, a plot, and results.json."""


@main.command("gateway")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--seconds", type=click.IntRange(1), default=2, show_default=True, help="For each measurement.")
@_quick
@_out
def bench_gateway(rounds: int, seconds: int, quick: bool, out: Path | None) -> None:
    """oncegate, nginx proxy_pass, nginx + Lua: pass-through, first request, replay."""
    results = gateway.run(rounds=1 if quick else rounds, seconds=1 if quick else seconds, quick=quick)
    folder = out or RESULTS / "gateway"
    publish(results, gateway.tables(results), folder)
    plots.draw(results, gateway.plot, folder)


def _stop(*_: object) -> None:
    raise SystemExit(1)  # so that what was started is ended


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    try:
        main(prog_name="scripts/bench")
    except BenchError as error:
        sys.exit(f"scripts/bench: {error}")
