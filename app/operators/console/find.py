"""One box that takes anything by which a record is known: its id, as problems and logs have it, a key, or a trace's id."""

import re
from typing import Any, Final

from starlette.responses import Response

from oncegate.app.operators.console.frame import ConsolePage, PageRefused, Visit
from oncegate.app.operators.newest import Chosen, newest
from oncegate.middleware.rules.keys.key import RECORD_ID

MOST_ROWS: Final = 50
SCANNED: Final = 2000
"""Records that are looked at for a trace, whose id no cache knows them by."""
_MOST: Final = 1000
_TRACE: Final = re.compile(r"(?:00-)?([0-9a-f]{32})(?:-[0-9a-f]{16}-[0-9a-f]{2})?")


async def box(visit: Visit) -> Response:
    """The box."""
    return visit.page("find.html", "Find", what="", rows=None, notes=[])


async def find(visit: Visit) -> Response:
    """What was found. By a form that is posted: a key must not be in an address."""
    what = visit.form.get("what", "").strip()
    if not what:
        raise PageRefused(400, "Give a key, a record's id, or a trace's id.")
    if len(what) > _MOST:
        raise PageRefused(400, f"That is longer than {_MOST} characters, and no key or id.")
    rows, notes = await _records(visit, what)
    if len(rows) == 1:
        return visit.to(f"/records/{rows[0]['id']}")
    return visit.page("find.html", "Find", what=what, rows=rows[:MOST_ROWS], notes=notes)


async def _records(visit: Visit, what: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The records, and what else is to be said about them."""
    records = visit.sources.records
    named = list(dict.fromkeys(RECORD_ID.findall(what)))[:MOST_ROWS]
    if named and (rows := await records.rows(named)):
        return rows, []
    notes = (
        ["A record of that id is not there: it was never made, its time is over, or it was released."] if named else []
    )
    traced = _TRACE.fullmatch(what)
    if traced is not None:
        found = await newest(records, Chosen(trace_id=traced[1]), limit=MOST_ROWS, most=SCANNED)
        if found["records"]:
            return found["records"], notes
        if not found["complete"]:
            notes.append(f"No record of that trace is among the {found['scanned']} that were looked at.")
    identifiers = await records.of_key(what)
    if len(identifiers) > MOST_ROWS:
        notes.append(f"{len(identifiers)} callers use that key. These are {MOST_ROWS} of their records.")
    return await records.rows(identifiers[:MOST_ROWS]), notes


PAGES = (ConsolePage("/find", box, "Find"), ConsolePage("/find", find, method="POST"))
