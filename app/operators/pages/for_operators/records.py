"""``records/`` over HTTP. Who gets here has shown the operators' token (`oncegate.app.operators.pages.api`).

What is secret is in the body of a POST, since URLs are logged on the way.
"""

from base64 import b64decode
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response

from oncegate.app.operators.audit import OPERATOR, Author
from oncegate.app.operators.audit_lines import AuditLines
from oncegate.app.operators.pages.described.document import PATTERN, CallerDigest, Missing
from oncegate.app.operators.pages.described.record import (
    Find,
    Outcome,
    OutcomeOfUnknown,
    RecordIds,
    RecordList,
    RecordState,
    Release,
    Resolved,
    WholeRecord,
)
from oncegate.app.operators.pages.reply import (
    ABSENT,
    DAMAGED,
    LARGE,
    NO_CACHE,
    NO_TOKEN,
    READS_ONLY,
    SLOW,
    WRONG,
    answer,
    document,
    problem,
)
from oncegate.app.operators.records.newest import MOST_SCANNED, Chosen, newest
from oncegate.app.operators.records.records import MOST_LISTED, NotARecord, Records
from oncegate.app.operators.records.resolving import MOST_SECONDS, WHY_NOT, resolution, resolve_and_report
from oncegate.app.operators.showing import whole_record
from oncegate.cache.record import State
from oncegate.cache.transitions import Resolution, ResolveRequest
from oncegate.middleware.outcome.responses import now_ms

router = APIRouter(prefix="/records", tags=["operators"], responses=WRONG | NO_TOKEN | NO_CACHE)


async def _records(request: Request) -> Records:
    records: Records = request.app.state.records
    return records


Ours = Annotated[Records, Depends(_records)]
Identifier = Annotated[str, Path(alias="id", description="As problems and logs carry it", json_schema_extra=PATTERN)]
_OF_A_BODY = SLOW | LARGE
_NOT_WRITTEN = answer(409, "Nothing was changed: it is in flight, its outcome is known, or another attempt is there.")
_OF_A_RESOLUTION = READS_ONLY | ABSENT | _NOT_WRITTEN | _OF_A_BODY | DAMAGED


@router.get(
    "/",
    response_model=RecordList,
    response_description="Some, in no order, or the newest. They go on where cursor is not empty.",
)
async def list_records(
    records: Ours,
    state: Annotated[RecordState | Missing, Query(description="Only those that read so.")] = None,
    limit: Annotated[int, Query(ge=0, le=99999, description="About how many; at most 1000.")] = 100,
    cursor: Annotated[str, Query(description="Where an earlier list ended.")] = "",
    order: Annotated[
        Literal["newest"] | Missing, Query(description="The newest first. So are those by the next three.")
    ] = None,
    since: Annotated[
        float | Missing, Query(gt=0, le=MOST_SECONDS, description="Only those that began so many seconds ago.")
    ] = None,
    route: Annotated[
        str | Missing, Query(max_length=1000, description="Only those of this route; * is the default one.")
    ] = None,
    caller: Annotated[
        list[CallerDigest] | Missing,
        Query(description="Only those of a caller, by its digest: what a record's id has behind the colon."),
    ] = None,
    scan: Annotated[
        int,
        Query(ge=1, le=100_000, description="For the newest: about how many records are looked at for one answer."),
    ] = MOST_SCANNED,
) -> Response:
    """Which records are there?

    No cache keeps them in the order of their time. So the newest are those among as many as one answer looks at (scan): where
    complete is false there are others, behind cursor, which may be newer.
    """
    if (order, since, route, caller) == (None, None, None, None):
        return document(await records.listing(state, cursor=cursor, limit=limit))
    since_ms = 0 if since is None else max(1, now_ms() - round(since * 1000))
    chosen = Chosen(state, None if caller is None else frozenset(caller), route, since_ms)
    return document(await newest(records, chosen, cursor=cursor, limit=max(1, min(limit, MOST_LISTED)), most=scan))


@router.post(
    "/find",
    response_model=RecordIds,
    response_description="None, one, or several where several callers use the key, or the caller has used several.",
    responses=_OF_A_BODY,
)
async def find_records(records: Ours, which: Find) -> Response:
    """The ids of a key's records, or of a caller's."""
    return document({"ids": await records.of_key(which.key, which.caller)})


@router.get(
    "/{id}",
    response_model=WholeRecord,
    response_description="All that is known of it.",
    responses=ABSENT | DAMAGED,
)
async def show_record(
    request: Request,
    records: Ours,
    identifier: Identifier,
    response: Annotated[bool, Query(description="With the stored response; the audit has who looked.")] = False,
) -> Response:
    """What happened to a request?"""
    if identifier == "find":
        raise HTTPException(405, headers={"Allow": "POST"})
    if response:
        found = await whole_record(records, request.app.state.audit, identifier, author_of(request, ""))
    else:
        found = await records.show(identifier)
    return _not_written(Resolution.ABSENT) if found is None else document(found)


@router.post("/{id}/release", response_model=Resolved, response_description="It is done.", responses=_OF_A_RESOLUTION)
async def release_record(
    request: Request,
    identifier: Identifier,
    given: Release = Release(),  # noqa: B008  # frozen
) -> Response:
    """It was not executed: set its key free."""
    release = ResolveRequest(None, force=given.force, attempt=given.attempt)
    return await _write(request, identifier, release, given.reason)


@router.post("/{id}/resolve", response_model=Resolved, response_description="It is done.", responses=_OF_A_RESOLUTION)
async def resolve_record(request: Request, identifier: Identifier, given: Outcome) -> Response:
    """It was executed: retries get this answer from now on."""
    resolve = finding(given, force=given.force, attempt=given.attempt)
    return await _write(request, identifier, resolve, given.reason)


def finding(given: Outcome | OutcomeOfUnknown, *, force: bool = False, attempt: int = 0) -> ResolveRequest:
    """The finding that a document gives. Raises `NotARecord`."""
    return resolution(
        State(given.outcome),
        status=given.status,
        headers=given.headers,
        body=given.body.encode() if given.body_encoding == "text" else _from_base64(given.body),
        ttl=given.ttl,
        force=force,
        attempt=attempt,
    )


def author_of(request: Request, reason: str) -> Author:
    """Who sends ``request``, by the token."""
    return Author(request.scope.get(OPERATOR, ""), reason)


async def _write(request: Request, identifier: str, resolve: ResolveRequest, reason: str) -> Response:
    records: Records = request.app.state.records
    audit: AuditLines | None = request.app.state.audit
    done = await resolve_and_report(records, audit, identifier, resolve, author_of(request, reason))
    if done is not Resolution.RESOLVED:
        return _not_written(done)
    to = resolve.state.value if resolve.state else "absent"
    return document({"id": identifier, "resolution": done.value, "state": to})


def _not_written(why: Resolution) -> Response:
    status, text = WHY_NOT[why]
    return problem(status, text, resolution=why.value)


def _from_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise NotARecord("body is not base64") from None
