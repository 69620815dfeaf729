"""The command line of ``oncegate project`` and ``oncegate projections``; `oncegate.sql` is imported when they run."""

import sys
from typing import Any

import click

from oncegate.app.cli.audit import audit, reason_needed
from oncegate.app.cli.database.options import create_tables, print_only, while_running, with_database
from oncegate.app.cli.terminal import Columns, ago, output, print_details, print_lines, print_table
from oncegate.app.cli.usage import json_output
from oncegate.app.operators.database.lines import SKIPPED, event_line

PROJECT_HELP = """Apply the events of a table to read models, each once, in the transaction that keeps the position.

\b
  # balance = Projection("balance.v1", events, ...) in shop/read.py; history beside it, in this process
  oncegate project shop.read:balance shop.read:history --database postgresql+asyncpg://reader@127.0.0.1/shop

Start as many as you like: of a projection one is at work, and another one takes over when it ends, dies or stands still.
A projection whose handler raises stands there, and tries it again with growing pauses (oncegate projections list).
The URL may stand in the environment: ONCEGATE_PROJECTIONS_DATABASE. SIGTERM stops it when the batch under way has ended.
"""
CREATE_HELP = """Create the table oncegate_projection, where it is not there yet.

\b
  oncegate projections create --database postgresql+asyncpg://owner@127.0.0.1/shop

Who applies events needs SELECT, INSERT and UPDATE on it, SELECT on the events, and what their handlers do.
"""
LIST_HELP = """List projections: how many rows they are behind, and since when one stands at an event.

\b
  oncegate projections list --database URL
"""
SKIP_HELP = """Have the event passed at which a projection stands: it is never applied to it.

\b
  oncegate projections skip balance.v1 --position 4711 --reason 'written by a mistake, ticket 17' --database URL
"""

_with_database = with_database("ONCEGATE_PROJECTIONS_DATABASE", "Where events and read models are.")


@click.command(help=PROJECT_HELP, short_help="Apply the events of a table to read models.")
@click.argument("projections", metavar="MODULE:PROJECTION...", nargs=-1, required=True)
@click.option(
    "--database",
    envvar="ONCEGATE_PROJECTIONS_DATABASE",
    required=True,
    metavar="URL",
    help="Where events and read models are.",
)
@while_running
def project(**options: Any) -> None:
    """See `PROJECT_HELP`."""
    from oncegate.app.cli.database.options import one_line

    with one_line():
        from oncegate.app.cli.database.project_run import ProjectOptions, run_projections

        sys.exit(run_projections(ProjectOptions(**options)))


@click.group(short_help="Projections: how far they are, and what they stand at.")
def projections() -> None:
    """Projections (oncegate.sql): read models that are made of the events of a table, in its database."""


@projections.command(help=CREATE_HELP, short_help="Create the table.")
@_with_database
@print_only
def create(database: str, schema: str | None, printed: bool) -> None:
    """See `CREATE_HELP`."""
    from oncegate.sql.projections.table import tables

    create_tables(database, tables(schema), printed=printed, there="it is there already")


@projections.command("list", help=LIST_HELP, short_help="List projections, and how far behind they are.")
@_with_database
@json_output
def list_projections(database: str, schema: str | None, as_json: bool) -> None:
    """See `LIST_HELP`."""
    from oncegate.sql.projections.operators import standings

    columns: Columns = {
        "NAME": "name",
        "EVENTS": "events",
        "BEHIND": "behind",
        "APPLIED LAST": ("moved_at", ago),
        "STUCK AT": "stuck_at",
        "STUCK SINCE": lambda each: "-" if each["stuck_since"] is None else ago(each["stuck_since"]),
        "FAILS WITH": "reason",
    }
    found = {"projections": [each.as_json() for each in standings(database, schema)]}
    output(found, lambda _: print_table(columns, found["projections"], folded=("FAILS WITH",)), as_json=as_json)


@projections.command(short_help="Show one projection.")
@click.argument("name")
@_with_database
@json_output
def show(name: str, database: str, schema: str | None, as_json: bool) -> None:
    """Show one projection: its place, and the event that it stands at."""
    from oncegate.sql.projections.operators import find

    def shown(found: dict[str, Any]) -> None:
        print_details([(name, str(value)) for name, value in found.items() if value is not None])

    output(find(database, schema, name).as_json(), shown, as_json=as_json)


@projections.command(help=SKIP_HELP, short_help="Skip the event at which a projection stands.")
@click.argument("name")
@click.option("--position", type=int, required=True, metavar="N", help="Its position.")
@reason_needed
@_with_database
def skip(name: str, position: int, reason: str, database: str, schema: str | None) -> None:
    """See `SKIP_HELP`."""
    from oncegate.sql.projections import operators

    operators.skip(database, schema, name, position)
    audit(event_line(name, position), SKIPPED, reason)
    print_lines([f"skipped {position} of {name}"])
