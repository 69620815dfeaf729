"""``oncegate processes``: which gateways and workers are up."""

from typing import TYPE_CHECKING, Any

import click

from oncegate.app.cli.records.keys_options import with_records
from oncegate.app.cli.terminal import Columns, ago, duration, output, print_lines, print_table
from oncegate.app.cli.usage import end

if TYPE_CHECKING:
    from oncegate.app.cli.records.keys_options import Source


@click.command(short_help="Which gateways and workers are up, and what all gateways decided.")
@with_records
async def processes(source: "Source", as_json: bool) -> None:
    """Show which gateways and workers of a cache and namespace are up, and what all gateways decided in the last minutes.

    \b
      oncegate processes --config gateway.toml
      oncegate processes --gateway http://127.0.0.1:8080

    Each process keeps an entry in the cache, every 10 seconds; one that was killed is listed for 30 seconds more.
    It says where two run different configurations or versions.
    """
    from oncegate.app.operators.heartbeats import processes as listing
    from oncegate.app.operators.records.records import Records
    from oncegate.cache.store import KeepsProcesses

    if not isinstance(source, Records):
        found = await source.processes()
    elif isinstance(source.cache, KeepsProcesses):
        found = await listing(source.cache, source.namespace)
    else:
        end("this cache does not keep which processes are up", 1)
    output(found, _print, as_json=as_json)


def _print(found: dict[str, Any]) -> None:
    print_table(_COLUMNS, found["processes"], folded=("build", "reads"), none="None is up.")
    print_lines(f"!! {line}" for line in found["differences"])
    if found["decisions_of"]:
        print_lines(["", f"in the last {found['minutes']} min, by the gateways of {', '.join(found['decisions_of'])}"])
        print_table(_DECISIONS, found["decisions"], folded=("route",), none="No requests.")


_COLUMNS: Columns = {
    "process": "name",
    "kind": "kind",
    "version": "version",
    "build": "build",
    "configuration": "configuration",
    "started": ("started", ago),
    "seen": lambda row: f"{duration(row['silent_for'])} ago",
    "reads": "reads",
}
_DECISIONS: Columns = {"route": "route", "decision": "decision", "mode": "mode", "count": ("count", str)}
