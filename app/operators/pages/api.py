"""The FastAPI app for everything under the prefix: its routes and errors. Loaded by a gateway alone."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from oncegate.app.operators.audit_lines import AuditLines
from oncegate.app.operators.database.errors import ChangeRefused, DatabaseUnavailable, NotKept
from oncegate.app.operators.pages.bearer import Bearer
from oncegate.app.operators.pages.before_routes import BeforeRoutes
from oncegate.app.operators.pages.described import description
from oncegate.app.operators.pages.described.gateway import Health, NotReady, Ready
from oncegate.app.operators.pages.described.policy import PolicyShape
from oncegate.app.operators.pages.for_callers import commands
from oncegate.app.operators.pages.for_callers.commands import CommandStatuses
from oncegate.app.operators.pages.for_callers.problem_pages import router as problem_pages
from oncegate.app.operators.pages.for_operators import audit as audit_page
from oncegate.app.operators.pages.for_operators import callers as callers_page
from oncegate.app.operators.pages.for_operators import database as database_page
from oncegate.app.operators.pages.for_operators import decisions as decisions_page
from oncegate.app.operators.pages.for_operators import records as records_page
from oncegate.app.operators.pages.for_operators import reload as reload_page
from oncegate.app.operators.pages.for_operators import standing as standing_page
from oncegate.app.operators.pages.for_operators import unknown as unknown_page
from oncegate.app.operators.pages.operations import FOR_OPERATORS
from oncegate.app.operators.pages.reply import NO_TOKEN, Answers, document, problem, unavailable
from oncegate.app.operators.readiness import Readiness
from oncegate.app.operators.records.records import NotARecord, Records
from oncegate.app.operators.reloading import Reload
from oncegate.app.operators.standing import Standing
from oncegate.app.telemetry.recent import RecentDecisions
from oncegate.app.telemetry.refusals import Refusals
from oncegate.cache.errors import CacheError, RecordUnreadable
from oncegate.middleware.http.asgi import App
from oncegate.middleware.http.cors import CrossOrigin
from oncegate.middleware.rules.errors import KeyInvalid

if TYPE_CHECKING:
    from oncegate.app.operators.database.database import OperatorsDatabase
    from oncegate.app.operators.letters.dead_letters import Commands

log = logging.getLogger("oncegate.records")

router = APIRouter()


@router.get("/healthz", tags=["health"], response_model=Health, response_description="It is.")
async def health(request: Request) -> Response:
    """Is the process up?"""
    status, members = request.app.state.readiness.health()
    return document(members, status)


@router.get(
    "/readyz",
    tags=["health"],
    response_model=Ready,
    response_description="Yes.",
    responses={
        503: {
            "model": NotReady,
            "description": "No: it is draining, or the upstream can't be reached, or (with ready_needs_cache) the cache can't.",
        }
    },
)
async def readiness(request: Request) -> Response:
    """Should requests be sent here?"""
    status, members = await request.app.state.readiness.check()
    return document(members, status)


@router.get(
    "/policy",
    tags=["callers"],
    response_model=PolicyShape,
    response_description="What draft-ietf-httpapi-idempotency-key-header-07 asks a resource to publish (section 2.6).",
    responses=NO_TOKEN,
)
async def policy(request: Request) -> Response:
    """Which rules keys are under, generated from the configuration."""
    return Response(request.app.state.policy(), media_type="application/json")


_SERIES = {"schema": {"type": "string", "pattern": r"oncegate_build_info\{"}}
_EXPOSED: Answers = {200: {"content": {"text/plain": _SERIES, "application/openmetrics-text": _SERIES}}}


@router.get(
    "/metrics",
    tags=["operators"],
    response_class=Response,
    response_description="In the format that Accept asks for. docs/operations.md says what each metric means.",
    responses=_EXPOSED | NO_TOKEN,
)
async def metrics(request: Request) -> Response:
    """The metrics of all workers, for Prometheus."""
    state = request.app.state
    await state.readiness.check_cache()
    body, content_type = state.metrics(",".join(request.headers.getlist("accept")))
    return Response(body, headers={"content-type": content_type})


@router.get("/openapi.json", include_in_schema=False)
async def openapi() -> Response:
    """This API's description."""
    return document(await asyncio.to_thread(described))


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    """The same as a page, which fetches nothing."""
    page = description.as_html(await asyncio.to_thread(described))
    return Response(page, media_type="text/html", headers={"content-security-policy": description.PAGE_POLICY})


def create_app(
    *,
    readiness: Readiness,
    metrics: Callable[[str], tuple[bytes, str]],
    policy: Callable[[], bytes],
    operators: Bearer | None = None,
    records: Records | None = None,
    statuses: CommandStatuses | None = None,
    streams: "Mapping[str, Commands] | None" = None,
    reload: Reload | None = None,
    audit: AuditLines | None = None,
    recent: RecentDecisions | None = None,
    standing: Standing | None = None,
    database: "OperatorsDatabase | None" = None,
    refusals: Refusals | None = None,
    cors: CrossOrigin | None = None,
    guarded: frozenset[str] = frozenset(FOR_OPERATORS),
    console: App | None = None,
    unshown: frozenset[bytes] = frozenset(),
) -> FastAPI:
    """The app, whose paths begin behind the prefix.

    ``metrics`` formats them as an ``Accept`` header asks; ``policy`` makes what is published about keys. Where ``records``,
    ``statuses``, ``streams``, ``reload``, ``audit``, ``recent``, ``refusals``, ``standing`` or ``database`` are not given, their
    paths don't exist; without ``operators`` only statuses may.
    ``cors`` says which scripts may read commands' statuses; ``guarded`` are the paths that need an operator's token. ``console``
    answers what is below ``console``, and browsers at the prefix itself. What stands in one of the headers ``unshown`` is no
    request's id.
    """
    app = FastAPI(
        openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, exception_handlers=_EXCEPTION_HANDLERS
    )
    app.state.readiness, app.state.metrics, app.state.policy = readiness, metrics, policy
    app.state.unshown = unshown
    app.state.records, app.state.statuses, app.state.streams, app.state.reload = records, statuses, streams, reload
    app.state.audit, app.state.recent, app.state.standing = audit, recent, standing
    app.state.refusals, app.state.database = refusals, database
    for each in routers(
        statuses=statuses is not None,
        records=operators is not None and records is not None,
        dead_letters=operators is not None and bool(streams),
        reload=operators is not None and reload is not None,
        audit=operators is not None and audit is not None,
        decisions=operators is not None and recent is not None,
        callers=operators is not None and refusals is not None,
        standing=operators is not None and standing is not None,
        database=operators is not None and database is not None,
    ):
        app.include_router(each)
    app.add_middleware(
        BeforeRoutes, operators=operators, statuses=statuses, cors=cors, guarded=guarded, console=console
    )
    return app


def routers(
    *,
    statuses: bool = True,
    records: bool = True,
    dead_letters: bool = True,
    reload: bool = True,
    audit: bool = True,
    decisions: bool = True,
    callers: bool = True,
    standing: bool = True,
    database: bool = True,
) -> list[APIRouter]:
    """The routers of all operations, or without those that a gateway does not have."""
    found = [router, problem_pages]
    if statuses:
        found.append(commands.router)
    if records:
        found += [unknown_page.router, records_page.router]  # in this order: the latter takes any name for an id
    if dead_letters:
        from oncegate.app.operators.pages.for_operators.dead_letters import router as letters  # loads redis-py's client
        from oncegate.app.operators.pages.for_operators.streams import router as streams

        found += [letters, streams]
    if audit:
        found.append(audit_page.router)
    if decisions:
        found.append(decisions_page.router)
    if callers:
        found.append(callers_page.router)
    if standing:
        found.append(standing_page.router)
    if database:
        found += database_page.routers
    if reload:
        found.append(reload_page.router)
    return found


@cache
def described() -> dict[str, Any]:
    """The description of all operations that a gateway may have, as openapi/oncegate.yaml has it."""
    app = FastAPI(generate_unique_id_function=description.operation_id)
    for each in routers():
        app.include_router(each)
    return description.complete(app.openapi())


async def _refused(_: Request, error: HTTPException) -> Response:
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return problem(405, headers={"allow": "GET, HEAD" if allowed == "GET" else allowed})
    unknown = error.status_code == 404 and error.detail == "Not Found"
    return problem(error.status_code, "No such operation." if unknown else error.detail)


async def _invalid(_: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return problem(400, "the body is no JSON")
    names = (str(part) for part in first["loc"][1:])
    where = ".".join(name for name in names if "[" not in name)  # that would be the name of a type
    return problem(400, f"{where}: {first['msg']}".removeprefix(": "))


async def _wrong(_: Request, error: NotARecord | KeyInvalid) -> Response:
    return problem(400, str(error))


async def _unreadable(request: Request, error: RecordUnreadable) -> Response:
    identifier = request.path_params.get("id", "")
    log.error("record %s: %s", identifier, error)
    return problem(500, str(error), "Record Unreadable", code="record-unreadable", record=identifier)


async def _unavailable(_: Request, error: CacheError) -> Response:
    log.warning("the cache is unavailable to an operator: %s", error)
    return unavailable(str(error))


async def _no_database(_: Request, error: DatabaseUnavailable) -> Response:
    log.warning("the database is unavailable to an operator: %s", error)
    return unavailable(str(error), "Database Unavailable")


async def _not_kept(_: Request, error: NotKept) -> Response:
    return problem(404, str(error))


async def _refused_change(_: Request, error: ChangeRefused) -> Response:
    return problem(409, str(error))


_EXCEPTION_HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    HTTPException: _refused,
    RequestValidationError: _invalid,
    NotARecord: _wrong,
    KeyInvalid: _wrong,
    RecordUnreadable: _unreadable,
    CacheError: _unavailable,
    DatabaseUnavailable: _no_database,
    NotKept: _not_kept,
    ChangeRefused: _refused_change,
}
