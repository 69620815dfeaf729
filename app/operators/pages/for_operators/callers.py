"""``callers/`` over HTTP: who was refused lately, and for what. Who gets here has shown the operators' token."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from oncegate.app.operators.pages.described.refusal import RefusedList
from oncegate.app.operators.pages.reply import NO_TOKEN, WRONG, document
from oncegate.app.telemetry.recent import MOST_MINUTES
from oncegate.app.telemetry.refusals import MOST_CALLERS, Refusals

router = APIRouter(prefix="/callers", tags=["operators"], responses=WRONG | NO_TOKEN)


@router.get("/", response_model=RefusedList, response_description="Who was refused most often first.")
async def list_refused_callers(
    request: Request,
    minutes: Annotated[int, Query(ge=1, le=MOST_MINUTES, description="Of how many minutes.")] = 5,
    limit: Annotated[int, Query(ge=1, le=MOST_CALLERS, description="The most callers.")] = 100,
) -> Response:
    """Who reuses keys, and who gets 400, 409, 422 and 429, by route? Of all workers of this gateway, and of no other one."""
    refusals: Refusals = request.app.state.refusals
    return document(await refusals.listing(minutes, limit))
