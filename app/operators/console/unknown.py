"""Outcomes that nobody knows, the oldest first: each may have been executed, so that a person has to find out."""

from typing import Final
from urllib.parse import urlencode

from starlette.responses import Response

from oncegate.app.operators.console.frame import ConsolePage, Visit
from oncegate.app.operators.newest import Chosen, newest

MOST_ROWS: Final = 50
SCANNED: Final = 2000


async def unknown(visit: Visit) -> Response:
    """What is of unknown outcome?"""
    route, cursor = visit.query("route")[:1000], visit.query("cursor")[:200]
    chosen = Chosen(state="unknown", route=route or None)
    found = await newest(visit.sources.records, chosen, cursor=cursor, limit=MOST_ROWS, most=SCANNED, oldest=True)
    further = urlencode({"route": route, "cursor": found["cursor"]}) if found["cursor"] else ""
    return visit.page("unknown.html", "Unknown outcomes", route=route, found=found, further=further, begun=bool(cursor))


PAGES = (ConsolePage("/unknown", unknown, "Unknown"),)
