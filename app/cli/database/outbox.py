"""The command line of ``oncegate outbox``; what reads the database is in `oncegate.sql`, and imported when it runs."""

from typing import TYPE_CHECKING, Any

import click

from oncegate.app.cli.terminal import MOST_OF_BODY, ago, as_document, plain, print_details, print_table
from oncegate.app.cli.usage import audit, end, one_line, reason, reason_needed

if TYPE_CHECKING:
    from oncegate.sql.outbox.operators import OutboxRow

CREATE_HELP = """Create the tables of outboxes and of sequences, where they are not there yet.

\b
  oncegate outbox create --database postgresql+asyncpg://owner@127.0.0.1/shop
  oncegate outbox create --database sqlite:///shop.db

URL is SQLAlchemy's, with the driver that is installed. It may stand in the environment instead, where nobody sees its
password: ONCEGATE_OUTBOX_DATABASE. Who adds messages needs INSERT on oncegate_outbox, and INSERT, SELECT and UPDATE on
oncegate_sequence; a relay needs SELECT, UPDATE and DELETE on oncegate_outbox.
"""
LIST_HELP = """List what waits to be published, the oldest first.

\b
  # what the broker has refused, and what is given up: these hold up what is behind them in their aggregates
  oncegate outbox list --held --database URL
"""
RETRY_HELP = """Have messages tried again at once: those with these ids, or all that are given up.

\b
  oncegate outbox retry 17 18 --database URL
  oncegate outbox retry --all-dead --database URL
"""
DISCARD_HELP = """Delete a message that will never be published. What is behind it in its aggregate goes on without it.

\b
  oncegate outbox discard 17 --reason 'its order was never placed' --database URL
"""


@click.group(short_help="The outbox of messages, in the database that they tell of.")
def outbox() -> None:
    """The outbox (oncegate.sql): messages that wait in a database until a relay publishes them."""


_DATABASE = click.option(
    "--database", envvar="ONCEGATE_OUTBOX_DATABASE", required=True, metavar="URL", help="Where the outbox is."
)
_SCHEMA = click.option("--schema", metavar="NAME", help="The schema (default: the one where the connection looks).")
_JSON = click.option("--json", "as_json", is_flag=True, help="For scripts.")


@outbox.command(help=CREATE_HELP, short_help="Create the tables.")
@_DATABASE
@_SCHEMA
@click.option("--print", "printed", is_flag=True, help="Only print the statements.")
def create(database: str, schema: str | None, printed: bool) -> None:
    """See `CREATE_HELP`."""
    with one_line():
        from oncegate.sql.outbox.operators import create as create_tables
        from oncegate.sql.outbox.operators import definition

        if printed:
            click.echo(definition(database, schema))
        else:
            click.echo("created" if create_tables(database, schema) else "they are there already")


@outbox.command("list", help=LIST_HELP, short_help="List what waits to be published.")
@_DATABASE
@_SCHEMA
@click.option("--outbox", "name", metavar="NAME", help="Only this outbox's.")
@click.option("--aggregate", metavar="ID", help="Only this aggregate's.")
@click.option("--held", is_flag=True, help="Only what was refused, or is given up.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many at most.")
@_JSON
def list_rows(database: str, schema: str | None, limit: int, as_json: bool, **given: Any) -> None:
    """See `LIST_HELP`."""
    with one_line():
        from oncegate.sql.outbox.operators import rows

        found = rows(
            database, schema, outbox=given["name"], aggregate=given["aggregate"], held=given["held"], most=limit
        )
    if as_json:
        as_document({"messages": [each.as_json() for each in found]})
        return
    names = ("ID", "STATE", "OUTBOX", "TOPIC", "AGGREGATE", "NUMBER", "ADDED", "ATTEMPTS", "REFUSED AS")
    print_table(names, [_cells(each) for each in found], folded=("REFUSED AS",))


def _cells(row: "OutboxRow") -> list[str]:
    return [
        str(row.id),
        row.state,
        row.outbox,
        row.topic,
        row.aggregate or "-",
        "-" if row.sequence is None else str(row.sequence),
        ago(row.added_at.isoformat()),
        str(row.attempts),
        row.refusal or "-",
    ]


@outbox.command(short_help="Show one message.")
@click.argument("number", metavar="ID", type=int)
@_DATABASE
@_SCHEMA
@_JSON
def show(number: int, database: str, schema: str | None, as_json: bool) -> None:
    """Show one message, with its headers and its body."""
    with one_line():
        from oncegate.sql.outbox.operators import find

        found = find(database, schema, number)
    if found is None:
        end(f"message {number}: it is not there: it was published, discarded, or never committed", 1)
    body = found.body[:MOST_OF_BODY].decode("utf-8", "replace")
    if as_json:
        as_document(found.as_json() | {"body": body})
        return
    lines = {name: value for name, value in found.as_json().items() if name != "headers" and value is not None}
    print_details([(name, str(value)) for name, value in lines.items()])
    for name, value in found.headers.items():
        click.echo(plain(f"{name}: {value}"))
    click.echo(plain(body))


@outbox.command(help=RETRY_HELP, short_help="Have messages tried again at once.")
@click.argument("numbers", metavar="[ID]...", type=int, nargs=-1)
@click.option("--all-dead", is_flag=True, help="All that are given up.")
@reason
@_DATABASE
@_SCHEMA
def retry(numbers: tuple[int, ...], all_dead: bool, database: str, schema: str | None, reason: str) -> None:
    """See `RETRY_HELP`."""
    if bool(numbers) is all_dead:
        end("give the ids of messages, or --all-dead")
    with one_line():
        from oncegate.sql.outbox.operators import retry as retry_rows

        count = retry_rows(database, schema, numbers)
    if count:
        audit(f"{count} of messages {', '.join(map(str, numbers)) or '(all dead)'} of the outbox", "retried", reason)
    click.echo(f"{count} of them are tried again")


@outbox.command(help=DISCARD_HELP, short_help="Delete a message that will never be published.")
@click.argument("number", metavar="ID", type=int)
@reason_needed
@_DATABASE
@_SCHEMA
def discard(number: int, reason: str, database: str, schema: str | None) -> None:
    """See `DISCARD_HELP`."""
    with one_line():
        from oncegate.sql.outbox.operators import discard as discard_row

        gone = discard_row(database, schema, number)
    if gone is None:
        end(f"message {number}: it is not there, or published", 1)
    place = "" if gone.aggregate is None else f", number {gone.sequence} of {gone.aggregate}"
    audit(f"message {gone.id} of {gone.outbox} to {gone.topic}{place}", "discarded", reason)
    click.echo(plain(f"discarded {gone.id} of {gone.outbox} to {gone.topic}{place}: {reason}"))
