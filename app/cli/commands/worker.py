"""The command line of ``oncegate worker``."""

import sys

import click

from oncegate.app.cli.usage import namespace, redis, redis_settings

_OF_WORKER = (
    "stream",
    "consumer",
    "handler",
    "forward",
    "concurrency",
    "max_attempts",
    "name",
    "metrics_host",
    "metrics_port",
)


@click.command(short_help="Process the commands that the gateway has accepted.")
@redis
@namespace
@click.option("--stream", metavar="NAME", help="The command stream to read (default: commands).")
@click.option("--consumer", metavar="NAME", help="Whose records and whose group (default: the stream's name).")
@click.option("--handler", metavar="MODULE:FUNCTION", help="The function that executes a command.")
@click.option("--forward", metavar="URL", help="Or the service that commands are forwarded to.")
@click.option("--concurrency", metavar="N", help="Commands executed at once (default: 10).")
@click.option("--max-attempts", metavar="N", help="Then a command becomes a dead letter (default: 10).")
@click.option(
    "--name", metavar="NAME", help="Who this worker is, in dead letters and records (default: the host's name)."
)
@click.option(
    "--metrics-port", metavar="N", help="Serve /metrics, for Prometheus, and /healthz there (default: 0, not)."
)
@click.option("--metrics-host", metavar="HOST", help="The address for that (default: 127.0.0.1).")
@click.option("--config", metavar="FILE", help="A TOML file with settings (or ONCEGATE_CONFIG).")
def worker(config: str | None, **options: str | None) -> None:
    """Process the commands that the gateway has accepted.

    \b
      # by a Python function: def book(payment: dict), sync or async
      oncegate worker --cache redis://127.0.0.1:6379/0 --handler shop.payments:book

    \b
      # by an HTTP service, with the idempotency key passed through
      oncegate worker --cache redis://127.0.0.1:6379/0 --forward http://127.0.0.1:9000

    A command that fails is tried again with growing pauses, then becomes a dead letter (oncegate commands list); those
    behind it go on. One that was processed before is skipped. Start as many workers as you like.

    Every setting can be given in a TOML file (--config), in its table [worker], or in the environment:
    ONCEGATE_CACHE, ONCEGATE_WORKER__MAX_ATTEMPTS. The command line wins over the environment, that over the file.
    SIGTERM stops it when the commands in flight have ended.
    """
    of_worker = {name: options.pop(name) for name in _OF_WORKER}
    settings = redis_settings(options, of_worker, config, needed="a worker needs")
    from oncegate.app.work import run_worker

    sys.exit(run_worker(settings))
