"""The command line of ``oncegate reload``."""

from typing import Any

import click

from oncegate.app.cli.terminal import output, print_lines
from oncegate.app.cli.usage import json_output, remote_gateway, run_quietly


@click.command(short_help="Have a gateway read its configuration anew, without a stop.")
@click.option("--gateway", metavar="URL", required=True, help="The gateway; ONCEGATE_ADMIN_TOKEN is its token.")
@json_output
def reload(gateway: str, as_json: bool) -> None:
    """Have a gateway read its configuration anew, and wait until it is in effect in all of its processes, or in none.

    \b
      oncegate check --config oncegate.toml --against http://127.0.0.1:8080
      oncegate reload --gateway http://127.0.0.1:8080

    The gateway reads its own file, environment and files of secrets, as on SIGHUP (kill -HUP PID), which needs no token and
    answers in the log. The token is one for changes.
    Exit codes: 0 in effect, 1 refused, and nothing was changed, 2 wrong usage.
    """
    reloaded = run_quietly(remote_gateway(gateway).reload())
    output(reloaded, _print, as_json=as_json)


def _print(reloaded: dict[str, Any]) -> None:
    lines = [f"configuration {reloaded['configuration']} is in effect in all processes"]
    if reloaded["after_restart"]:
        lines.append(f"after a restart alone: {', '.join(reloaded['after_restart'])}")
    print_lines(lines)
