"""``audit/`` over HTTP: who changed what, when and why. Who gets here has shown the operators' token."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from oncegate.app.operators.audit_lines import MOST_LINES, AuditLines
from oncegate.app.operators.pages.described.document import Missing
from oncegate.app.operators.pages.described.record import AuditList
from oncegate.app.operators.pages.reply import NO_CACHE, NO_TOKEN, WRONG, document

router = APIRouter(prefix="/audit", tags=["operators"], responses=WRONG | NO_TOKEN | NO_CACHE)


@router.get("/", response_model=AuditList, response_description="The newest first.")
async def list_audit_lines(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MOST_LINES, description="How many at most.")] = 100,
    operator: Annotated[str | Missing, Query(max_length=64, description="Only those of one operator.")] = None,
) -> Response:
    """Who changed what, when, and why? By any gateway and command line of this cache and namespace."""
    lines: AuditLines = request.app.state.audit
    return document(await lines.listing(limit=limit, operator=operator))
