"""Aggregates that wait at a consumer for a number: which, since when, and skipping that or trying it again."""

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from starlette.responses import Response

from oncegate.app.operators.console.frame import ConsolePage, PageRefused, Visit
from oncegate.app.operators.console.sources import changes_of, database_of

if TYPE_CHECKING:
    from oncegate.app.operators.database.database import Waiting

MOST_ROWS: Final = 50
_DIGEST: Final = re.compile(r"(?:[0-9a-f]{2}){1,64}")
_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_GONE: Final = "This aggregate waits for nothing at this consumer any more."


async def order(visit: Visit) -> Response:
    """The aggregates that wait."""
    cursor = visit.query("cursor")[:200]
    found, further = await database_of(visit.sources).waiting(limit=MOST_ROWS, cursor=cursor)
    more = urlencode({"cursor": further}) if further else ""
    return await visit.page("order.html", "Order", rows=found, further=more, begun=bool(cursor))


async def aggregate(visit: Visit) -> Response:
    """One aggregate that waits."""
    found = await _waiting(visit, visit.query("consumer"), visit.query("aggregate"))
    if found is None:
        raise PageRefused(404, _GONE)
    return await visit.page("aggregate.html", "An aggregate that waits", row=found)


async def change(visit: Visit) -> Response:
    """Skip the number that it waits for, or have the message that failed tried again."""
    author, do = visit.author(), visit.form.get("do", "")
    if do not in ("skip", "retry"):
        raise PageRefused(400, "Say whether to skip or to retry. Nothing was changed.")
    number = visit.form.get("sequence", "")
    found = await _waiting(visit, visit.form.get("consumer", ""), visit.form.get("aggregate", ""))
    if found is None or not _NUMBER.fullmatch(number) or found.waits_for != int(number):
        raise PageRefused(409, "It does not wait for that number any more. Nothing was changed: look at it again.")
    changes = changes_of(visit.sources, author)
    if do == "retry":
        retried = await changes.retry_parked(found.consumer, found.digest, found.aggregate)
        return visit.to("/order", f"The number {retried} is tried again.")
    behind = await changes.skip(found.consumer, found.digest, found.waits_for, found.aggregate)
    return visit.to("/order", f"The number {number} was skipped. {behind} parked behind it follow by themselves.")


async def _waiting(visit: Visit, consumer: str, digest: str) -> "Waiting | None":
    """The aggregate of a digest, since an id must not be in an address; ``None``: it does not wait at this consumer."""
    if not _DIGEST.fullmatch(digest):
        raise PageRefused(404, "That names no aggregate.")
    found, _ = await database_of(visit.sources).waiting(aggregate=bytes.fromhex(digest))
    return next((each for each in found if each.consumer == consumer), None)


PAGES = (
    ConsolePage("/order", order, "Order"),
    ConsolePage("/order/aggregate", aggregate),
    ConsolePage("/order/aggregate", change, method="POST", changes=True),
)
