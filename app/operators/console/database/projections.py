"""Projections: how far each is, and the event at which one stands still, which can be skipped."""

import re
from typing import Final

from starlette.responses import Response

from oncegate.app.operators.console.frame import ConsolePage, PageRefused, Visit
from oncegate.app.operators.console.sources import changes_of, database_of

_POSITION: Final = re.compile(r"-?[0-9]{1,18}")


async def projections(visit: Visit) -> Response:
    """How far each projection is."""
    return await visit.page("projections.html", "Projections", rows=await database_of(visit.sources).projections())


async def projection(visit: Visit) -> Response:
    """One of them."""
    found = await database_of(visit.sources).projection(visit.request.path_params["name"])
    return await visit.page("projection.html", f"Projection {found['name']}", row=found)


async def change(visit: Visit) -> Response:
    """Skip the event at which it stands."""
    name, position, author = visit.request.path_params["name"], visit.form.get("position", ""), visit.author()
    if not _POSITION.fullmatch(position):
        raise PageRefused(400, "A position is a whole number. Nothing was changed.")
    await changes_of(visit.sources, author).skip_event(name, int(position))
    return visit.to("/projections", f"The event at position {position} was skipped.")


PAGES = (
    ConsolePage("/projections", projections, "Projections"),
    ConsolePage("/projections/{name}", projection),
    ConsolePage("/projections/{name}", change, method="POST", changes=True),
)
