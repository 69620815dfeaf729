"""``oncegate keys``: shows, resolves, releases and purges the records of idempotency keys. For 3 a.m."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from oncegate.app.cli.audit import audit, audit_kept, audit_lines, audit_shown, author, reason
from oncegate.app.cli.records.keys_all import release_all, resolve_all
from oncegate.app.cli.records.keys_finding import finding_options
from oncegate.app.cli.records.keys_list import began, chosen_of, newest_of
from oncegate.app.cli.records.keys_options import (
    attempt_option,
    caller_lines,
    caller_option,
    force_option,
    listed_caller_option,
    ms_ago,
    route_option,
    which_record,
    with_records,
)
from oncegate.app.cli.records.keys_view import print_list, print_purged, print_records, print_resolution, purging
from oncegate.app.cli.terminal import output
from oncegate.app.cli.usage import end
from oncegate.app.operators.audit import resolved
from oncegate.cache.errors import RecordUnreadable

if TYPE_CHECKING:
    from oncegate.app.cli.records.keys_finding import Finding
    from oncegate.app.cli.records.keys_options import Source
    from oncegate.cache.transitions import ResolveRequest

_ONLY_SHARED = (
    "those of memory:// can't be purged, and go with their gateway's restart; one by one: keys release --gateway URL"
)
STATES = ("in-flight", "succeeded", "failed", "unknown")


@click.group(short_help="Look at records, and resolve what nobody knows.")
def keys() -> None:
    """Look at the records of idempotency keys, and resolve those whose outcome nobody knows.

    \b
      # after a node was lost: which requests may or may not have been executed?
      oncegate keys list --state unknown --config gateway.toml
    \b
      # what happened to this one? (the id is in problems and logs)
      oncegate keys show --record Y8bAlpm6rOs3_.Ar.w7W:t9uHGWxINAXkD4QB.h_J
      echo 'Authorization: Bearer ...' | oncegate keys show order-17 --caller -
    \b
      # it was executed: retries get this answer from now on
      oncegate keys resolve --record ID --status 201 --body @answer.json
      # it was not: the next retry executes it
      oncegate keys release --record ID --reason 'no debit in the bank statement'
      # none of those that a gateway had under way when it died was executed: count them, then release all
      oncegate keys release-all --route /payments --since 30m --reason 'no debits since noon' --dry-run
    \b
      # whatever was kept for this caller, or by this route's rules
      echo 'Authorization: Bearer ...' | oncegate keys purge --caller - --dry-run
      oncegate keys purge --route '/payments/*' --older 7d

    Records are looked for in the shared cache that --cache, --config or the environment name, or in a
    gateway's own memory: --gateway URL, with ONCEGATE_ADMIN_TOKEN in the environment.
    """


@keys.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only those that read so.")
@route_option
@listed_caller_option
@click.option("--since", metavar="AGE", help="Only those that began within this time: 45s, 90m, 12h, 30d.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="About how many.")
@click.option(
    "--scan", type=click.IntRange(1), metavar="N", help="Look at about N records, and list the newest of them."
)
@click.option("--cursor", default="", metavar="CURSOR", help="Go on where an earlier list ended.")
@with_records
async def list_(
    source: "Source",
    as_json: bool,
    state: str | None,
    limit: int,
    cursor: str,
    route: str | None,
    caller: str | None,
    since: str | None,
    scan: int | None,
) -> None:
    """List the records that there are, the newest first.

    Those of a route, of a caller or of a time are looked for among all records, and are the newest of them: that reads each
    record, but for a caller's, whom the id says. A million take some minutes, a few at a time; --scan bounds it, and says
    whether there were others. Without these options the list ends when it is long enough, whatever there is besides, and goes on
    with --cursor.
    """
    if (route, caller, since, scan) != (None, None, None, None):
        if cursor:
            end("--cursor goes on with a list of any route, caller and time: leave it out")
        chosen = await chosen_of(source, state, route, caller, ms_ago(since, "--since"))
        output(await newest_of(source, chosen, limit, scan), print_list, as_json=as_json)
        return
    found: dict[str, dict[str, Any]] = {}
    while len(found) < limit:
        # Those in one state may be few among many: larger steps, fewer questions.
        step = 1000 if state is not None else min(1000, limit - len(found))
        listing = await source.listing(state, cursor=cursor, limit=step)
        found.update((record["id"], record) for record in listing["records"])
        cursor, before = listing["cursor"], cursor
        if cursor in ("", before):
            break
    records = sorted(found.values(), key=began, reverse=True)
    output({"records": records, "cursor": cursor}, print_list, as_json=as_json)


@keys.command()
@which_record
@click.option("--response", is_flag=True, help="With the stored response; the audit has who looked.")
@with_records
async def show(source: "Source", as_json: bool, response: bool, **which: str | None) -> None:
    """Show what happened to a request: by its key, or by its record's id."""
    found = await _find(source, **which)
    with audit_shown():
        records = [await _record(source, each, response=response, alone=len(found) == 1) for each in found]
    there = [record for record in records if record]
    missing = "" if there else await _no_record(source)
    output({"records": there} if there else None, print_records, as_json=as_json, missing=missing)


async def _record(source: "Source", identifier: str, *, response: bool, alone: bool) -> dict[str, Any] | None:
    from oncegate.app.operators.records.records import Records
    from oncegate.app.operators.showing import whole_record

    try:
        if response and isinstance(source, Records):
            kept = audit_lines(source.cache, source.namespace)
            return await whole_record(source, kept, identifier, author(""))
        return await source.show(identifier, response=response)
    except RecordUnreadable as error:
        if alone:
            raise RecordUnreadable(f"record {identifier}: {error}") from None
        return {"id": identifier, "state": "unreadable"}  # the other callers' records can still be shown


@keys.command()
@which_record
@force_option
@attempt_option
@reason
@with_records
async def release(
    source: "Source", as_json: bool, force: bool, attempt: int | None, reason: str, **which: str | None
) -> None:
    """Set a key free, because its request was not executed: the next retry will be."""
    from oncegate.cache.transitions import ResolveRequest

    identifier = await _one(source, **which)
    request = ResolveRequest(None, force=force, attempt=attempt or 0)
    await _resolve(source, identifier, request, reason, as_json=as_json)


@keys.command()
@which_record
@finding_options
@force_option
@attempt_option
@reason
@with_records
async def resolve(
    source: "Source",
    as_json: bool,
    finding: "Finding",
    force: bool,
    attempt: int | None,
    reason: str,
    **which: str | None,
) -> None:
    """Write down what became of a request whose outcome nobody knows."""
    resolve = finding(which["caller"], force=force, attempt=attempt or 0)
    await _resolve(source, await _one(source, **which), resolve, reason, as_json=as_json)


@keys.command()
@caller_option
@route_option
@click.option("--older", metavar="AGE", help="Those completed longer ago than this: 45s, 90m, 12h, 30d.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--force", is_flag=True, help="Also those in flight, whose attempts run on, or of unknown outcome.")
@reason
@partial(with_records, in_memory=_ONLY_SHARED)
async def purge(
    source: "Source",
    as_json: bool,
    caller: str | None,
    route: str | None,
    older: str | None,
    dry_run: bool,
    force: bool,
    reason: str,
) -> None:
    """Remove the records of one caller, of one route, or of an age: a retry of what they answered is executed again.

    Those in flight or of unknown outcome stay, and those that can't be read. A record that doesn't tell its route is no route's.
    An age is by the clock of the gateway that completed the record. On a terminal it shows how far it is.
    """
    from rich.console import Console

    from oncegate.app.operators.records.purge import Which
    from oncegate.app.operators.records.purge import purge as purge_records
    from oncegate.app.operators.records.records import Records
    from oncegate.cache.store import Purges

    if caller is None and route is None and older is None:
        end("give --caller -, --route PATTERN or --older AGE, or several of them")
    before_ms = ms_ago(older, "--older")
    if not isinstance(source, Records) or not isinstance(source.cache, Purges):
        end(f"purge works on the shared cache itself: give --cache URL or --config FILE; {_ONLY_SHARED}")
    lines = caller_lines(caller)
    if lines is not None and not lines:
        end("standard input has no header lines: nobody in particular is no caller whose records could be purged")
    callers = None if lines is None else frozenset(source.digests_of(lines))
    which = Which(callers, route, force, before_ms)
    with purging(Console(stderr=True)) as progress:
        purged = await purge_records(source.cache, source.namespace, which, dry_run=dry_run, progress=progress)
    if purged.removed:
        chosen = ["one caller"] * (lines is not None) + [f"route {route}"] * (route is not None)
        chosen += [f"completed more than {older} ago"] * (older is not None)
        what, done = f"{purged.removed} records ({', '.join(chosen)})", f"purged{', by force,' if force else ''}"
        audit(what, done, reason)
        await audit_kept(source.cache, source.namespace, what, done, reason)
    output(asdict(purged) | {"dry_run": dry_run}, print_purged, as_json=as_json)


async def _resolve(source: "Source", identifier: str, request: "ResolveRequest", reason: str, *, as_json: bool) -> None:
    from oncegate.app.operators.records.records import Records
    from oncegate.app.operators.records.resolving import WHY_NOT
    from oncegate.cache.transitions import Resolution

    resolution = await source.resolve(identifier, request, author(reason))
    if resolution is not Resolution.RESOLVED:
        end(f"nothing was changed: {WHY_NOT[resolution][1]}", 1)
    if isinstance(source, Records):  # a gateway does it itself
        audit(f"record {identifier}", resolved(request), reason)
        await audit_kept(source.cache, source.namespace, f"record {identifier}", resolved(request), reason)
    state = request.state.value if request.state else "absent"
    output({"id": identifier, "resolution": "resolved", "state": state}, print_resolution, as_json=as_json)


async def _find(source: "Source", key: str | None, record: str | None, caller: str | None) -> Sequence[str]:
    if (key is None) == (record is None):
        end("give either a key or --record ID")
    if record is not None:
        if caller is not None:
            end("--record ID already says whose record it is: leave out --caller")
        return [record]
    return await source.of_key(key or "", caller_lines(caller))


async def _no_record(source: "Source") -> str:
    from oncegate.app.operators.records.records import Records

    if isinstance(source, Records):  # a gateway that runs has its own secret, and its own rules
        if await source.is_under_another_secret():
            return "no such record by this secret: the records here are under another secret (ONCEGATE_SECRET)"
        if changed := await source.changed_rules():
            return (
                f"no such record by these settings: not as where the gateway or app last started: {'; '.join(changed)}"
            )
    return "no such record: it was never made, its time is over, or scope or header of the settings were others then"


async def _one(source: "Source", **which: str | None) -> str:
    found = await _find(source, **which)
    if not found:
        end(await _no_record(source), 1)
    if len(found) > 1:
        end(f"several callers have used this key; say which with --caller - or --record: {', '.join(found)}", 1)
    return found[0]


keys.add_command(resolve_all)
keys.add_command(release_all)
