"""Messages that wait to be published, and those that the broker has refused: retried at once, or discarded."""

import asyncio
import re
from typing import Final
from urllib.parse import urlencode

from starlette.responses import Response

from oncegate.app.operators.console.frame import ConsolePage, PageRefused, Visit
from oncegate.app.operators.console.sources import changes_of, database_of

MOST_ROWS: Final = 50
NUMBER: Final = re.compile(r"[1-9][0-9]{0,17}")
"""An id of a message; one digit less than the largest has."""
_GONE: Final = "There is no such message: it was published, discarded, or never committed."


async def outbox(visit: Visit) -> Response:
    """The messages that wait to be published."""
    held, after = bool(visit.query("held")), visit.query("after")
    if after and not NUMBER.fullmatch(after):
        raise PageRefused(400, "after takes the id of a message.")
    database = database_of(visit.sources)
    found, totals = await asyncio.gather(
        database.messages(limit=MOST_ROWS, after=int(after or 0), held=held), database.totals()
    )
    choice = {"held": "1"} if held else {}
    further = urlencode(choice | {"after": found["after"]}) if found["after"] else ""
    return await visit.page(
        "outbox.html",
        "Outbox",
        rows=found["messages"],
        totals=totals["outbox"],
        held=held,
        further=further,
        begun=bool(after),
    )


async def change_dead(visit: Visit) -> Response:
    """Have all messages that are given up tried again."""
    count = await changes_of(visit.sources, visit.author()).retry_messages()
    return visit.to("/outbox", f"{count} messages are tried again.")


async def message(visit: Visit) -> Response:
    """One message."""
    found = await database_of(visit.sources).message(_number(visit))
    if found is None:
        raise PageRefused(404, _GONE)
    return await visit.page("message.html", f"Message {found['id']}", message=found)


async def change_message(visit: Visit) -> Response:
    """Have a message tried again, or delete it."""
    number, do, changes = _number(visit), visit.form.get("do", ""), changes_of(visit.sources, visit.author())
    if do not in ("retry", "discard"):
        raise PageRefused(400, "Say whether to retry or to discard. Nothing was changed.")
    is_there = bool(await changes.retry_messages((number,)) if do == "retry" else await changes.discard_message(number))
    if not is_there:
        raise PageRefused(404, f"{_GONE} Nothing was changed.")
    return visit.to("/outbox", f"The message {number} {'is tried again' if do == 'retry' else 'was discarded'}.")


def _number(visit: Visit) -> int:
    given = visit.request.path_params["id"]
    if not NUMBER.fullmatch(given):
        raise PageRefused(404, "That is no id of a message.")
    return int(given)


PAGES = (
    ConsolePage("/outbox", outbox, "Outbox"),
    ConsolePage("/outbox", change_dead, method="POST", changes=True),
    ConsolePage("/outbox/{id}", message),
    ConsolePage("/outbox/{id}", change_message, method="POST", changes=True),
)
