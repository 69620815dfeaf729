"""The newest records of a choice, for ``oncegate keys list``: from a cache, or from a gateway, piece by piece."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from oncegate.app.cli.records.keys_options import caller_lines
from oncegate.app.cli.usage import end

if TYPE_CHECKING:
    from oncegate.app.cli.records.keys_options import Source
    from oncegate.app.operators.records.newest import Chosen


def began(record: dict[str, Any]) -> str:
    """The time at which the attempt of a row began, as text that sorts; empty where that is not known."""
    return record.get("began_at") or ""


async def chosen_of(
    source: "Source", state: str | None, route: str | None, caller: str | None, since_ms: int
) -> "Chosen":
    """The choice that options of ``keys list`` make. Ends the process for a caller that is none."""
    from oncegate.app.operators.records.newest import CALLER_DIGEST, Chosen
    from oncegate.app.operators.records.records import Records
    from oncegate.middleware.rules.keys.key import caller_of_id

    if caller is not None and CALLER_DIGEST.fullmatch(caller):
        return Chosen(state, frozenset([caller]), route, since_ms)
    lines = caller_lines(caller)
    if lines is None:
        callers = None
    elif not lines:
        end("give a key, or the header lines of a caller: who sends none is no caller in particular")
    elif isinstance(source, Records):
        callers = frozenset(source.digests_of(lines))
    else:  # only the gateway knows by which secret
        callers = frozenset(map(caller_of_id, await source.of_key(None, lines)))
    return Chosen(state, callers, route, since_ms)


async def newest_of(source: "Source", chosen: "Chosen", limit: int, scan: int | None) -> dict[str, Any]:
    """Up to ``limit`` of those that are ``chosen``; no more are held. Says where there are others."""
    from oncegate.app.operators.records.newest import MOST_SCANNED, newest
    from oncegate.app.operators.records.records import Records

    rows: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    cursor, scanned = "", 0
    while scan is None or scanned < scan:
        most = MOST_SCANNED if scan is None else min(MOST_SCANNED, scan - scanned)
        if isinstance(source, Records):
            found = await newest(source, chosen, cursor=cursor, limit=limit, most=most)
        else:
            found = await source.newest(chosen, cursor=cursor, limit=limit, most=most)
        rows = sorted({row["id"]: row for row in (*rows, *found["records"])}.values(), key=began, reverse=True)[:limit]
        counts.update(found["counts"])
        scanned, cursor = scanned + found["scanned"], found["cursor"]
        if not cursor:
            break
    if sum(counts.values() if chosen.state is None else [counts[chosen.state]]) > limit:
        click.echo(f"oncegate: these are the newest {limit}: --limit", err=True)
    if cursor:
        click.echo(f"oncegate: {scanned} records were looked at, and there are others, perhaps newer: --scan", err=True)
    return {"records": rows, "cursor": "", "scanned": scanned, "complete": not cursor, "counts": dict(counts)}
