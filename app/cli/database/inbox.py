"""The command line of ``oncegate inbox``; what reads the database is in `oncegate.sql`, and imported when it runs."""

from typing import TYPE_CHECKING, Any

import click

from oncegate.app.cli.audit import audit, reason, reason_needed
from oncegate.app.cli.database.options import create_tables, print_only, with_database
from oncegate.app.cli.terminal import ago, output, print_lines
from oncegate.app.cli.usage import end, json_output, redis_settings, settings_of
from oncegate.app.operators.database.lines import RETRIED, SKIPPED, number_line

if TYPE_CHECKING:
    from oncegate.sql.inbox.markers import Marker
    from oncegate.sql.order.waiting import Waiting

CREATE_HELP = """Create the tables of the inbox, those that are not there yet.

oncegate_inbox holds the markers, oncegate_order and oncegate_parked what an inbox needs that keeps an order.

\b
  oncegate inbox create --database postgresql+asyncpg://owner@127.0.0.1/shop
  oncegate inbox create --database sqlite:///shop.db

URL is SQLAlchemy's, with the driver that is installed. It may stand in the environment instead, where nobody sees its
password: ONCEGATE_INBOX_DATABASE. A consumer's role needs INSERT, SELECT and UPDATE on the tables, and DELETE on
oncegate_parked.
"""
SHOW_HELP = """Show which consumers have processed a message, and when.

\b
  # by the record's id, as in the log, in the gateway's answers and in dead letters
  oncegate inbox show Y8bAlpm6rOs3_.Ar.w7W:t9uHGWxINAXkD4QB.h_J --database URL
\b
  # by the idempotency key; of a consumer that keeps the keys of several callers apart, with the caller
  oncegate inbox show order-17 --database URL
  oncegate inbox show order-17 --caller shop-7 --database URL

One line for each consumer: when the marker was written, by the database's clock, whether a result is kept, and the
digest of the payload that it was written for. No line, and exit code 1: nobody has processed it, or it was rolled
back, or it is forgotten. Of a command that came through the gateway take the id: its caller is a digest of headers.
Where the consumer has a secret, a key is found by the same one: ONCEGATE_SECRET, or that of --config.
"""
STATS_HELP = """Show how large the inbox is: rows, the oldest one, rows by consumer.

\b
  oncegate inbox stats --database URL

A small table is counted. A large one is estimated, and said to be: nothing here reads all of it. PostgreSQL's estimates are
those of its planner, which are as good as the last ANALYZE.
"""

CLEANUP_HELP = """Delete the markers that are older than the retention, by the database's clock, in small transactions.

\b
  oncegate inbox cleanup --database postgresql+asyncpg://cleaner@127.0.0.1/shop --dry-run
  oncegate inbox cleanup --database postgresql+asyncpg://cleaner@127.0.0.1/shop --consumer billing

The instant up to which is recorded first, on PostgreSQL 30 s before a marker is deleted: a message that was sent before it
and has no marker becomes a dead letter. Several may run beside each other, and beside consumers. The role needs SELECT,
INSERT, UPDATE and DELETE on the table.
"""
WAITING_HELP = """Show the aggregates that wait for a number, that of the oldest parked message first.

\b
  oncegate inbox waiting --database URL
  oncegate inbox waiting --database URL --json

One line for each: the consumer, the aggregate, the number that it waits for, since when, and how many messages are
parked behind it. Where that message itself is stored here, because it has failed for good: its record's id and the reason.
Have it tried again with `inbox retry`, wherever it came from, or skip it. What is not parked stays with its broker: then
the highest number that came early, as consumers note it every few seconds.
"""
SKIP_HELP = """Count a number as applied that never comes. What is parked behind it follows by itself.

\b
  oncegate inbox skip ledger account-7 --sequence 10 --reason "withdrawn, ticket 4711" --database URL

Only the number that the aggregate waits for can be skipped. A message that comes with it later is a duplicate. What is
parked follows with the next message about the aggregate, or when a worker or `Inbox.following` looks, within seconds.
"""
RETRY_HELP = """Have a parked message tried again that has failed for good, and what is parked behind it.

\b
  oncegate inbox retry ledger account-7 --database URL
"""


@click.group(short_help="The inbox of consumers, in their database.")
def inbox() -> None:
    """The inbox of consumers (oncegate.sql): the markers of what they have processed, in their own database."""


_with_database = with_database("ONCEGATE_INBOX_DATABASE", "Where the effects are, too.")


@inbox.command(help=CREATE_HELP, short_help="Create the inbox's tables.")
@_with_database
@print_only
def create(database: str, schema: str | None, printed: bool) -> None:
    """See `CREATE_HELP`."""
    from oncegate.sql.inbox.create import tables

    create_tables(database, tables(schema), printed=printed, there="it is there already")


@inbox.command(help=SHOW_HELP, short_help="Show who has processed a message, and when.")
@click.argument("key", metavar="KEY|ID")
@_with_database
@click.option("--caller", default="", metavar="NAME", help="Whose key it is, where a consumer tells callers apart.")
@click.option("--config", metavar="FILE", help="A TOML file of settings, for the secret (or ONCEGATE_CONFIG).")
@json_output
def show(key: str, database: str, schema: str | None, caller: str, config: str | None, as_json: bool) -> None:
    """See `SHOW_HELP`."""
    from oncegate.sql.inbox.markers import find

    record, found = find(database, schema, key, caller, settings_of({}, config).digests())
    document = {"record": record, "markers": [each.as_json() for each in found]}
    output(document, lambda _: print_lines(map(_marker_line, found)), as_json=as_json)
    if not found:
        end(f"record {record}: no marker: nobody has processed it, or it was rolled back, or is forgotten", 1)


def _marker_line(marker: "Marker") -> str:
    result = "no result" if marker.result_bytes is None else f"a result of {marker.result_bytes} bytes"
    fingerprint = "no fingerprint" if marker.fingerprint is None else f"fingerprint {marker.fingerprint.hex()}"
    return f"{marker.consumer}  received {ago(marker.received_at.isoformat())}, {result}, {fingerprint}"


@inbox.command(help=STATS_HELP, short_help="Show how large the inbox is.")
@_with_database
@json_output
def stats(database: str, schema: str | None, as_json: bool) -> None:
    """See `STATS_HELP`."""
    from oncegate.sql.inbox.stats import of_database

    output(of_database(database, schema).as_json(), _print_stats, as_json=as_json)


def _print_stats(stats: dict[str, Any]) -> None:
    about = "about " if stats["estimated"] else ""
    lines = [f"{stats['table']}  {about}{stats['rows']} rows"]
    lines.append(f"oldest  {about if stats['oldest'] else ''}{ago(stats['oldest'])}")
    each = stats["consumers"].items()
    print_lines(
        lines + [f"{name}  " + ("not counted" if rows is None else f"{about}{rows} rows") for name, rows in each]
    )


@inbox.command(help=WAITING_HELP, short_help="Show aggregates that wait for a number.")
@_with_database
@json_output
def waiting(database: str, schema: str | None, as_json: bool) -> None:
    """See `WAITING_HELP`."""
    from oncegate.sql.order.waiting import OrderTables

    found = OrderTables(schema).waiting(database)
    lines = map(_waiting_line, found) if found else ["nothing waits"]
    output({"waiting": [each.as_json() for each in found]}, lambda _: print_lines(lines), as_json=as_json)


def _waiting_line(each: "Waiting") -> str:
    since = ago(each.since.isoformat())
    line = f"{each.consumer}  {each.aggregate}  waits for {each.waits_for} since {since}, {each.behind} behind it"
    if each.early:
        return f"{line}; {each.early} came early, and stays with its broker"
    if each.record is None:
        return line
    return f"{line}, record {each.record or '-'}, attempts {each.attempts}: {each.reason or 'its turn has come'}"


@inbox.command(help=SKIP_HELP, short_help="Skip a number that never comes.")
@click.argument("consumer")
@click.argument("aggregate")
@click.option("--sequence", type=int, required=True, metavar="N", help="The number.")
@reason_needed
@_with_database
def skip(consumer: str, aggregate: str, sequence: int, reason: str, database: str, schema: str | None) -> None:
    """See `SKIP_HELP`."""
    from oncegate.sql.order.waiting import OrderTables

    left = OrderTables(schema).skip(database, consumer, aggregate, sequence)
    audit(number_line(consumer, aggregate, sequence), SKIPPED, reason)
    click.echo(f"skipped {sequence}, {left} parked behind it")


@inbox.command(help=RETRY_HELP, short_help="Try a parked message again that has failed for good.")
@click.argument("consumer")
@click.argument("aggregate")
@reason
@_with_database
def retry(consumer: str, aggregate: str, database: str, schema: str | None, reason: str) -> None:
    """See `RETRY_HELP`."""
    from oncegate.sql.order.waiting import OrderTables

    number = OrderTables(schema).retry(database, consumer, aggregate)
    audit(number_line(consumer, aggregate, number), RETRIED, reason)
    click.echo(f"{number} is tried again")


@inbox.command(help=CLEANUP_HELP, short_help="Delete old markers, and keep the instant up to which.")
@_with_database
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
@json_output
@click.option("--config", metavar="FILE", help="Keep what the worker of this TOML file may still get.")
def cleanup(database: str, schema: str | None, config: str | None, as_json: bool, dry_run: bool, **given: Any) -> None:
    """See `CLEANUP_HELP`."""
    from oncegate.app.cli.database.inbox_cleanup import clean_up, show_cleanup
    from oncegate.sql.inbox.cleanup import Retention

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
