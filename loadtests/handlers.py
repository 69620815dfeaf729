"""Handlers on PostgreSQL, measured in turn: what `loadtests.inbox` and `loadtests.order` share, and what they make of it.

Handlers of SQLAlchemy's asyncio on asyncpg, four at once, in one process on a core of its own, PostgreSQL on the other. Each kind
of handler is measured for a quarter of a second in turn, over and over: what disturbs the machine disturbs all alike.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Final, NamedTuple

from loadtests import machine
from loadtests.report import Results, Table, measured, paired, spread
from testing.postgresql import PostgreSQLServer

AT_ONCE: Final = 4
TURN_SECONDS: Final = 0.25

Handle = Callable[[int], Awaitable[object]]
Ratios = Sequence[tuple[str, str, str, float | None]]
"""What is held against what, by rate, and what it should be at least, where that was promised."""


class Rate(NamedTuple):
    """How many were handled, in how many seconds, with how many of this process's CPU."""

    handled: int
    wall: float
    cpu: float


@contextmanager
def apart(server: PostgreSQLServer) -> Iterator[None]:
    """This process on one core, the server on the other: what serves a connection is a child of the server, and has its core."""
    ours, theirs = machine.cores()
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(server.pid, {theirs})
    os.sched_setaffinity(0, {ours})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def versions(server: PostgreSQLServer) -> dict[str, str]:
    """Of all that has a part in it."""
    (found,) = server.execute("SHOW server_version")
    return {name: version(name) for name in ("sqlalchemy", "asyncpg")} | {"postgresql": found[0].split()[0]}


def make_accounts(server: PostgreSQLServer, database: str, count: int) -> None:
    """The table of what handlers update."""
    columns = "(id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)"
    server.execute(f"CREATE TABLE account {columns} WITH (fillfactor = 50)", database)
    server.execute(f"INSERT INTO account SELECT id, 0 FROM generate_series(0, {count - 1}) AS id", database)


async def in_turns(
    handlers: Mapping[str, Handle], numbers: Mapping[str, Iterator[int]], seconds: float
) -> dict[str, Rate]:
    """By handler: what came of ``seconds`` of each; its messages have ``numbers``."""
    turns: dict[str, list[Rate]] = {name: [] for name in handlers}
    for _ in range(round(seconds / TURN_SECONDS) + 1):
        for name, handle in handlers.items():
            turns[name].append(await _turn(handle, numbers[name]))
    # Statements are compiled and prepared in the first turn.
    return {name: Rate(*map(sum, zip(*each[1:], strict=True))) for name, each in turns.items()}


async def _turn(handle: Handle, numbers: Iterator[int]) -> Rate:
    began, cpu = time.perf_counter(), time.process_time()

    async def one_after_the_other() -> int:
        count = 0
        while time.perf_counter() < began + TURN_SECONDS:
            await handle(next(numbers))
            count += 1
        return count

    counts = await asyncio.gather(*[one_after_the_other() for _ in range(AT_ONCE)])
    return Rate(sum(counts), time.perf_counter() - began, time.process_time() - cpu)


def samples(rates: Mapping[str, Rate], number: int) -> list[dict[str, Any]]:
    """Of one round."""
    return [
        {"handler": name, "round": number, "per_s": rate.handled / rate.wall, "cpu_us": rate.cpu / rate.handled * 1e6}
        for name, rate in rates.items()
    ]


# -- what the samples say ---------------------------------------------------------------------------------------------


def ratio_rows(results: Results, ratios: Ratios) -> list[list[str]]:
    """A row for each; none for what results of an earlier form lack."""
    rows = []
    for what, ours, theirs, least in ratios:
        both = results.select(handler=ours), results.select(handler=theirs)
        if all(both):
            ratio = paired(*both, "per_s")
            aim, reached = ("-", "-") if least is None else (f">= {least:g}", yes(ratio.median >= least))
            rows.append([f"{what}, by rate", aim, ratio.text(2), reached])
    return rows


def yes(reached: bool) -> str:
    """Whether an aim is reached, as a cell."""
    return "yes" if reached else "**no**"


def rates_table(results: Results, title: str, handlers: Mapping[str, str], circumstances: str) -> Table:
    """What each of ``handlers``, with its name for readers, does in a second."""
    rows = [
        [words, spread(cell, "per_s").text(), spread(cell, "cpu_us").text()]
        for name, words in handlers.items()
        if (cell := results.select(handler=name))
    ]
    used = ", ".join(f"{name} {number}" for name, number in results.versions.items())
    note = (
        f"{used}. {results.settings['at_once']} at once, each in a transaction of its own{circumstances}"
        f" Median (least-most) over the rounds. {measured(results)}"
    )
    return Table(title, ["handler", "transactions/s", "its own CPU, us"], rows, note)


def draw(results: Results, axes: Any, handlers: Mapping[str, str], marked: Sequence[str], title: str) -> None:
    """Transactions per second, by handler; those whose name has one of ``marked`` in it in another colour."""
    names = [name for name in handlers if results.select(handler=name)][::-1]
    rates = [spread(results.select(handler=name), "per_s") for name in names]
    errors = [(each.median - each.least, each.most - each.median) for each in rates]
    colors = ["C0" if any(each in name for each in marked) else "C7" for name in names]
    widths = [each.median for each in rates]
    axes.barh([handlers[name] for name in names], widths, xerr=list(zip(*errors, strict=True)), color=colors, capsize=3)
    axes.set_xlabel("transactions per second (more is better)")
    axes.set_title(f"{title}, PostgreSQL, {results.settings['at_once']} at once")
