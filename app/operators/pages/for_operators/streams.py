"""``streams/`` over HTTP: how far the consumers of commands are. Who gets here has shown the operators' token."""

from collections.abc import Mapping

from fastapi import APIRouter, Request, Response

from oncegate.app.operators.letters.dead_letters import Commands
from oncegate.app.operators.letters.streams import stream_state
from oncegate.app.operators.pages.described.stream import StreamList
from oncegate.app.operators.pages.reply import NO_CACHE, NO_STREAM, NO_TOKEN, document

router = APIRouter(prefix="/streams", tags=["operators"], responses=NO_TOKEN | NO_CACHE | NO_STREAM)


@router.get("/", response_model=StreamList, response_description="Those of this gateway's routes.")
async def list_streams(request: Request) -> Response:
    """How long are the streams of commands, who reads them, and how far behind is each reader?"""
    streams: Mapping[str, Commands] = request.app.state.streams
    return document({"streams": [await stream_state(commands) for commands in streams.values()]})
