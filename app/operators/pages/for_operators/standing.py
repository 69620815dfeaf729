"""``processes/``, ``cache/`` and ``settings/`` over HTTP, for who has shown an operator's token."""

from fastapi import APIRouter, Request, Response

from oncegate.app.operators.pages.described.standing import CacheShape, ProcessList, SettingList
from oncegate.app.operators.pages.reply import NO_CACHE, NO_TOKEN, document
from oncegate.app.operators.standing import Standing

router = APIRouter(tags=["operators"], responses=NO_TOKEN)


@router.get("/processes/", response_model=ProcessList, response_description="Gateways first.", responses=NO_CACHE)
async def list_processes(request: Request) -> Response:
    """Which gateways and workers of this cache and namespace are up, and what did all gateways decide in the last minutes?"""
    standing: Standing = request.app.state.standing
    return document(await standing.processes())


@router.get("/cache/", response_model=CacheShape, response_description="Also of a cache that is away.")
async def show_cache(request: Request) -> Response:
    """How does the cache stand: can it be reached, how full is it, what does it lose?"""
    standing: Standing = request.app.state.standing
    return document(await standing.of_cache())


@router.get("/settings/", response_model=SettingList, response_description="In the order of docs/configuration.md.")
async def list_settings(request: Request) -> Response:
    """Which settings are in effect, and where did each come from? Secrets are left out."""
    standing: Standing = request.app.state.standing
    return document(await standing.of_settings())
