"""Output of the operators' commands: tables and times for a terminal, plain columns or JSON for a program."""

from datetime import UTC, datetime
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

_WIDE = 200
"""Columns where a program reads the output: its tables must not be folded."""


def console() -> Console:
    """Standard output, as wide as the terminal is; without one, so wide that a table is not folded."""
    out = Console(highlight=False, soft_wrap=True)
    return out if out.is_terminal else Console(highlight=False, width=_WIDE)


def print_table(table: Table) -> None:
    """Print a table; without padding at the line ends where a program reads it."""
    out = console()
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as captured:
        out.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def as_document(document: dict[str, Any]) -> None:
    """Print ``document`` as JSON, for scripts."""
    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())


def plain(text: str) -> str:
    """``text`` without control characters, which a terminal would obey: it comes from elsewhere."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


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
