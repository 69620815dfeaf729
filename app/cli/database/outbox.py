"""The command line of ``oncegate outbox``; what reads the database is in `oncegate.sql`, and imported when it runs."""

from typing import Any

import click

from oncegate.app.cli.audit import audit, reason, reason_needed
from oncegate.app.cli.database.options import create_tables, print_only, with_database
from oncegate.app.cli.terminal import MOST_OF_BODY, Columns, ago, output, plain, print_details, print_lines, print_table
from oncegate.app.cli.usage import end, json_output
from oncegate.app.operators.database.lines import BODY_SHOWN, DISCARDED, RETRIED, message_line, messages_line

CREATE_HELP = """Create the tables of outboxes and of sequences, where they are not there yet.

\b
  oncegate outbox create --database postgresql+asyncpg://owner@127.0.0.1/shop
  oncegate outbox create --database sqlite:///shop.db

URL is SQLAlchemy's, with the driver that is installed. It may stand in the environment instead, where nobody sees its
password: ONCEGATE_OUTBOX_DATABASE. Who adds messages needs INSERT and SELECT on oncegate_outbox, and INSERT, SELECT and UPDATE on
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


@click.group(short_help="The outbox of messages, in the database whose changes they report.")
def outbox() -> None:
    """The outbox (oncegate.sql): messages that wait in a database until a relay publishes them."""


_with_database = with_database("ONCEGATE_OUTBOX_DATABASE", "Where the outbox is.")


@outbox.command(help=CREATE_HELP, short_help="Create the tables.")
@_with_database
@print_only
def create(database: str, schema: str | None, printed: bool) -> None:
    """See `CREATE_HELP`."""
    from oncegate.sql.outbox.tables import all_tables

    create_tables(database, all_tables(schema), printed=printed, there="they are there already")


@outbox.command("list", help=LIST_HELP, short_help="List what waits to be published.")
@_with_database
@click.option("--outbox", metavar="NAME", help="Only this outbox's.")
@click.option("--aggregate", metavar="ID", help="Only this aggregate's.")
@click.option("--held", is_flag=True, help="Only what was refused, or is given up.")
@click.option("--limit", "most", type=click.IntRange(1), default=50, show_default=True, help="How many at most.")
@json_output
def list_rows(database: str, schema: str | None, as_json: bool, **given: Any) -> None:
    """See `LIST_HELP`."""
    from oncegate.sql.outbox.operators import rows

    names = ("id", "state", "outbox", "topic", "aggregate")
    columns: Columns = {name.upper(): name for name in names} | {"NUMBER": "sequence", "ADDED": ("added_at", ago)}
    columns = {**columns, "ATTEMPTS": "attempts", "REFUSED AS": "refusal"}
    found = {"messages": rows(database, schema, **given)}
    output(found, lambda _: print_table(columns, found["messages"], folded=("REFUSED AS",)), as_json=as_json)


@outbox.command(short_help="Show one message.")
@click.argument("number", metavar="ID", type=int)
@click.option("--body", is_flag=True, help="With its key, its headers and its body; the audit has who looked.")
@_with_database
@json_output
def show(number: int, body: bool, database: str, schema: str | None, as_json: bool) -> None:
    """Show one message."""
    from oncegate.sql.outbox.operators import find

    found = find(database, schema, number)
    message = None
    if found is not None and body:
        audit(f"message {message_line(found[0])}", BODY_SHOWN, "")
        message = found[0] | {"body": found[1][:MOST_OF_BODY].decode("utf-8", "replace")}
    elif found is not None:
        message = {name: value for name, value in found[0].items() if name not in ("key", "headers")}
    missing = f"message {number}: it is not there: it was published, discarded, or never committed"
    output(message, _print_message, as_json=as_json, missing=missing)


def _print_message(message: dict[str, Any]) -> None:
    apart = ("headers", "body")
    print_details([(name, str(value)) for name, value in message.items() if name not in apart and value is not None])
    if "body" in message:
        print_lines(f"{name}: {value}" for name, value in message["headers"].items())
        click.echo(plain(message["body"], lines=True))


@outbox.command(help=RETRY_HELP, short_help="Have messages tried again at once.")
@click.argument("numbers", metavar="[ID]...", type=int, nargs=-1)
@click.option("--all-dead", is_flag=True, help="All that are given up.")
@reason
@_with_database
def retry(numbers: tuple[int, ...], all_dead: bool, database: str, schema: str | None, reason: str) -> None:
    """See `RETRY_HELP`."""
    from oncegate.sql.outbox import operators

    if bool(numbers) is all_dead:
        end("give the ids of messages, or --all-dead")
    count = operators.retry(database, schema, numbers)
    if count:
        audit(messages_line(count, numbers), RETRIED, reason)
    click.echo(f"{count} of them are tried again")


@outbox.command(help=DISCARD_HELP, short_help="Delete a message that will never be published.")
@click.argument("number", metavar="ID", type=int)
@reason_needed
@_with_database
def discard(number: int, reason: str, database: str, schema: str | None) -> None:
    """See `DISCARD_HELP`."""
    from oncegate.sql.outbox import operators

    gone = operators.discard(database, schema, number)
    if gone is None:
        end(f"message {number}: it is not there, or published", 1)
    what = message_line(gone)
    audit(f"message {what}", DISCARDED, reason)
    print_lines([f"discarded {what}: {reason}"])
