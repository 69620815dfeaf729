"""``inbox/``, ``outbox/`` and ``projections/`` over HTTP: what ``oncegate inbox``, ``outbox`` and ``projections`` do.

They exist where the gateway is given the consumers' database. Aggregates' ids are in the body of a POST, since URLs are logged on
the way.
"""

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response

from oncegate.app.operators.database.changes import DatabaseChanges
from oncegate.app.operators.database.errors import MOST_LISTED
from oncegate.app.operators.pages.described import database as models
from oncegate.app.operators.pages.described.document import Missing, RecordId
from oncegate.app.operators.pages.for_operators.records import author_of
from oncegate.app.operators.pages.reply import (
    LARGE,
    NO_DATABASE,
    NO_TOKEN,
    READS_ONLY,
    SLOW,
    WRONG,
    answer,
    document,
)
from oncegate.app.operators.showing import whole_message

if TYPE_CHECKING:
    from oncegate.app.operators.database.database import OperatorsDatabase

_ABSENT = answer(404, "There is nothing of that id or name, or no such table.")
_CHANGED = answer(409, "Nothing was changed: the database has it otherwise by now.")
_OF_ALL = WRONG | NO_TOKEN | NO_DATABASE
_OF_A_BODY = SLOW | LARGE
_OF_A_CHANGE = READS_ONLY | _CHANGED | _OF_A_BODY

inbox = APIRouter(prefix="/inbox", tags=["operators"], responses=_OF_ALL | _ABSENT)
outbox = APIRouter(prefix="/outbox", tags=["operators"], responses=_OF_ALL | _ABSENT)
projections = APIRouter(prefix="/projections", tags=["operators"], responses=_OF_ALL | _ABSENT)
whole = APIRouter(prefix="/database", tags=["operators"], responses=_OF_ALL)
routers = [whole, inbox, outbox, projections]


async def _database(request: Request) -> "OperatorsDatabase":
    database: OperatorsDatabase = request.app.state.database
    return database


Ours = Annotated["OperatorsDatabase", Depends(_database)]
Limit = Annotated[int, Query(ge=1, le=MOST_LISTED, description="How many at most.")]
Number = Annotated[int, Path(alias="id", ge=1, le=models.MOST_NUMBER, description="As the list has it")]
Projection = Annotated[str, Path(alias="name", description="As the list has it")]


def _changes(request: Request, reason: str) -> DatabaseChanges:
    return DatabaseChanges(request.app.state.database, request.app.state.audit, author_of(request, reason))


@whole.get("/", response_model=models.DatabaseTotalsShape, response_description="Counted now.")
async def count_what_waits(database: Ours) -> Response:
    """How much waits in the consumers' database?"""
    return document(await database.totals())


@inbox.get("/", response_model=models.WaitingList, response_description="Those that have waited the longest first.")
async def list_waiting_aggregates(
    database: Ours,
    limit: Limit = 100,
    cursor: Annotated[str, Query(max_length=200, description="Where an earlier list ended.")] = "",
) -> Response:
    """Which aggregates wait, for which number, and since when?"""
    return document(await database.waiting_list(limit=limit, cursor=cursor))


@inbox.post(
    "/find",
    response_model=models.WaitingList,
    response_description="Of each consumer at which it waits.",
    responses=_OF_A_BODY,
)
async def find_waiting_aggregate(database: Ours, which: models.Aggregate) -> Response:
    """Does an aggregate wait?"""
    return document(await database.waiting_list(aggregate=which.aggregate))


@inbox.post("/skip", response_model=models.SkippedNumber, response_description="It is skipped.", responses=_OF_A_CHANGE)
async def skip_number(request: Request, given: models.SkipNumber) -> Response:
    """Count a number as applied that never comes: what is parked behind it follows by itself."""
    done = await _changes(request, given.reason).skip(given.consumer, given.aggregate, given.sequence, given.aggregate)
    return document({"skipped": given.sequence, "behind": done})


@inbox.post(
    "/retry", response_model=models.RetriedNumber, response_description="It is tried again.", responses=_OF_A_CHANGE
)
async def retry_parked_message(request: Request, given: models.RetryParked) -> Response:
    """Have a parked message that has failed for good tried again, and what is parked behind it."""
    number = await _changes(request, given.reason).retry_parked(given.consumer, given.aggregate, given.aggregate)
    return document({"retried": number})


@inbox.get("/{id}", response_model=models.MarkerList, response_description="None: nobody has, or it is forgotten.")
async def show_markers(
    database: Ours, identifier: Annotated[RecordId, Path(alias="id", description="As problems and logs carry it")]
) -> Response:
    """Which consumers have processed a message, and when?"""
    return document(await database.markers(identifier))


@outbox.get("/", response_model=models.OutboxList, response_description="Those that were added first.")
async def list_messages(
    database: Ours,
    limit: Limit = 100,
    after: Annotated[int, Query(ge=0, le=models.MOST_NUMBER, description="Go on behind this message.")] = 0,
    held: Annotated[bool, Query(description="Only what was refused, or is given up.")] = False,
    name: Annotated[str | Missing, Query(alias="outbox", max_length=64, description="Only this outbox's.")] = None,
) -> Response:
    """Which messages wait to be published?"""
    return document(await database.messages(limit=limit, after=after, held=held, outbox=name))


@outbox.post("/find", response_model=models.OutboxList, response_description="The first 1,000.", responses=_OF_A_BODY)
async def find_messages(database: Ours, which: models.Aggregate) -> Response:
    """Which messages of an aggregate wait to be published?"""
    return document(await database.messages(limit=MOST_LISTED, aggregate=which.aggregate))


@outbox.post(
    "/retry", response_model=models.RetriedMessages, response_description="They are done.", responses=_OF_A_CHANGE
)
async def retry_dead_messages(request: Request, given: models.Reasoned) -> Response:
    """Have all messages tried again at once that are given up."""
    return document({"retried": await _changes(request, given.reason).retry_messages()})


@outbox.get("/{id}", response_model=models.OutboxMessageShape, response_description="All that is known of it.")
async def show_message(
    request: Request,
    database: Ours,
    number: Number,
    body: Annotated[
        bool, Query(description="With its key, its headers, and the beginning of its body; the audit has who looked.")
    ] = False,
) -> Response:
    """Why does a message wait to be published?"""
    if body:
        shown = await whole_message(database, request.app.state.audit, number, author_of(request, ""))
    else:
        shown = await database.message(number)
    return document(_there(shown, number))


@outbox.post(
    "/{id}/retry", response_model=models.RetriedMessages, response_description="It is done.", responses=_OF_A_CHANGE
)
async def retry_message(request: Request, number: Number, given: models.Reasoned) -> Response:
    """Have a message tried again at once."""
    count = await _changes(request, given.reason).retry_messages((number,))
    return document({"retried": _there(count or None, number)})


@outbox.post(
    "/{id}/discard",
    response_model=models.DiscardedMessage,
    response_description="It is gone.",
    responses=_OF_A_CHANGE,
)
async def discard_message(request: Request, number: Number, given: models.Reasoned) -> Response:
    """Delete a message that will never be published: what is behind it in its aggregate goes on without it."""
    gone = _there(await _changes(request, given.reason).discard_message(number), number)
    return document({"discarded": gone["id"]})


def _there(found: Any, number: int) -> Any:
    if found is None:
        raise HTTPException(404, f"message {number}: it is not there: it was published, discarded, or never committed")
    return found


@projections.get("/", response_model=models.ProjectionList, response_description="By name.")
async def list_projections(database: Ours) -> Response:
    """How far is each projection, and which stands still?"""
    return document({"projections": await database.projections()})


@projections.get("/{name}", response_model=models.ProjectionShape, response_description="How far it is.")
async def show_projection(database: Ours, name: Projection) -> Response:
    """How far is a projection, and what does it stand at?"""
    return document(await database.projection(name))


@projections.post(
    "/{name}/skip", response_model=models.SkippedEvent, response_description="It is skipped.", responses=_OF_A_CHANGE
)
async def skip_event(request: Request, name: Projection, given: models.SkipEvent) -> Response:
    """Have the event at which a projection stands passed without being applied."""
    await _changes(request, given.reason).skip_event(name, given.position)
    return document({"skipped": given.position})
