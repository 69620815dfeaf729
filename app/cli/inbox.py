"""The command line of ``oncegate inbox``."""

import sys
from typing import NoReturn

import click

CREATE_HELP = """Create the table of the inbox, oncegate_inbox, where it is not there yet.

\b
  oncegate inbox create --database postgresql+asyncpg://owner@127.0.0.1/shop
  oncegate inbox create --database sqlite:///shop.db

URL is SQLAlchemy's, with the driver that is installed. It may stand in the environment instead, where nobody sees its
password: ONCEGATE_INBOX_DATABASE. A consumer's role needs INSERT, SELECT and UPDATE on the table.
"""


@click.group(short_help="The inbox of consumers, in their database.")
def inbox() -> None:
    """The inbox of consumers (oncegate.sql): the markers of what they have processed, in their own database."""


@inbox.command(help=CREATE_HELP, short_help="Create the inbox's table.")
@click.option(
    "--database", envvar="ONCEGATE_INBOX_DATABASE", required=True, metavar="URL", help="Where the effects are, too."
)
@click.option("--schema", metavar="NAME", help="The schema (default: the one where the connection looks).")
@click.option("--print", "printed", is_flag=True, help="Only print the statement.")
def create(database: str, schema: str | None, printed: bool) -> None:
    """See `CREATE_HELP`."""
    try:
        from oncegate.sql.create import NotCreated, definition
        from oncegate.sql.create import create as create_table
    except ImportError as missing:
        _end(str(missing), 2)
    try:
        if printed:
            click.echo(definition(database, schema))
            return
        created = create_table(database, schema)
    except NotCreated as error:
        _end(str(error), 2 if error.usage else 1)
    click.echo("created" if created else "it is there already")


def _end(line: str, code: int) -> NoReturn:
    click.echo(f"oncegate: {line}", err=True)
    sys.exit(code)
