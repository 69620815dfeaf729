"""Options, one-line errors and the creation of tables, for all commands about a database."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from oncegate.app.cli.usage import end, with_place

if TYPE_CHECKING:
    from oncegate.sql.database.creating import Tables

Callback = Callable[..., None]

print_only = click.option("--print", "printed", is_flag=True, help="Only print the statements.")


@contextmanager
def one_line() -> Iterator[None]:
    """Ends with one line where SQLAlchemy is missing, or a database refuses."""
    try:
        from oncegate.sql.database.access import NotDone
    except ImportError as missing:
        end(str(missing))
    try:
        yield
    except NotDone as error:
        end(with_place(str(error)), 2 if error.usage else 1)


def with_database(variable: str, where: str) -> Callable[[Callback], Callback]:
    """Options of a command that gets ``database`` and ``schema``; an error of the database ends it with one line.

    ``variable`` may have the URL instead of the command line; ``where`` is the option's help.
    """

    def decorated(command: Callback) -> Callback:
        @click.option("--database", envvar=variable, required=True, metavar="URL", help=where)
        @click.option("--schema", metavar="NAME", help="The schema (default: the one where the connection looks).")
        @wraps(command)
        def run(**options: Any) -> None:
            with one_line():
                command(**options)

        return run

    return decorated


_WHILE_RUNNING: tuple[Callable[[Callback], Callback], ...] = (
    click.option(
        "--log-level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning", "error"])
    ),
    click.option("--log-format", default="auto", show_default=True, type=click.Choice(["auto", "json", "text"])),
    click.option(
        "--log-every", type=float, default=30.0, show_default=True, help="Seconds between lines of how it goes."
    ),
    click.option("--metrics-port", type=click.IntRange(0, 65535), default=0, help="Serve /metrics and /healthz there."),
    click.option("--metrics-host", default="127.0.0.1", show_default=True, help="The address for that."),
)


def while_running(command: Callback) -> Callback:
    """Options of a command that works until it is stopped: its log, and its pages."""
    for option in reversed(_WHILE_RUNNING):
        command = option(command)
    return command


def create_tables(database: str, tables: "Tables", *, printed: bool, there: str) -> None:
    """Create what is missing of ``tables``, or only print how; ``there`` is the line for nothing to do."""
    from oncegate.sql.database.creating import create, definition

    if printed:
        click.echo(definition(database, tables))
    else:
        click.echo("created" if create(database, tables) else there)
