"""``dead-letters/`` over HTTP: what ``oncegate commands`` does, for who has shown the operators' token."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response

from oncegate.app.operators.audit import Author
from oncegate.app.operators.audit_lines import AuditLines
from oncegate.app.operators.letters.changes import LetterChanges, change_group, change_letters
from oncegate.app.operators.letters.dead_letters import MOST_SCANNED, NOT_ALL, Commands, NotAnId
from oncegate.app.operators.letters.groups import by_error
from oncegate.app.operators.pages.described.document import Change, Missing
from oncegate.app.operators.pages.described.stream import (
    CommandShape,
    DeadLetterList,
    DiscardedList,
    GroupChanged,
    LetterGroupId,
    LetterGroupList,
    RetriedList,
)
from oncegate.app.operators.pages.for_operators.records import author_of
from oncegate.app.operators.pages.reply import (
    LARGE,
    NO_CACHE,
    NO_STREAM,
    NO_TOKEN,
    READS_ONLY,
    SLOW,
    WRONG,
    answer,
    document,
)
from oncegate.app.operators.showing import whole_command
from oncegate.cache.redis.streams.entry_id import ENTRY_ID

router = APIRouter(prefix="/dead-letters", tags=["operators"], responses=WRONG | NO_TOKEN | NO_CACHE)

_NO_LETTER = "no dead letter of this id"
_GONE_CONSUMER = "its consumer reads the stream no more: start its worker first"
_ABSENT = answer(404, "There is no such command, or no dead letter of it.")
_UNREAD = answer(409, "It is left where it is: its consumer reads the stream no more. Start its worker first.")
_OF_A_GROUP = READS_ONLY | NO_STREAM | SLOW | LARGE
_OF_A_CHANGE = READS_ONLY | _ABSENT | SLOW | LARGE


async def _commands(
    request: Request,
    stream: Annotated[str | Missing, Query(description="Which stream: needed where there are several.")] = None,
) -> Commands:
    streams: Mapping[str, Commands] = request.app.state.streams
    name = stream or (next(iter(streams)) if len(streams) == 1 else "")
    if name not in streams:
        raise NotAnId(f"stream is one of {', '.join(streams)}")
    return streams[name]


Ours = Annotated[Commands, Depends(_commands)]
Identifier = Annotated[str, Path(alias="id", description="Of a command, of its entry, or of its dead letter")]


@router.get(
    "/",
    response_model=DeadLetterList,
    response_description="The oldest first.",
    responses=NO_STREAM,
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
    "/errors",
    response_model=LetterGroupList,
    response_description="The largest groups first.",
    responses=NO_STREAM,
)
async def group_dead_letters(
    commands: Ours,
    scan: Annotated[
        int, Query(ge=1, le=100_000, description="How many are looked at, from the newest on.")
    ] = MOST_SCANNED,
) -> Response:
    """The errors that commands were given up for. Those that differ in numbers and ids alone are one group."""
    return document(await by_error(commands, most=scan))


Group = Annotated[LetterGroupId, Path(description="As errors names it")]


@router.post(
    "/errors/{group}/retry",
    response_model=GroupChanged,
    response_description="They are done.",
    responses=_OF_A_GROUP,
)
async def retry_group_of_dead_letters(
    request: Request,
    commands: Ours,
    group: Group,
    given: Change = Change(),  # noqa: B008  # frozen
) -> Response:
    """Have all commands of a group processed again, 1,000 at most; the newest first."""
    return document(await change_group(commands, *_by(request, group, given), retries=True))


@router.post(
    "/errors/{group}/discard",
    response_model=GroupChanged,
    response_description="They are gone.",
    responses=_OF_A_GROUP,
)
async def discard_group_of_dead_letters(
    request: Request,
    commands: Ours,
    group: Group,
    given: Change = Change(),  # noqa: B008  # frozen
) -> Response:
    """Take all dead letters of a group away for good, 1,000 at most."""
    return document(await change_group(commands, *_by(request, group, given), retries=False))


def _by(request: Request, which: str, given: Change) -> tuple[AuditLines, str, Author]:
    """Where a change is kept, what is changed, and by whom."""
    audit: AuditLines = request.app.state.audit
    return audit, which, author_of(request, given.reason)


@router.get(
    "/{id}", response_model=CommandShape, response_description="All that is known of the command.", responses=_ABSENT
)
async def show_dead_letter(
    request: Request,
    commands: Ours,
    identifier: Identifier,
    body: Annotated[
        bool, Query(description="With its key, its target's query and its payload; the audit has who looked.")
    ] = False,
) -> Response:
    """How far did a command get, and why was it given up?"""
    if body:
        command = await whole_command(commands, request.app.state.audit, identifier, author_of(request, ""))
    else:
        command = await commands.show(identifier)
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
    done = await change_letters(commands, *_by(request, identifier, given), retries=True)
    if not done.changed:
        raise HTTPException(409, _GONE_CONSUMER) if done.unread else _no_letter(done)
    return document({"retried": done.changed, "unread": done.unread, "complete": done.complete})


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
    done = await change_letters(commands, *_by(request, identifier, given), retries=False)
    if not done.changed:
        raise _no_letter(done)
    return document({"discarded": done.changed, "complete": done.complete})


def _no_letter(done: LetterChanges) -> HTTPException:
    return HTTPException(404, _NO_LETTER if done.complete else f"{_NO_LETTER} {NOT_ALL}")
