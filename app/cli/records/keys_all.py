"""``oncegate keys resolve-all`` and ``release-all``: all unknown outcomes of a choice, step by step, as a gateway does it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from oncegate.app.cli.audit import audit_lines, audit_shown, author, reason_needed
from oncegate.app.cli.records.keys_finding import Finding, finding_options
from oncegate.app.cli.records.keys_list import chosen_of
from oncegate.app.cli.records.keys_options import listed_caller_option, route_option, seconds_of, with_records
from oncegate.app.cli.records.keys_view import print_changed_unknown, progress
from oncegate.app.cli.terminal import output
from oncegate.app.cli.usage import end
from oncegate.cache.record import State

if TYPE_CHECKING:
    from oncegate.app.cli.records.keys_options import Source
    from oncegate.cache.transitions import ResolveRequest

_TALLIES = ("found", "resolved", "refused", "left")


def _choice(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which."""
    for option in (
        reason_needed,
        click.option("--dry-run", is_flag=True, help="Only count."),
        click.option("--older", metavar="AGE", help="Only those that began longer ago than this: 45s, 90m, 12h, 30d."),
        click.option("--since", metavar="AGE", help="Only those that began within this time: 45s, 90m, 12h, 30d."),
        listed_caller_option,
        route_option,
    ):
        command = option(command)
    return command


@click.command("resolve-all")
@finding_options
@_choice
@with_records
async def resolve_all(source: "Source", as_json: bool, finding: Finding, **options: Any) -> None:
    """Write down what became of all requests of unknown outcome, or of those of a route, a caller, a time.

    Only what is unknown when the command starts is touched, each record as by `keys resolve`: what a retry has taken over
    meanwhile, or somebody else has resolved, stays. On a terminal it shows how far it is; what it has done when it is interrupted
    is done.
    """
    await _change(source, finding(options["caller"]), as_json=as_json, **options)


@click.command("release-all")
@_choice
@with_records
async def release_all(source: "Source", as_json: bool, **options: Any) -> None:
    """Set all keys of unknown outcome free, or those of a route, a caller, a time: none of their requests was executed.

    As `keys resolve-all`. The next retry of each is executed.
    """
    from oncegate.cache.transitions import ResolveRequest

    await _change(source, ResolveRequest(None), as_json=as_json, **options)


async def _change(
    source: "Source",
    request: "ResolveRequest",
    *,
    as_json: bool,
    route: str | None,
    caller: str | None,
    since: str | None,
    older: str | None,
    dry_run: bool,
    reason: str,
) -> None:
    from rich.console import Console

    from oncegate.app.operators.records.records import Records
    from oncegate.app.operators.records.unknown_changes import UnknownAt, change_unknown
    from oncegate.middleware.outcome.responses import now_ms

    ages = seconds_of(since, "--since"), seconds_of(older, "--older")
    chosen = await chosen_of(source, State.UNKNOWN.value, route, caller, 0)
    which = UnknownAt(now_ms(), chosen.route, chosen.callers, *ages)
    total, looked_at, cursor, until = dict.fromkeys(_TALLIES, 0), 0, "", ""
    with progress(Console(stderr=True)) as show, audit_shown():
        while True:
            if isinstance(source, Records):
                audit = audit_lines(source.cache, source.namespace)
                done = await change_unknown(
                    source, audit, which, request, author(reason), cursor=cursor, dry_run=dry_run
                )
            else:  # by its clock
                done = await source.change_unknown(
                    which, request, author(reason), until=until, cursor=cursor, dry_run=dry_run
                )
            total = {name: total[name] + done[name] for name in _TALLIES}
            looked_at, until = looked_at + done["scanned"], done["until"]
            show(f"{looked_at} looked at, {total['found']} found, {total['resolved']} changed")
            goes_on = not done["complete"] and (done["resolved"] or done["cursor"] != cursor)
            cursor = done["cursor"]
            if not goes_on:
                break
    output({**total, "until": until, "dry_run": dry_run}, print_changed_unknown, as_json=as_json)
    if not done["complete"]:
        end("these were not all, but the gateway's answers lead nowhere", 1)
