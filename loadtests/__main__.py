"""The command line: ``scripts/bench NAME``, which brings what is needed and runs ``python -m loadtests NAME``."""

import signal
import sys
from pathlib import Path
from typing import Any

import click

from loadtests import cost, cost_report, duplicates, gateway, middleware, plots
from loadtests.processes import BenchError
from loadtests.report import Results, publish

RESULTS = Path(__file__).parent / "results"
_rounds = click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
_seconds = click.option("--seconds", type=click.IntRange(1), default=2, show_default=True, help="For each measurement.")
_quick = click.option("--quick", is_flag=True, help="A short run, to see that it runs: its figures say nothing.")
_out = click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for the results [loadtests/results/NAME]."
)


@click.group()
def main() -> None:
    """Measurements, with real servers on loopback. Results: a table, a plot, and results.json."""


@main.command("gateway")
@_rounds
@_seconds
@_quick
@_out
def bench_gateway(rounds: int, seconds: int, quick: bool, out: Path | None) -> None:
    """oncegate, nginx proxy_pass, nginx + Lua: pass-through, first request, replay."""
    results = gateway.run(rounds=1 if quick else rounds, seconds=1 if quick else seconds, quick=quick)
    _publish(gateway, results, out)


@main.command("middleware")
@_rounds
@_seconds
@_quick
@_out
def bench_middleware(rounds: int, seconds: int, quick: bool, out: Path | None) -> None:
    """A FastAPI app alone, with oncegate, and with other middlewares: no key, first request, replay."""
    results = middleware.run(rounds=1 if quick else rounds, seconds=1 if quick else seconds, quick=quick)
    _publish(middleware, results, out)


@main.command("duplicates")
@_rounds
@_quick
@_out
def bench_duplicates(rounds: int, quick: bool, out: Path | None) -> None:
    """10, 100 and 1,000 concurrent duplicates of one key: arrivals upstream, time until all are answered."""
    results = duplicates.run(rounds=1 if quick else rounds, quick=quick)
    _publish(duplicates, results, out)


@main.command("cost")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@_seconds
@click.option(
    "--records", type=click.IntRange(1000), default=1_000_000, show_default=True, help="First requests of the soak."
)
@_quick
@_out
def bench_cost(rounds: int, seconds: int, records: int, quick: bool, out: Path | None) -> None:
    """Redis commands and memory per record, a soak, latency by concurrency, body size and workers."""
    if quick:
        rounds, seconds, records = 1, 1, 1000
    results = cost.run(rounds=rounds, seconds=seconds, records=records, quick=quick)
    _publish(cost_report, results, out)


def _publish(report: Any, results: Results, out: Path | None) -> None:
    folder = out or RESULTS / results.bench
    publish(results, report.tables(results), folder)
    plots.draw(results, report.plot, folder)


def _stop(*_: object) -> None:
    raise SystemExit(1)  # so that what was started is ended


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    try:
        main(prog_name="scripts/bench")
    except BenchError as error:
        sys.exit(f"scripts/bench: {error}")
