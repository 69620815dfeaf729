"""``oncegate audit``: lists what operators have changed."""

from typing import TYPE_CHECKING, Any

import click

from oncegate.app.cli.records.keys_options import with_records
from oncegate.app.cli.terminal import Columns, moment, output, print_table
from oncegate.app.cli.usage import end

if TYPE_CHECKING:
    from oncegate.app.cli.records.keys_options import Source


@click.group(short_help="Who changed what, when, and why.")
def audit() -> None:
    """Who changed what, when, and why: in records and commands, by any gateway and command line of a cache and namespace.

    \b
      oncegate audit list --config gateway.toml
      oncegate audit list --gateway http://127.0.0.1:8080 --operator alice

    The last 1,000 changes are kept, until 30 days after the last one. The logs have them all (oncegate.audit).
    """


@audit.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many at most.")
@click.option("--operator", metavar="NAME", help="Only those of one operator: a token's name, or user@host.")
@with_records
async def list_(source: "Source", as_json: bool, limit: int, operator: str | None) -> None:
    """List what was changed, the newest first."""
    from oncegate.app.operators.audit_lines import AuditLines
    from oncegate.app.operators.records.records import Records
    from oncegate.cache.store import KeepsAudit

    if not isinstance(source, Records):
        found = await source.audit(limit=limit, operator=operator)
    elif isinstance(source.cache, KeepsAudit):
        found = await AuditLines(source.cache, source.namespace).listing(limit=limit, operator=operator)
    else:
        end("this cache keeps no audit lines: they are in the log oncegate.audit", 1)
    output(found, _print, as_json=as_json)


def _print(found: dict[str, Any]) -> None:
    print_table(_COLUMNS, found["lines"], folded=("what", "done", "why"), none="Nothing was changed.")


_COLUMNS: Columns = {
    "at": ("at", moment),
    "by": "operator",
    "what": "what",
    "done": "done",
    "why": "reason",
    "process": "process",
}
