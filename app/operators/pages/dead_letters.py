"""``dead-letters/`` over HTTP: what ``oncegate commands`` does, for who has shown the operators' token."""

from collections.abc import AsyncIterator, Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response

from oncegate.app.operators.audit_lines import AuditLines
from oncegate.app.operators.dead_letters import Commands, NotAnId, OpenCommands
from oncegate.app.operators.pages.models import (
    Change,
    CommandShape,
    DeadLetterList,
    DiscardedList,
    Missing,
    RetriedList,
)
from oncegate.app.operators.pages.records import author_of
from oncegate.app.operators.pages.reply import LARGE, NO_CACHE, NO_TOKEN, READS_ONLY, SLOW, WRONG, answer, document
from oncegate.cache.redis.streams.entry_id import ENTRY_ID

router = APIRouter(prefix="/dead-letters", tags=["operators"], responses=WRONG | NO_TOKEN | NO_CACHE)

_NO_LETTER = "no dead letter of this id"
_GONE_CONSUMER = "its consumer reads the stream no more: start its worker first"
_ABSENT = answer(404, "There is no such command, or no dead letter of it.")
_UNREAD = answer(409, "It is left where it is: its consumer reads the stream no more. Start its worker first.")
_OF_A_CHANGE = READS_ONLY | _ABSENT | SLOW | LARGE


async def _commands(
    request: Request,
    stream: Annotated[str | Missing, Query(description="Which stream: needed where there are several.")] = None,
) -> AsyncIterator[Commands]:
    streams: Mapping[str, OpenCommands] = request.app.state.streams
    name = stream or (next(iter(streams)) if len(streams) == 1 else "")
    if name not in streams:
        raise NotAnId(f"stream is one of {', '.join(streams)}")
    async with streams[name]() as commands:
        yield commands


Ours = Annotated[Commands, Depends(_commands)]
Identifier = Annotated[str, Path(alias="id", description="Of a command, of its entry, or of its dead letter")]


@router.get(
    "/",
    response_model=DeadLetterList,
    response_description="The oldest first.",
    responses=answer(404, "No route of this gateway is asynchronous."),
)
async def list_dead_letters(
    commands: Ours,
    after: Annotated[str, Query(description="Go on behind this dead letter.")] = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 100,
) -> Response:
    """Which commands were given up?"""
    if after and not ENTRY_ID.fullmatch(after):
        raise NotAnId("after takes the id of a dead letter: 1795281703248-0")
    return document(await commands.listing(after=after, limit=limit))


@router.get(
    "/{id}", response_model=CommandShape, response_description="All that is known of the command.", responses=_ABSENT
)
async def show_dead_letter(
    commands: Ours,
    identifier: Identifier,
    body: Annotated[bool, Query(description="With its key, its target's query and its payload.")] = False,
) -> Response:
    """What became of a command, and why was it given up?"""
    command = await commands.show(identifier, body=body)
    if command is None:
        raise HTTPException(404, "no such command: it was never accepted, or its time is over")
    return document(command)


@router.post(
    "/{id}/retry", response_model=RetriedList, response_description="They are done.", responses=_OF_A_CHANGE | _UNREAD
)
async def retry_dead_letter(
    request: Request,
    commands: Ours,
    identifier: Identifier,
    given: Change = Change(),  # noqa: B008  # frozen
) -> Response:
    """Have a command processed again: as many attempts as a new one has, by the consumer that gave it up."""
    author = author_of(request, given.reason)
    done = [await commands.retry(letter, author) for letter in await commands.find(identifier)]
    retried, unread = ([each for one in done for each in one[name]] for name in ("retried", "unread"))
    if not retried:
        raise HTTPException(409, _GONE_CONSUMER) if unread else HTTPException(404, _NO_LETTER)
    audit: AuditLines = request.app.state.audit
    await audit.report(author, f"dead letters of {identifier}", "retried")
    return document({"retried": retried, "unread": unread})


@router.post(
    "/{id}/discard", response_model=DiscardedList, response_description="They are gone.", responses=_OF_A_CHANGE
)
async def discard_dead_letter(
    request: Request,
    commands: Ours,
    identifier: Identifier,
    given: Change = Change(),  # noqa: B008  # frozen
) -> Response:
    """Take dead letters away for good: what they hold is gone. Their commands' records stay as they are."""
    discarded = await commands.discard(await commands.find(identifier))
    if not discarded:
        raise HTTPException(404, _NO_LETTER)
    audit: AuditLines = request.app.state.audit
    await audit.report(author_of(request, given.reason), f"dead letters of {identifier}", "discarded")
    return document({"discarded": discarded})
