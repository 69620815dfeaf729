"""The first page: what needs a person, what is up, and what this gateway has decided."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from starlette.responses import Response

from oncegate.app.operators.console.frame import ConsolePage, Visit
from oncegate.app.operators.console.sources import Sources
from oncegate.app.operators.database.errors import DatabaseUnavailable
from oncegate.app.operators.records.newest import Chosen, newest
from oncegate.cache.errors import CacheError
from oncegate.cache.record import State
from oncegate.middleware.admission.observe import ENFORCED

SCANNED: Final = 500
"""Records that are looked at for one overview; the page says so, and leads to those that look at more."""
MINUTES: Final = 5
OTHER: Final = "other"
COLUMNS: Final = {
    "first": ("first",),
    "replayed": ("replayed",),
    "in flight": ("in-flight",),
    "reused": ("key-reused",),
    "unknown": ("outcome-unknown", "upstream-failed", "gateway-failed"),
}
"""Decisions that have a column of their own; the others are counted together. Unknown is the answer to a retry that is refused,
and to a first request whose upstream was lost.
"""


async def overview(visit: Visit) -> Response:
    """The first page: all that needs a person, and which processes are up."""
    sources = visit.sources
    (_, ready), found, recent, up, cache, (database, streams) = await asyncio.gather(
        sources.readiness.check(),
        _unknown(sources),
        sources.recent.listing(MINUTES),
        _processes(sources),
        sources.standing.of_cache(),
        asyncio.gather(_database(sources), asyncio.gather(*[_stream(sources, name) for name in sources.streams])),
    )
    return await visit.page(
        "overview.html",
        "Overview",
        ready=ready,
        found=found,
        streams=streams,
        database=database,
        gauges=sources.gauges(),
        columns=[*COLUMNS, OTHER],
        recent=recent,
        decisions=by_route(recent["decisions"], recent["outcomes"]),
        up=up,
        of_all=by_route(up.get("decisions", []), ()),
        cache=cache,
    )


def by_route(decided: Iterable[Mapping[str, Any]], ended: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each route: its count in each of the columns, and in all, and how many of its attempts have ended unknown, by
    what ``ended``.

    What was only observed has rows of its own.
    """
    became_unknown = {each["route"]: each["count"] for each in ended if each["outcome"] == State.UNKNOWN}
    column_of = {decision: column for column, decisions in COLUMNS.items() for decision in decisions}
    rows: dict[tuple[str, str], Counter[str]] = {(route, ENFORCED): Counter() for route in became_unknown}
    for each in decided:
        column = column_of.get(each["decision"], OTHER)
        rows.setdefault((each["route"], each["mode"]), Counter())[column] += each["count"]
    return [
        {
            "route": route,
            "mode": mode,
            "counts": [counts[name] for name in (*COLUMNS, OTHER)],
            "all": counts.total(),
            "became_unknown": became_unknown.get(route, 0) if mode == ENFORCED else None,
        }
        for (route, mode), counts in sorted(rows.items())
    ]


async def _unknown(sources: Sources) -> dict[str, Any]:
    try:
        return await newest(sources.records, Chosen(state="unknown"), limit=5, most=SCANNED)
    except CacheError as error:
        return {"failed": str(error)}


async def _processes(sources: Sources) -> dict[str, Any]:
    try:
        return await sources.standing.processes()
    except CacheError as error:
        return {"failed": str(error)}


async def _database(sources: Sources) -> dict[str, Any]:
    """The counts of what waits in the consumers' database; nothing, where none is given."""
    if sources.database is None:
        return {}
    try:
        return await sources.database.totals(at_a_glance=True)
    except DatabaseUnavailable as error:
        return {"failed": str(error)}


async def _stream(sources: Sources, name: str) -> dict[str, Any]:
    try:
        return {"name": name, **await sources.streams[name].counts()}
    except CacheError as error:
        return {"name": name, "failed": str(error)}


PAGES = (ConsolePage("", overview, "Overview"),)
