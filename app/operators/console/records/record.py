"""One record: its story, what a retry would get, and what an operator who knows better can do about it."""

from typing import Any, Final

import orjson
from starlette.responses import Response

from oncegate.app.operators.audit import Author
from oncegate.app.operators.console.frame import ConsolePage, PageRefused, Visit, below
from oncegate.app.operators.console.records.prospects import command_line, prospect, route_of
from oncegate.app.operators.records.resolving import WHY_NOT, resolution, resolve_and_report
from oncegate.app.operators.showing import whole_record
from oncegate.cache.record import State
from oncegate.cache.transitions import Resolution, ResolveRequest

MOST_SHOWN: Final = 64 * 1024
"""Characters of a stored body that a page shows."""
_DONE: Final = {
    "succeeded": "Resolved as executed: retries get what you gave.",
    "failed": "Resolved as not executed.",
    "release": "Released: the key is free.",
}
_FOUND: Final = {404: "There is no such record: it was never made, its time is over, or it was released."}


async def record(visit: Visit) -> Response:
    """One request's story."""
    return await _page(visit)


async def stored_response(visit: Visit) -> Response:
    """The stored response, which may hold what is secret: each look at it is a line of the audit log."""
    identifier = visit.request.path_params["id"]
    shown = await whole_record(visit.sources.records, visit.sources.audit, identifier, Author(visit.operator))
    if shown is None:
        raise PageRefused(404, _FOUND[404])
    return await _page(visit, shown["response"])


async def resolve(visit: Visit) -> Response:
    """Somebody has found out what became of it."""
    identifier, form = visit.request.path_params["id"], visit.form
    author, outcome = visit.author(), form.get("as", "")
    if outcome not in _DONE:
        raise PageRefused(400, "Choose what became of it. Nothing was changed.")
    attempt, status = _number(form, "attempt"), _number(form, "status")
    force = form.get("force") == "yes"
    if outcome == "release":
        request = ResolveRequest(None, force=force, attempt=attempt)
    else:
        body = form.get("body", "").encode()
        headers = [("content-type", form["type"])] if body and form.get("type") else []
        request = resolution(
            State(outcome), status=status or None, headers=headers, body=body, ttl=None, force=force, attempt=attempt
        )
    done = await resolve_and_report(visit.sources.records, visit.sources.audit, identifier, request, author)
    if done is not Resolution.RESOLVED:
        code, why = WHY_NOT[done]
        raise PageRefused(code, f"Nothing was changed: {why}.")
    return visit.to(
        "/unknown" if outcome == "release" else f"/records/{identifier}", f"{_DONE[outcome]} ({identifier})"
    )


async def _page(visit: Visit, response: dict[str, Any] | None = None) -> Response:
    identifier = visit.request.path_params["id"]
    found = await visit.sources.records.show(identifier)
    if found is None:
        raise PageRefused(404, _FOUND[404])
    route = route_of(found, visit.sources.policy()["routes"])
    address = "https://GATEWAY" if visit.sources.own_port else str(visit.request.base_url).rstrip("/")
    return await visit.page(
        "record.html",
        "Record",
        record=found,
        response=response,
        body=_as_text(response),
        drawing=STATES,
        prospect=prospect(found, route),
        command_line=command_line(found, route, address),
        places=await _places(visit, identifier) if found["submission"] else [],
        address=below,
    )


async def _places(visit: Visit, identifier: str) -> list[dict[str, Any]]:
    """Where a submission's command is, in each of the streams that know of it."""
    if not visit.sources.streams:
        return []
    from oncegate.app.operators.letters.search import command_place  # loads redis-py's client

    places = []
    for name, commands in visit.sources.streams.items():
        found = await command_place(commands, identifier)
        if found is not None:
            places.append({"stream": name, **found})
    return places


STATES: Final = (
    ("absent", "no record", 90, 100),
    ("in-flight", "in flight", 270, 100),
    ("succeeded", "succeeded", 470, 30),
    ("failed", "failed", 470, 100),
    ("unknown", "unknown", 470, 170),
)
"""The states as they are drawn: what is written in each, and where its middle is."""


def _as_text(response: dict[str, Any] | None) -> str:
    body = None if response is None else response.get("body")
    if body is None:
        return ""
    text = body if isinstance(body, str) else _json(body)
    return (
        text
        if len(text) <= MOST_SHOWN
        else f"{text[:MOST_SHOWN]}\n(cut off: `oncegate keys show --response` has all of it)"
    )


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode()


def _number(form: Any, name: str) -> int:
    given = form.get(name, "").strip()
    if not given:
        return 0
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise PageRefused(400, f"{name} is a number. Nothing was changed.")
    return int(given)


PAGES = (
    ConsolePage("/records/{id}", record),
    ConsolePage("/records/{id}/response", stored_response, method="POST"),
    ConsolePage("/records/{id}/resolve", resolve, method="POST", changes=True),
)
