"""Outcomes that nobody knows, the oldest first: each may have been executed, so that a person has to find out."""

from typing import Final
from urllib.parse import urlencode

from starlette.responses import Response

from oncegate.app.operators.console.frame import ConsolePage, Visit
from oncegate.app.operators.console.records.choices import AGES, choice_of, which_of
from oncegate.app.operators.records.newest import newest
from oncegate.middleware.outcome.responses import now_ms

MOST_ROWS: Final = 50
SCANNED: Final = 2000


async def unknown(visit: Visit) -> Response:
    """The records of unknown outcome, the oldest first."""
    choice, cursor = choice_of(visit.request.query_params), visit.query("cursor")[:200]
    chosen = which_of(choice, now_ms()).chosen()
    found = await newest(visit.sources.records, chosen, cursor=cursor, limit=MOST_ROWS, most=SCANNED, oldest=True)
    given = {name: value for name, value in choice.items() if value}
    return await visit.page(
        "unknown.html",
        "Unknown outcomes",
        choice=choice,
        ages=list(AGES),
        found=found,
        chosen=urlencode(given),
        further=urlencode(given | {"cursor": found["cursor"]}) if found["cursor"] else "",
        begun=bool(cursor),
    )


PAGES = (ConsolePage("/unknown", unknown, "Unknown"),)
