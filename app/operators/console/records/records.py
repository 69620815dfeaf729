"""The records: the newest of a choice that stands in the address, with counts by state that can be opened."""

from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from oncegate.app.operators.console.frame import ConsolePage, PageRefused, Visit
from oncegate.app.operators.console.records.choices import AGES, MOST_ROUTE
from oncegate.app.operators.records.newest import CALLER_DIGEST, Chosen, newest
from oncegate.cache.record import State
from oncegate.middleware.outcome.responses import now_ms

STATES: Final = (State.IN_FLIGHT.value, State.SUCCEEDED.value, State.FAILED.value, State.UNKNOWN.value)
LISTED: Final = 50
SCANNED: Final = 2000
"""Records that are looked at for one page; the page says so, and leads on to others."""


async def records(visit: Visit) -> Response:
    """The records of a choice, the newest first."""
    choice = {name: visit.query(name) for name in ("state", "route", "caller", "since")}
    found = await newest(
        visit.sources.records, _chosen(choice), cursor=visit.query("cursor"), limit=LISTED, most=SCANNED
    )
    given = {name: value for name, value in choice.items() if value}
    counts = [(state, found["counts"].get(state, 0), _address(given, state=state)) for state in (*STATES, "unreadable")]
    return await visit.page(
        "records.html",
        "Records",
        choice=choice,
        states=STATES,
        ages=list(AGES),
        routes=_routes(visit),
        found=found,
        counts=[each for each in counts if each[1] or each[0] != "unreadable"],
        further=_address(given, cursor=found["cursor"]) if found["cursor"] else "",
        again=_address(given, cursor=visit.query("cursor")) if visit.query("cursor") else _address(given),
        from_the_beginning=_address(given) if visit.query("cursor") else "",
    )


def _chosen(choice: dict[str, str]) -> Chosen:
    """The choice that an address makes. Raises `PageRefused`."""
    state, route, caller, since = choice["state"], choice["route"], choice["caller"], choice["since"]
    if state and state not in (*STATES, "unreadable"):
        raise PageRefused(400, f"A state is one of {', '.join(STATES)}.")
    if caller and not CALLER_DIGEST.fullmatch(caller):
        raise PageRefused(
            400, "A caller is named by its digest: the 20 characters that a record's id has behind the colon."
        )
    if since and since not in AGES:
        raise PageRefused(400, f"since is one of {', '.join(AGES)}.")
    if len(route) > MOST_ROUTE:
        raise PageRefused(400, f"A route's pattern is {MOST_ROUTE} characters at most.")
    since_ms = now_ms() - AGES[since] * 1000 if since else 0
    return Chosen(state or None, frozenset([caller]) if caller else None, route or None, since_ms)


def _address(choice: dict[str, str], **others: str) -> str:
    """The address of the page by a choice, below the console."""
    query = urlencode(choice | others)
    return f"/records?{query}" if query else "/records"


def _routes(visit: Visit) -> list[str]:
    """The patterns of this gateway's routes, the default one last."""
    document: dict[str, Any] = visit.sources.policy()
    return list(dict.fromkeys([*(route["path"] for route in document.get("routes", ())), "*"]))


PAGES = (ConsolePage("/records", records, "Records"),)
