"""Output of the operators' commands: tables and times for a terminal, plain columns or JSON for a program."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oncegate.app.cli.usage import end

Cell = Callable[[Any], str]
Columns = Mapping[str, str | tuple[str, Cell] | Cell]
"""A table's columns by their names: the member of a row that one shows, perhaps with what makes a text of it, or of the row."""

_WIDE = 200
"""Columns where a program reads the output: its tables must not be folded."""
MOST_OF_BODY = 2000
"""Characters of a body that are shown."""
_BAD = "bold red"
_STYLES = {"succeeded": "green", "failed": "yellow", "unknown": _BAD, "in-flight": "cyan", "unreadable": _BAD}


def console() -> Console:
    """Standard output, as wide as the terminal is; without one, so wide that a table is not folded."""
    out = Console(highlight=False, soft_wrap=True)
    return out if out.is_terminal else Console(highlight=False, width=_WIDE)


def print_table(columns: Columns, rows: Sequence[Any], *, folded: Collection[str], none: str = "") -> None:
    """Print a table of ``rows``, in which columns that are ``folded`` may take several lines; without rows ``none``, if given."""
    if none and not rows:
        console().print(none)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=name not in folded)
    for row in rows:
        table.add_row(*[_cell(_shown(row, column)) for column in columns.values()])
    _print(table)


def _shown(row: Any, column: str | tuple[str, Cell] | Cell) -> str:
    """A member that is empty is ``-``, one that is not there nothing."""
    if callable(column):
        return column(row)
    member, text = (column, str) if isinstance(column, str) else column
    if member not in row:
        return ""
    return "-" if text is str and row[member] in (None, "") else text(row[member])


def print_lines(lines: Iterable[str]) -> None:
    """Print each on one line."""
    for line in lines:
        click.echo(plain(line))


def print_details(lines: Iterable[tuple[str, str]]) -> None:
    """Print what is known of one thing, a line each with its name."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in lines:
        table.add_row(name, _cell(value, lines=True))
    _print(table)


def _cell(value: str, *, lines: bool = False) -> Text:
    """Text, not a string: what comes from elsewhere is no markup. A state has its colour."""
    return Text(plain(value, lines=lines), _STYLES.get(value.partition(":")[0].partition(",")[0], ""))


def _print(table: Table) -> None:
    """Without padding at the line ends where a program reads it."""
    out = console()
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as captured:
        out.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def output(
    document: dict[str, Any] | None, text: Callable[[dict[str, Any]], None], *, as_json: bool, missing: str = ""
) -> None:
    """Print ``document``: as JSON for scripts, by ``text`` for people. Ends with ``missing`` where there is none."""
    if document is None:
        end(missing, 1)
    if as_json:
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        text(document)


def plain(text: str, *, lines: bool = False) -> str:
    """``text``, which comes from elsewhere, without characters that a terminal would obey, and marks that turn a text round.

    It is one line, so that no aggregate's name makes a second one, unless it may have several ``lines``.
    """
    return "".join(c if c.isprintable() or (lines and c == "\n") else "\N{REPLACEMENT CHARACTER}" for c in text)


def beginning(body: str) -> str:
    """A body, as far as it is shown."""
    return body[:MOST_OF_BODY] + (" ..." if len(body) > MOST_OF_BODY else "")


def moment(instant: str | None) -> str:
    """An RFC 3339 instant, short."""
    return "-" if instant is None else instant[:19].replace("T", " ") + "Z"


def ago(instant: str | None) -> str:
    """The same, and how long ago that is."""
    if instant is None:
        return "not known"
    seconds = (datetime.now(UTC) - datetime.fromisoformat(instant)).total_seconds()
    return f"{moment(instant)}, {duration(max(0.0, seconds))} ago"


def duration(seconds: float | None) -> str:
    """Seconds, in the unit that fits."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.3g} s"
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
