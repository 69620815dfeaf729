"""The command line of ``oncegate inbox``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from oncegate.app.cli.usage import end, redis_settings

CREATE_HELP = """Create the table of the inbox, oncegate_inbox, where it is not there yet.

\b
  oncegate inbox create --database postgresql+asyncpg://owner@127.0.0.1/shop
  oncegate inbox create --database sqlite:///shop.db

URL is SQLAlchemy's, with the driver that is installed. It may stand in the environment instead, where nobody sees its
password: ONCEGATE_INBOX_DATABASE. A consumer's role needs INSERT, SELECT and UPDATE on the table.
"""

CLEANUP_HELP = """Delete the markers that are older than the retention, by the database's clock, in small transactions.

\b
  oncegate inbox cleanup --database postgresql+asyncpg://cleaner@127.0.0.1/shop --dry-run
  oncegate inbox cleanup --database postgresql+asyncpg://cleaner@127.0.0.1/shop --consumer billing

The instant up to which is recorded first, on PostgreSQL 30 s before a marker is deleted: a message that was sent before it
and has no marker becomes a dead letter. Several may run beside each other, and beside consumers. The role needs SELECT,
INSERT, UPDATE and DELETE on the table.
"""


@click.group(short_help="The inbox of consumers, in their database.")
def inbox() -> None:
    """The inbox of consumers (oncegate.sql): the markers of what they have processed, in their own database."""


_DATABASE = click.option(
    "--database", envvar="ONCEGATE_INBOX_DATABASE", required=True, metavar="URL", help="Where the effects are, too."
)
_SCHEMA = click.option("--schema", metavar="NAME", help="The schema (default: the one where the connection looks).")


@inbox.command(help=CREATE_HELP, short_help="Create the inbox's table.")
@_DATABASE
@_SCHEMA
@click.option("--print", "printed", is_flag=True, help="Only print the statements.")
def create(database: str, schema: str | None, printed: bool) -> None:
    """See `CREATE_HELP`."""
    with _one_line():
        from oncegate.sql.create import create as create_table
        from oncegate.sql.create import definition

        if printed:
            click.echo(definition(database, schema))
            return
        created = create_table(database, schema)
        click.echo("created" if created else "it is there already")


@inbox.command(help=CLEANUP_HELP, short_help="Delete old markers, and keep the instant up to which.")
@_DATABASE
@_SCHEMA
@click.option("--consumer", metavar="NAME", help="Only this consumer's (default: all).")
@click.option("--retention-hours", type=float, default=168.0, show_default=True, help="What is older is forgotten.")
@click.option(
    "--redelivery-horizon-hours",
    type=float,
    default=24.0,
    show_default=True,
    help="For how long a message may be delivered again; no retention is shorter.",
)
@click.option("--batch-size", type=int, default=5000, show_default=True, help="Markers per transaction.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, for scripts.")
@click.option("--config", metavar="FILE", help="Keep what the worker of this TOML file may still get.")
def cleanup(database: str, schema: str | None, config: str | None, as_json: bool, dry_run: bool, **given: Any) -> None:
    """See `CLEANUP_HELP`."""
    with _one_line():
        from oncegate.app.cli.inbox_cleanup import clean_up, show_cleanup
        from oncegate.sql.cleanup import Retention

        try:
            retention = Retention(
                (given["consumer"],) if given["consumer"] else (),
                given["retention_hours"] * 3600,
                given["redelivery_horizon_hours"] * 3600,
                given["batch_size"],
            )
        except ValueError as error:
            end(str(error))
        settings = redis_settings({}, {}, config, needed="--config is for commands in") if config else None
        show_cleanup(clean_up(database, schema, retention, settings, dry_run=dry_run), dry_run=dry_run, as_json=as_json)


@contextmanager
def _one_line() -> Iterator[None]:
    """Ends with one line where SQLAlchemy is missing, or the database refuses."""
    try:
        from oncegate.sql.database import NotDone
    except ImportError as missing:
        end(str(missing))
    try:
        yield
    except NotDone as error:
        end(str(error), 2 if error.usage else 1)
