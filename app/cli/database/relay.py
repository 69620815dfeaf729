"""The command line of ``oncegate relay``."""

import sys
from typing import Any

import click
from click.core import ParameterSource

from oncegate.app.cli.database.options import while_running, with_database

RELAY_HELP = """Publish what outboxes hold, in order within each aggregate, and remove what the broker has confirmed.

\b
  # by a broker of FastStream's: broker = RabbitBroker(...) in shop/messages.py; its consumers don't start here
  oncegate relay --database postgresql+asyncpg://relay@127.0.0.1/shop --to shop.messages:broker

\b
  # on streams of a Redis, each named as the topic is
  oncegate relay --database postgresql+asyncpg://relay@127.0.0.1/shop --to redis://127.0.0.1:6379/0

\b
  # a table of events: def events(engine): return TableSource(engine, ...) in shop/messages.py
  oncegate relay --database postgresql+asyncpg://relay@127.0.0.1/shop --source shop.messages:events --to shop.messages:broker

Start as many as you like on PostgreSQL; on SQLite one is at work, and the others wait for its end. A message that the broker
refuses is tried again with growing pauses, and holds up what is behind it in its aggregate (oncegate outbox list --held).
The URL may stand in the environment: ONCEGATE_OUTBOX_DATABASE. SIGTERM stops it when the batch under way is settled.
"""

_OF_OUTBOXES = ("outbox", "schema", "stall_limit", "attempts", "keep_hours")
"""The options that a source has no use for."""


@click.command(help=RELAY_HELP, short_help="Publish what outboxes hold.")
@with_database("ONCEGATE_OUTBOX_DATABASE", "Where the outbox is.")
@click.option(
    "--to", "target", required=True, metavar="MODULE:BROKER|URL", help="A broker of FastStream's, or a Redis."
)
@click.option("--source", metavar="MODULE:FUNCTION", help="Makes a source of an engine, in place of an outbox.")
@click.option("--outbox", multiple=True, metavar="NAME", help="Only this one's, and may be repeated.")
@click.option("--batch", type=click.IntRange(1), default=200, show_default=True, help="Messages taken at a time.")
@click.option(
    "--confirm-timeout", type=float, default=10.0, show_default=True, help="Seconds to wait for their confirmations."
)
@click.option(
    "--stall-limit",
    type=float,
    default=30.0,
    show_default=True,
    help="Seconds until a relay that stands still lets go.",
)
@click.option(
    "--attempts", type=click.IntRange(0), default=0, show_default=True, help="Then a message is dead; 0: never."
)
@click.option(
    "--keep-hours", type=float, default=0.0, show_default=True, help="Keep what is published for so long, marked."
)
@while_running
@click.option("--tracing", is_flag=True, help="Send OpenTelemetry spans, as OTEL_* in the environment say.")
def relay(**options: Any) -> None:
    """See `RELAY_HELP`."""
    from oncegate.app.cli.database.relay_run import RelayOptions, run_relay
    from oncegate.sql.database.access import NotDone

    source = click.get_current_context().get_parameter_source
    given = [name for name in _OF_OUTBOXES if source(name) is not ParameterSource.DEFAULT]
    if options["source"] and given:
        raise NotDone(f"--source brings its own settings: leave out --{given[0].replace('_', '-')}", usage=True)
    sys.exit(run_relay(RelayOptions(**options)))
