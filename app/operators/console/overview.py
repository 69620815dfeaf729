"""The first page: what needs a person, what is up, and what this gateway has decided."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from oncegate.app.operators.console.frame import ConsolePage, Visit
from oncegate.app.operators.console.sources import Sources
from oncegate.app.operators.newest import Chosen, newest
from oncegate.cache.errors import CacheError

SCANNED: Final = 500
"""Records that are looked at for one overview; the page says so, and leads to those that look at more."""
COLUMNS: Final = {
    "first": ("first",),
    "replayed": ("replayed",),
    "in flight": ("in-flight",),
    "reused": ("key-reused",),
    "unknown": ("outcome-unknown",),
}
"""Decisions that have a column of their own; the others are counted together."""


async def overview(visit: Visit) -> Response:
    """What needs a person? What is up?"""
    sources = visit.sources
    (_, ready), found, streams = await asyncio.gather(
        sources.readiness.check(),
        _unknown(sources),
        asyncio.gather(*[_stream(sources, name) for name in sources.streams]),
    )
    return visit.page(
        "overview.html",
        "Overview",
        ready=ready,
        found=found,
        streams=streams,
        gauges=sources.gauges(),
        columns=[*COLUMNS, "other"],
        decisions=by_route(sources.decisions()),
        cache_url=sources.cache_url,
    )


def by_route(counted: Mapping[tuple[str, str, str], int]) -> list[dict[str, Any]]:
    """A row for each route and method: its count in each of the columns, and in all."""
    column_of = {decision: column for column, decisions in COLUMNS.items() for decision in decisions}
    rows: dict[tuple[str, str], Counter[str]] = {}
    for (route, method, decision), count in counted.items():
        rows.setdefault((route, method), Counter())[column_of.get(decision, "other")] += count
    return [
        {
            "route": route,
            "method": method,
            "counts": [counts[name] for name in (*COLUMNS, "other")],
            "all": counts.total(),
        }
        for (route, method), counts in sorted(rows.items())
    ]


async def _unknown(sources: Sources) -> dict[str, Any]:
    try:
        return await newest(sources.records, Chosen(state="unknown"), limit=5, most=SCANNED)
    except CacheError as error:
        return {"failed": str(error)}


async def _stream(sources: Sources, name: str) -> dict[str, Any]:
    try:
        async with sources.streams[name]() as commands:
            return {"name": name, **await commands.counts()}
    except CacheError as error:
        return {"name": name, "failed": str(error)}


PAGES = (ConsolePage("", overview, "Overview"),)
