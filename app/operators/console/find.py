"""One box that takes anything by which a record is known: its id, as problems and logs have it, a key, or a trace's id.

Where the consumers' database is given, an aggregate's id too, and that of a message of an outbox.
"""

import re
from collections.abc import Mapping, Sequence
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
    return _page(visit)


async def find(visit: Visit) -> Response:
    """What was found. By a form that is posted: a key must not be in an address."""
    what = visit.form.get("what", "").strip()
    if not what:
        raise PageRefused(400, "Give a key, a record's id, or a trace's id.")
    if len(what) > _MOST:
        raise PageRefused(400, f"That is longer than {_MOST} characters, and no key or id.")
    rows, notes = await _records(visit, what)
    kept: dict[str, Any] = {}
    if visit.sources.database is not None:
        from oncegate.app.operators.console.in_database import found_in_database

        kept, more = await found_in_database(visit.sources.database, what)
        notes += more
    if len(rows) == 1 and not kept:
        return visit.to(f"/records/{rows[0]['id']}")
    return _page(visit, what, rows[:MOST_ROWS], notes, kept)


def _page(
    visit: Visit,
    what: str = "",
    rows: list[dict[str, Any]] | None = None,
    notes: Sequence[str] = (),
    kept: Mapping[str, Any] | None = None,
) -> Response:
    has_database = visit.sources.database is not None
    return visit.page("find.html", "Find", what=what, rows=rows, notes=notes, kept=kept, has_database=has_database)


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
