"""``oncegate decisions``: what a gateway answered lately, by route."""

from typing import Any

import click

from oncegate.app.cli.terminal import Columns, duration, output, print_lines, print_table
from oncegate.app.cli.usage import json_output, remote_gateway, run_quietly


@click.command(short_help="What a gateway answered in the last minutes, by route.")
@click.option("--gateway", metavar="URL", required=True, help="The gateway; ONCEGATE_ADMIN_TOKEN is its token.")
@click.option("--minutes", type=click.IntRange(1, 60), default=5, show_default=True, help="Of how many minutes.")
@json_output
def decisions(gateway: str, minutes: int, as_json: bool) -> None:
    """Show what requests were answered with in the last minutes, by route: first, replayed, in flight, refused.
    Below it what became of the attempts that ended in that time: succeeded, failed, unknown, released.

    \b
      oncegate decisions --gateway http://127.0.0.1:8080 --minutes 10

    Of all workers of this gateway, without Prometheus; each other gateway has its own.
    """
    output(run_quietly(remote_gateway(gateway).decisions(minutes)), _print, as_json=as_json)


def _print(found: dict[str, Any]) -> None:
    print_table(_COLUMNS, found["decisions"], folded=("route",), none="No requests.")
    if found.get("outcomes"):
        print_lines([""])
        print_table(_OUTCOMES, found["outcomes"], folded=("route",))
    print_lines([f"in the last {duration(found['seconds'])}, by the gateway of {found['process']}"])


_COLUMNS: Columns = {
    "route": "route",
    "decision": "decision",
    "mode": "mode",
    "count": ("count", str),
}
_OUTCOMES: Columns = {"route": "route", "outcome": "outcome", "attempts": ("count", str)}
