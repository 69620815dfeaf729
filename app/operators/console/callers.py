"""The callers: who was refused lately, by route and problem, with links to their records."""

from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from oncegate.app.operators.console.frame import ConsolePage, PageRefused, Visit
from oncegate.app.telemetry.refusals import STATUSES

MINUTES: Final = ("5", "15", "60")
LISTED: Final = 50


async def callers(visit: Visit) -> Response:
    """The callers who reuse keys, or get 400, 409, 422 and 429."""
    minutes = visit.query("minutes") or MINUTES[0]
    if minutes not in MINUTES:
        raise PageRefused(400, f"minutes is one of {', '.join(MINUTES)}.")
    found = await visit.sources.refusals.listing(int(minutes), LISTED)
    rows = [_row(each["caller"] or "", row) for each in found["callers"] for row in each["routes"]]
    columns = sorted({decision for row in rows for decision in row["decisions"]}, key=_by_status)
    return await visit.page(
        "callers.html",
        "Callers",
        minutes=minutes,
        choices=MINUTES,
        found=found,
        rows=rows,
        columns=[(name, STATUSES.get(name)) for name in columns],
    )


def _row(caller: str, row: dict[str, Any]) -> dict[str, Any]:
    """A caller at a route, with the address of the records that both have."""
    query = {"caller": caller, "route": row["route"]} if caller else {"route": row["route"]}
    return {"caller": caller, **row, "records": f"/records?{urlencode(query)}"}


def _by_status(decision: str) -> tuple[int, str]:
    return STATUSES.get(decision, 0), decision


PAGES = (ConsolePage("/callers", callers, "Callers"),)
