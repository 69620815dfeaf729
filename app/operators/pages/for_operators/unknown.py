"""``records/unknown/`` over HTTP: unknown outcomes, resolved or released by their choice."""

from fastapi import APIRouter, Request, Response

from oncegate.app.operators.audit_lines import AuditLines
from oncegate.app.operators.pages.described.record import OfUnknown, OutcomeOfUnknown, UnknownChanged
from oncegate.app.operators.pages.for_operators.records import author_of, finding
from oncegate.app.operators.pages.reply import LARGE, NO_CACHE, NO_TOKEN, READS_ONLY, SLOW, WRONG, document
from oncegate.app.operators.records.records import Records
from oncegate.app.operators.records.unknown_changes import UnknownAt, change_unknown
from oncegate.cache.transitions import ResolveRequest
from oncegate.middleware.outcome.responses import now_ms

router = APIRouter(
    prefix="/records/unknown",
    tags=["operators"],
    responses=WRONG | NO_TOKEN | NO_CACHE | READS_ONLY | SLOW | LARGE,
)


@router.post("/release", response_model=UnknownChanged, response_description="How far it got, and what is done.")
async def release_unknown(request: Request, given: OfUnknown) -> Response:
    """They were not executed: set all these keys free, a bounded number with one answer."""
    return await _change(request, given, ResolveRequest(None))


@router.post("/resolve", response_model=UnknownChanged, response_description="How far it got, and what is done.")
async def resolve_unknown(request: Request, given: OutcomeOfUnknown) -> Response:
    """The same became of all of these: a bounded number with one answer."""
    return await _change(request, given, finding(given))


async def _change(request: Request, given: OfUnknown, resolve: ResolveRequest) -> Response:
    records: Records = request.app.state.records
    audit: AuditLines | None = request.app.state.audit
    now = now_ms()
    which = UnknownAt(
        now if given.until is None else max(1, min(now, round(given.until.timestamp() * 1000))),
        given.route,
        None if given.caller is None else frozenset(given.caller),
        given.since or 0.0,
        given.older or 0.0,
    )
    author = author_of(request, given.reason)
    done = await change_unknown(records, audit, which, resolve, author, cursor=given.cursor, dry_run=given.dry_run)
    return document(done)
