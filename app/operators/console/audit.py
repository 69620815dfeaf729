"""Who did what, when and why: the last lines of the audit, of all gateways and command lines of this cache and namespace."""

from typing import Final

from starlette.responses import Response

from oncegate.app.operators.console.frame import ConsolePage, PageRefused, Visit

MOST_ROWS: Final = 50


async def audit(visit: Visit) -> Response:
    """The operators' last changes."""
    if visit.sources.audit is None:
        raise PageRefused(404, "This cache keeps no audit lines: they are in the log oncegate.audit alone.")
    operator = visit.query("operator")[:64]
    found = await visit.sources.audit.listing(limit=MOST_ROWS, operator=operator or None)
    return await visit.page("audit.html", "Audit", operator_asked=operator, lines=found["lines"], kept=found["kept"])


PAGES = (ConsolePage("/audit", audit, "Audit"),)
