"""The command line: ``scripts/bench NAME``, which brings what is needed and runs ``python -m loadtests NAME``."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from loadtests import (
    append,
    attack,
    budget,
    builds,
    console,
    console_report,
    cores,
    cost,
    cost_report,
    duplicates,
    gateway,
    gateway_report,
    inbox,
    instructions,
    middleware,
    middleware_report,
    order,
    pages,
    plots,
    projections,
    pythons,
    relay,
    sql,
)
from loadtests.processes import BenchError
from loadtests.report import Results, publish

BENCHES: dict[str, tuple[Callable[..., Results], Any]] = {
    "gateway": (gateway.run, gateway_report),
    "middleware": (middleware.run, middleware_report),
    "cost": (cost.run, cost_report),
    "duplicates": (duplicates.run, duplicates),
    "inbox": (inbox.run, inbox),
    "order": (order.run, order),
    "relay": (relay.run, relay),
    "projections": (projections.run, projections),
    "budget": (budget.run, budget),
    "console": (console.run, console_report),
    "cores": (cores.run, cores),
}
"""What measures, and what says what it means: ``tables`` and ``plot``."""
RESULTS = Path(__file__).parent / "results"
_rounds = click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
_seconds = click.option("--seconds", type=click.IntRange(1), default=2, show_default=True, help="For each measurement.")
_quick = click.option("--quick", is_flag=True, help="A short run, to see that it runs: its figures say nothing.")
_out = click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for the results [loadtests/results/NAME]."
)

_fill = click.option(
    "--fill", is_flag=True, help="Then fill the pages, as scripts/performance does, which say the result."
)


@click.group()
def main() -> None:
    """Measurements, with real servers on loopback. Results: a table, a plot, and results.json."""


@main.command("gateway")
@_rounds
@_seconds
@_quick
@_out
def bench_gateway(**options: Any) -> None:
    """oncegate from source and compiled, nginx proxy_pass, nginx + Lua: pass-through, first request, replay."""
    _bench("gateway", **options)


@main.command("middleware")
@_rounds
@_seconds
@_quick
@_out
def bench_middleware(**options: Any) -> None:
    """A FastAPI app alone, with oncegate (from source, compiled), and with other middlewares: no key, first request, replay."""
    _bench("middleware", **options)


@main.command("cost")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@_seconds
@click.option(
    "--records", type=click.IntRange(1000), default=1_000_000, show_default=True, help="First requests of the soak."
)
@click.option(
    "--build", type=click.Choice(builds.BUILDS), help="The build to measure [the compiled one, where there is one]."
)
@_quick
@_out
def bench_cost(**options: Any) -> None:
    """Redis commands and memory per record, a soak, latency by concurrency, body size and workers."""
    _bench("cost", **options)


@main.command("duplicates")
@_rounds
@_quick
@_out
def bench_duplicates(**options: Any) -> None:
    """10, 100 and 1,000 concurrent duplicates of one key: arrivals upstream, time until all are answered; both builds."""
    _bench("duplicates", **options)


@main.command("inbox")
@_rounds
@_seconds
@_quick
@_out
@_fill
def bench_inbox(fill: bool, **options: Any) -> None:
    """A consumer's handler on PostgreSQL with the inbox, without, and looking first; duplicates; bytes per marker."""
    _bench("inbox", fill=fill, **options)


@main.command("order")
@_rounds
@_seconds
@_quick
@_out
@_fill
def bench_order(fill: bool, **options: Any) -> None:
    """A consumer's handler on PostgreSQL under an inbox that keeps an order, under the plain one, and without."""
    _bench("order", fill=fill, **options)


@main.command("relay")
@_rounds
@_quick
@_out
@_fill
def bench_relay(fill: bool, **options: Any) -> None:
    """Relays of an outbox on PostgreSQL, in order and by SKIP LOCKED alone, one and three; with one large aggregate."""
    _bench("relay", fill=fill, **options)


@main.command("projections")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@_seconds
@_quick
@_out
@_fill
def bench_projections(fill: bool, **options: Any) -> None:
    """Read models by each way of docs/projections.md: batches, lists, guards with eight writers; what each keeps and loses."""
    _bench("projections", fill=fill, **options)


@main.command("instructions")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--against",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Another checkout, set up by scripts/setup --dev: its figures too, and the ratios.",
)
@click.option("--build", type=click.Choice(builds.BUILDS), help="One build alone [both].")
@click.option("--door", type=click.Choice(list(instructions.MODES)), help="One door alone [both].")
@click.option(
    "--with",
    "options",
    type=click.Choice(instructions.OPTIONS),
    multiple=True,
    help="The gateway with this set, too, as the ratio to without; may come several times.",
)
@_quick
@_out
def bench_instructions(out: Path | None, **options: Any) -> None:
    """Instructions in user space per request, counted by callgrind: what a change costs, to within a hundredth."""
    results = instructions.run(**options)
    folder = RESULTS / ("options" if options["options"] else "instructions")
    publish(results, instructions.tables(results), out or folder)


@main.command("budget")
@click.option("--build", type=click.Choice(builds.BUILDS), help="One build alone [both].")
@_quick
@_out
@_fill
def bench_budget(fill: bool, **options: Any) -> None:
    """Where the instructions of a request go, by stage, in both builds; the objects that it makes; the bare floor."""
    _bench("budget", fill=fill, **options)


@main.command("console")
@_rounds
@click.option(
    "--seconds", type=click.IntRange(1), default=5, show_default=True, help="For each measurement of clients."
)
@click.option("--records", type=click.IntRange(1000), default=1_000_000, show_default=True)
@click.option("--letters", type=click.IntRange(200), default=100_000, show_default=True, help="Dead letters.")
@click.option(
    "--build", type=click.Choice(builds.BUILDS), help="The build to measure [the compiled one, where there is one]."
)
@_quick
@_out
@_fill
def bench_console(fill: bool, **options: Any) -> None:
    """The console's pages beside many records and dead letters; clients' p99 beside an open page; what the wheel has for it."""
    _bench("console", fill=fill, **options)


@main.command("cores")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seconds", type=click.IntRange(1), default=1, show_default=True, help="For each measurement.")
@click.option(
    "--build", type=click.Choice(builds.BUILDS), help="One build alone [the worker: both; gateways: compiled]."
)
@_quick
@_out
@_fill
def bench_cores(fill: bool, **options: Any) -> None:
    """A worker that forwards commands; how a gateway's workers share requests; three masters under four gateways."""
    _bench("cores", fill=fill, **options)


@main.command("attack")
@_rounds
@click.option("--seconds", type=click.IntRange(1), default=5, show_default=True, help="For each measurement.")
@click.option(
    "--build", type=click.Choice(builds.BUILDS), help="The build to measure [the compiled one, where there is one]."
)
@_quick
@_out
def bench_attack(out: Path | None, **options: Any) -> None:
    """32 honest connections, alone and beside 32 of an attacker: are all answered, and how much later?"""
    results = attack.run(**options)
    publish(results, attack.tables(results), out or RESULTS / "attack")


@main.command("append")
@_rounds
@_quick
@_out
def bench_append(out: Path | None, **options: Any) -> None:
    """An append to a command stream in Redis's own time: without a number, with one, with an expected version."""
    results = append.run(**options)
    publish(results, append.tables(results), out or RESULTS / "append")


@main.command("pythons")
@click.option(
    "--environments",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=pythons.FOLDER,
    show_default=True,
    help="The folder of the environments.",
)
@click.option(
    "--rounds",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Of CPU; with 0 instructions alone are counted, which a busy machine does not change.",
)
@_seconds
@_quick
@_out
@_fill
def bench_pythons(out: Path | None, fill: bool, **options: Any) -> None:
    """The gateway as it is installed in several environments, of other Pythons say: instructions and CPU per request."""
    _refuse_half(fill, out, quick=options["quick"])
    results = pythons.run(**options)
    publish(results, pythons.tables(results), out or RESULTS / "pythons")
    if fill:
        pages.fill(RESULTS)


@main.command("sql")
@_rounds
@_seconds
@_quick
@_out
def bench_sql(out: Path | None, **options: Any) -> None:
    """Records in SQLite and PostgreSQL: shared commits and statements, replays, bytes, several workers on one file."""
    results = sql.run(**options)
    publish(results, sql.tables(results), out or RESULTS / "sql")


@main.command("all")
@_quick
@_out
@click.pass_context
def bench_all(context: click.Context, quick: bool, out: Path | None) -> None:
    """All of them, one after the other, each as it is by default."""
    for name in BENCHES:
        context.invoke(main.commands[name], quick=quick, out=out / name if out else None)


def _bench(name: str, *, out: Path | None, fill: bool = False, **options: Any) -> None:
    _refuse_half(fill, out, quick=options["quick"])
    run, report = BENCHES[name]
    results: Results = run(**options)
    folder = out or RESULTS / name
    publish(results, report.tables(results), folder)
    plots.draw(results, report.plot, folder)
    if fill:
        pages.fill(RESULTS)


def _refuse_half(fill: bool, out: Path | None, *, quick: bool) -> None:
    if fill and (out or quick):
        raise click.UsageError("--fill is for results in their own folder, and not for those of a quick run")


def _stop(*_: object) -> None:
    raise SystemExit(1)  # so that what was started is ended


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    try:
        main(prog_name="scripts/bench")
    except BenchError as error:
        sys.exit(f"scripts/bench: {error}")
