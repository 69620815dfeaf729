"""The command line's commands. What a command needs is imported when it runs, so that ``--help`` is quick."""

import os
import sys
from functools import partial
from typing import Any, Literal

import click

from oncegate.app.cli.callers import callers
from oncegate.app.cli.check.check import check
from oncegate.app.cli.commands.commands import commands
from oncegate.app.cli.commands.worker import worker
from oncegate.app.cli.config import config
from oncegate.app.cli.database.inbox import inbox
from oncegate.app.cli.database.outbox import outbox
from oncegate.app.cli.database.projections import project, projections
from oncegate.app.cli.database.relay import relay
from oncegate.app.cli.decisions import decisions
from oncegate.app.cli.processes import processes
from oncegate.app.cli.records.audit_list import audit
from oncegate.app.cli.records.keys import keys
from oncegate.app.cli.records.records import records
from oncegate.app.cli.reload import reload
from oncegate.app.cli.shadow import shadow
from oncegate.app.cli.usage import end, settings_of, without_none
from oncegate.cache.open import CACHE_SCHEMES
from oncegate.cache.redis.url import either

_POSIX_ONLY = ("serve", "demo", "worker", "relay", "project")


class _Commands(click.Group):
    """The commands, each of which ends with one line, not a traceback, where it can't do what it is to."""

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Group`."""
        try:
            return super().invoke(ctx)
        except Exception as error:  # one of a known kind becomes a line and an exit code, any other is raised again
            code = _exit_code(error)
            if code is None:
                raise
            end(str(error), code)


def _exit_code(error: Exception) -> int | None:
    """2: usage or configuration is wrong; 1: a cache or a gateway does not do it; ``None``: anything else."""
    if isinstance(error, (click.ClickException, click.exceptions.Exit, click.Abort)):
        return None  # help and wrong usage are click's own: for them nothing below need be loaded
    from oncegate.app.cli.openapi import SpecError
    from oncegate.app.operators.pages.client import GatewayError
    from oncegate.app.operators.records.records import NotARecord
    from oncegate.app.settings.loading.sources import ConfigurationError
    from oncegate.cache.errors import CacheError
    from oncegate.middleware.rules.errors import KeyInvalid

    if isinstance(error, (ConfigurationError, KeyInvalid, NotARecord, SpecError)):
        return 2
    return 1 if isinstance(error, (CacheError, GatewayError)) else None


def _version(context: click.Context, parameter: click.Parameter, given: bool) -> None:  # noqa: ARG001  # click gives it
    """Print which oncegate this is, and end."""
    if given and not context.resilient_parsing:
        from oncegate.app.version import described

        click.echo(described())
        context.exit()


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_version,
    help="Show version, commit and build.",
)
@click.pass_context
def main(context: click.Context) -> None:
    """An HTTP gateway that makes retries safe: a request that is sent again with the same Idempotency-Key is
    answered with the first one's response instead of being executed again.

    Try it: oncegate demo
    """
    command = context.invoked_subcommand
    if command in _POSIX_ONLY and not hasattr(os, "fork"):
        needs = "needs a POSIX system (Linux, macOS): on Windows run it in WSL or a container."
        raise click.ClickException(f"oncegate {command} {needs}")


@main.command(short_help="Enforce idempotency keys in front of an HTTP service.")
@click.option("--upstream", metavar="URL", help="Where requests go: http://, https:// or unix:///path/to/socket.")
@click.option(
    "--cache",
    metavar="URL",
    help=f"Where records live: {either(CACHE_SCHEMES, ', ')} (default: memory://).",
)
@click.option("--host", metavar="HOST", help="The address to listen on (default: 127.0.0.1).")
@click.option("--port", metavar="PORT", help="The port to listen on (default: 8080; 0: any free one).")
@click.option("--workers", metavar="N", help="Processes that share the port (default: 1; more need a shared cache).")
@click.option("--config", metavar="FILE", help="A TOML file with settings (or ONCEGATE_CONFIG).")
@click.option("--replace", is_flag=True, help="Take the place of the gateway that runs on this host and port.")
def serve(config: str | None, replace: bool, **options: str | None) -> None:
    """Enforce idempotency keys in front of an HTTP service.

    \b
      # records in memory: one process, nothing kept at a restart
      oncegate serve --upstream http://127.0.0.1:9000

    \b
      # records in Redis: several processes and hosts, restarts
      oncegate serve --upstream http://127.0.0.1:9000 --cache redis://127.0.0.1:6379/0 --workers 2

    \b
      # then send requests to the gateway instead of the service
      curl -X POST http://127.0.0.1:8080/payments -H 'Idempotency-Key: order-17' -d '{"amount": 100}'

    Every setting can be given in a TOML file (--config) or in the environment: ONCEGATE_UPSTREAM,
    ONCEGATE_IDEMPOTENCY__TTL. The command line wins over the environment, that over the file.
    SIGTERM stops it when the requests in flight have ended. SIGHUP, and oncegate reload, have it read its settings anew.

    With --replace it starts beside the gateway that runs, takes over its sockets once it can serve, and leaves to it the
    requests that it has. Without one that runs it starts as it would anyway.
    """
    from oncegate.app.settings.loading.sources import load

    # Strings, on purpose: the settings check each value, with the same messages for every source.
    read = partial(load, without_none(options), config)
    settings = read()
    from oncegate.app.serve import serve as run

    sys.exit(run(settings, replace=replace, read=read))


@main.command(short_help="Show in a minute what an idempotency key does.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="PORT", help="Default: 8080, or the next free one.")
def demo(port: int | None) -> None:
    """Show in a minute what an idempotency key does.

    Starts a small payments service and the gateway in front of it, and prints the address of a page: its buttons
    pay, kill one of the two meanwhile, and show what was booked. For who has no browser, it prints requests to try,
    and what becomes of each one. With a redis-server (7.0 or newer) on the PATH, records are in a Redis of its own,
    else in a file of SQLite. Nothing is installed or sent anywhere. Ctrl-C ends it, and removes what it has stored.
    """
    from oncegate.app.demo.live import run

    sys.exit(run(port))


@main.command(short_help="Make a token for an operator.")
@click.argument("name")
@click.option("--read", "writes", flag_value=False, type=bool, help="For looking only.")
@click.option(
    "--write",
    "writes",
    flag_value=True,
    type=bool,
    default=True,
    help="Also to resolve, release, retry, discard (default).",
)
def token(name: str, writes: bool) -> None:
    """Make a token for the operator NAME, and the setting that lets its bearer in.

    \b
      oncegate token alice --read
      # the first line is for alice: ONCEGATE_ADMIN_TOKEN=... oncegate keys list --gateway URL
      # the second one goes into the gateway's file: admin_tokens = ["alice:read:..."]

    The token is shown once and stored nowhere; the gateway's file has its digest. Each change is noted with the name.
    """
    from oncegate.app.settings.admin_tokens import NAME, AdminToken, new_token

    if not NAME.fullmatch(name):
        end("NAME has 1 to 64 letters, digits, '.', '_', '@' and '-'")
    made = new_token()
    click.echo(made)
    click.echo(AdminToken.of(name, made, writes=writes).setting())


@main.command(short_help="Add the gateway's part to an upstream's OpenAPI description.")
@click.option("--upstream-spec", required=True, metavar="FILE", help="The upstream's OpenAPI 3 description.")
@click.option("--config", metavar="FILE", help="A TOML file with settings (or ONCEGATE_CONFIG).")
@click.option(
    "--prefix", metavar="PATH", help="What requests have before its paths (default: its first server's path)."
)
@click.option("--format", "out", type=click.Choice(["json", "yaml"]), help="Default: as FILE is.")
def openapi(upstream_spec: str, config: str | None, prefix: str | None, out: Literal["json", "yaml"] | None) -> None:
    """Add the gateway's part to an upstream's OpenAPI description.

    \b
      oncegate openapi --upstream-spec service.yaml --config oncegate.toml > public.yaml

    Each operation under enforcement gets the key's header and the problems that it may be answered with, by the
    route policies of --config and the environment. JSON and YAML (with oncegate[openapi]); FILE may be - for
    standard input.
    """
    from oncegate.app.cli.openapi import describe_upstream

    click.echo(describe_upstream(settings_of({}, config), upstream_spec, prefix=prefix, out=out), nl=False)


for each in (
    keys,
    records,
    check,
    config,
    audit,
    decisions,
    processes,
    callers,
    shadow,
    reload,
    worker,
    commands,
    inbox,
    outbox,
    relay,
    project,
    projections,
):
    main.add_command(each)
