"""``decisions/`` over HTTP: what requests were answered with lately. Who gets here has shown the operators' token."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from oncegate.app.operators.pages.described.gateway import DecisionList
from oncegate.app.operators.pages.reply import NO_TOKEN, WRONG, document
from oncegate.app.telemetry.recent import MOST_MINUTES, RecentDecisions

router = APIRouter(prefix="/decisions", tags=["operators"], responses=WRONG | NO_TOKEN)


@router.get("/", response_model=DecisionList, response_description="The most frequent first.")
async def list_decisions(
    request: Request,
    minutes: Annotated[int, Query(ge=1, le=MOST_MINUTES, description="Of how many minutes.")] = 5,
) -> Response:
    """How were requests answered in the last minutes? By all workers of this gateway, and of no other one."""
    recent: RecentDecisions = request.app.state.recent
    return document(await recent.listing(minutes))
