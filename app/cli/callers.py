"""``oncegate callers``: whom a gateway refused lately, and for what."""

from typing import Any

import click

from oncegate.app.cli.terminal import Columns, duration, output, print_lines, print_table
from oncegate.app.cli.usage import json_output, remote_gateway, run_quietly


@click.command(short_help="Who reuses keys, and gets 400, 409, 422 or 429, by route.")
@click.option("--gateway", metavar="URL", required=True, help="The gateway; ONCEGATE_ADMIN_TOKEN is its token.")
@click.option("--minutes", type=click.IntRange(1, 60), default=5, show_default=True, help="Of how many minutes.")
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="The most callers.")
@json_output
def callers(gateway: str, minutes: int, limit: int, as_json: bool) -> None:
    """Show who was refused in the last minutes, by caller's digest, route and problem, the most frequent first.

    \b
      oncegate callers --gateway http://127.0.0.1:8080
      oncegate keys list --gateway http://127.0.0.1:8080 --caller DIGEST   # a caller's records

    Of all workers of this gateway; each other gateway has its own. A first request and a replay are not counted.
    """
    output(run_quietly(remote_gateway(gateway).callers(minutes, limit)), _print, as_json=as_json)


def _print(found: dict[str, Any]) -> None:
    rows = [
        {"caller": each["caller"] or "not known", "route": row["route"], "problem": problem, "count": count}
        for each in found["callers"]
        for row in each["routes"]
        for problem, count in row["decisions"].items()
    ]
    print_table(_COLUMNS, rows, folded=("caller", "route"), none="Nobody was refused.")
    lines = [f"in the last {duration(found['seconds'])}, by the gateway of {found['process']}"]
    if found["others"]:
        lines.append(f"{found['others']} more of {found['refused']} refusals are of callers who are not listed")
    print_lines(lines)


_COLUMNS: Columns = {
    "caller": "caller",
    "route": "route",
    "problem": "problem",
    "count": ("count", str),
}
