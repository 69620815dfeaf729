"""The console as one ASGI app: log-in and log-out, then the pages, each for who may have it."""

import logging
import re
from collections.abc import Mapping
from hmac import compare_digest
from http import HTTPStatus
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from oncegate.app.http1 import TrustedPeers
from oncegate.app.operators.audit import Author
from oncegate.app.operators.console import audit, callers, overview, routes
from oncegate.app.operators.console.attempts import Attempts
from oncegate.app.operators.console.frame import (
    COOKIE,
    FORM_SECONDS,
    HEADERS,
    MOST_FORM_BYTES,
    ConsolePage,
    PageRefused,
    Templates,
    Visit,
    fields,
    is_foreign,
    local,
    redirect,
)
from oncegate.app.operators.console.records import all_unknown, find, record, records, unknown
from oncegate.app.operators.console.sessions import SECONDS, Session, Sessions
from oncegate.app.operators.console.sources import Sources
from oncegate.app.operators.database.errors import ChangeRefused, DatabaseUnavailable, NotKept
from oncegate.app.operators.pages.bearer import Bearer
from oncegate.app.operators.records.records import NotARecord
from oncegate.cache.errors import CacheError, RecordUnreadable
from oncegate.middleware.http.asgi import Receive, Scope, Send, read_body
from oncegate.middleware.rules.errors import KeyInvalid, PayloadTooLarge, RequestTimeout

log = logging.getLogger("oncegate.operators")

_STATIC: Final = {"/console.css": "text/css", "/console.js": "text/javascript", "/icon.svg": "image/svg+xml"}
_FORGED: Final = "The form is not of this session, which may have ended. Nothing was changed: load the page again."
_FOREIGN: Final = "A page of another origin has sent this. Nothing was changed."
_OVER: Final = "Your session is over, or was logged out. Nothing was changed."
_WRONG: Final = "That is no operator's token of this gateway."
_PERHAPS: Final = ". Nobody knows whether the change was made: look before you repeat it."
_LOG_IN, _LOG_OUT = "/log-in", "/log-out"


class Console:
    """An ASGI app: the pages below ``prefix`` and ``/console``. ``operators`` knows whose a token is; ``None``: there is none."""

    def __init__(
        self,
        prefix: str,
        sources: Sources,
        sessions: Sessions,
        operators: Bearer | None,
        trusted: TrustedPeers,
    ) -> None:
        self._prefix = prefix
        self._base = f"{prefix}/console"
        self._sources = sources
        self._sessions = sessions
        self._operators = operators
        self._trusted = trusted
        self._attempts = Attempts()
        pages = _pages(sources)
        self._templates = Templates(self._base, pages)
        self._pages = [(page, _pattern(page.path)) for page in pages]
        folder = Path(__file__).parent / "static"
        self._static = {path: (folder / path[1:]).read_bytes() for path in _STATIC}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whose path begins with ``/console``, or is ``/``."""
        request = Request(scope, receive)
        try:
            answer = await self._answer(request, receive)
        except PageRefused as error:
            answer = await self._refused(error)
        await answer(scope, receive, send)

    async def _answer(self, request: Request, receive: Receive) -> Response:
        path = request.scope["path"].removeprefix("/console")
        if path == "/":
            return redirect(self._base)
        if path in self._static and request.method == "GET":
            return Response(self._static[path], 200, HEADERS, _STATIC[path])
        if self._operators is None:
            return await self._templates.page("no-token.html", 404, title="No console yet")
        session = self._sessions.of(request.cookies.get(COOKIE, ""))
        form = await _form(request, receive) if request.method == "POST" else {}
        if path == _LOG_IN:
            return await self._log_in(request, self._operators, session, form)
        if session is None or session.token is None:
            return await self._log_in_page(request, session, local(path), _OVER if request.method == "POST" else "")
        if request.method == "POST" and _is_other(form, session):
            raise PageRefused(403, _FORGED)
        if path == _LOG_OUT and request.method == "POST":
            return self._log_out(request, session)
        page, request.scope["path_params"] = self._page(request.method, path)
        visit = Visit(request, session, self._sources, self._templates, self._sessions, self._base, form)
        if page.changes and not visit.writes:
            raise PageRefused(403, f"The token of {visit.operator} is for reading. Nothing was changed.")
        return await _made(page, visit)

    def _page(self, method: str, path: str) -> tuple[ConsolePage, dict[str, str]]:
        """The page of a path, and the parts of it. Raises `PageRefused`."""
        found = [(page, parts) for page, pattern in self._pages if (parts := pattern.fullmatch(path)) is not None]
        for page, parts in found:
            if page.method == method:
                return page, parts.groupdict()
        if found:
            raise PageRefused(405, "This is no page to load: go to the page that has its form.")
        raise PageRefused(404, "There is no such page.")

    # -- sessions -----------------------------------------------------------------------------------------------------

    async def _log_in_page(
        self, request: Request, session: Session | None, then: str, why: str = "", status: int = 401, wait: float = 0.0
    ) -> Response:
        """The log-in, with a session of nobody's to which its form is bound."""
        cookie = self._sessions.begin()
        bound = session if session is not None and session.token is None else self._sessions.of(cookie)
        answer = await self._templates.page(
            "log-in.html", status, title="Log in", then=then, why=why, form_token=bound.form if bound else ""
        )
        if wait:
            answer.headers["retry-after"] = str(int(wait) + 1)
        if bound is not session:
            self._give(request, answer, cookie)
        return answer

    async def _log_in(
        self, request: Request, operators: Bearer, session: Session | None, form: Mapping[str, str]
    ) -> Response:
        if request.method != "POST":
            known = session is not None and session.token is not None
            return redirect(self._base) if known else await self._log_in_page(request, session, "", status=200)
        then = local(form.get("then", ""))
        if session is None or _is_other(form, session):
            return await self._log_in_page(request, session, then, "The form was too old. Log in again.", 403)
        peer = request.client.host if request.client else ""
        address = self._trusted.client_of(peer, request.scope["headers"])
        if wait := self._attempts.wait(address):
            why = f"Too many wrong tokens have come from your address. Wait {int(wait) + 1} s, then try again."
            return await self._log_in_page(request, session, then, why, 429, wait)
        token = operators.known(form.get("token", "").strip().encode("utf-8", "surrogateescape"))
        if token is None:
            self._attempts.failed(address)
            operators.refuse(request.scope)
            return await self._log_in_page(request, session, then, _WRONG)
        self._attempts.succeeded(address)
        # In the log alone: what is kept in the cache are changes, and looks at what is secret.
        Author(token.name).report("console", "opened")
        answer = redirect(self._base + then)
        self._give(request, answer, self._sessions.begin(token))
        return answer

    def _log_out(self, request: Request, session: Session) -> Response:
        self._sessions.end(session)
        answer = redirect(self._base + _LOG_IN)
        self._give(request, answer, "", seconds=0)
        return answer

    def _give(self, request: Request, answer: Response, cookie: str, seconds: int = SECONDS) -> None:
        peer = request.client.host if request.client else ""
        scheme = self._trusted.scheme_of(peer, request.scope["scheme"], request.scope["headers"])
        answer.set_cookie(
            COOKIE,
            cookie,
            max_age=seconds,
            path=self._prefix,
            secure=scheme == "https",
            httponly=True,
            samesite="strict",
        )

    async def _refused(self, error: PageRefused) -> Response:
        return await self._templates.page(
            "refused.html", error.status, title=HTTPStatus(error.status).phrase, why=error.text
        )


def _pages(sources: Sources) -> list[ConsolePage]:
    """All pages, in the order of the menu; those of commands where there are streams, and of a database where one is given."""
    pages = [*overview.PAGES, *find.PAGES, *records.PAGES, *record.PAGES, *unknown.PAGES, *all_unknown.PAGES]
    if sources.streams:
        from oncegate.app.operators.console import commands  # loads redis-py's client

        pages += commands.PAGES
    if sources.database is not None:
        from oncegate.app.operators.console.database import order, outbox, projections

        pages += [*order.PAGES, *outbox.PAGES, *projections.PAGES]
    return [*pages, *callers.PAGES, *routes.PAGES, *audit.PAGES]


async def _made(page: ConsolePage, visit: Visit) -> Response:
    """The page; where it can't be made, one that says why, with the menu."""
    try:
        return await page.answer(visit)
    except PageRefused as error:
        status, why = error.status, error.text
    except (NotARecord, KeyInvalid) as error:
        status, why = 400, str(error)
    except RecordUnreadable as error:
        log.error("a record that was looked at: %s", error)
        status, why = 500, f"The record can't be read: {error}"
    except CacheError as error:
        log.warning("the cache is unavailable to an operator: %s", error)
        status, why = 503, f"The cache can't be reached: {error}"
    except DatabaseUnavailable as error:
        log.warning("the database is unavailable to an operator: %s", error)
        status, why = 503, f"{error}{_PERHAPS if error.is_silent and page.changes else ''}"
    except NotKept as error:
        status, why = 404, str(error)
    except ChangeRefused as error:
        status, why = 409, f"{error}. Nothing was changed."
    return await visit.page("not-made.html", HTTPStatus(status).phrase, status, why=why)


async def _form(request: Request, receive: Receive) -> dict[str, str]:
    """The fields of a form that was sent. Raises `PageRefused`, also for one of another origin."""
    if is_foreign(request.headers):
        raise PageRefused(403, _FOREIGN)
    try:
        return fields(await read_body(receive, {}, MOST_FORM_BYTES, FORM_SECONDS) or b"")
    except PayloadTooLarge:
        most = MOST_FORM_BYTES // 1024
        raise PageRefused(
            413, f"A form is {most} KiB at most. Use `oncegate keys` for more. Nothing was changed."
        ) from None
    except RequestTimeout as error:
        raise PageRefused(408, str(error)) from None


def _is_other(form: Mapping[str, str], session: Session) -> bool:
    """Whether a form is not one that was made for the session."""
    return not compare_digest(form.get("form", "").encode(), session.form.encode())


def _pattern(path: str) -> re.Pattern[str]:
    """``{name}`` is one part of a path."""
    parts = re.split(r"\{([a-z]+)\}", path)
    return re.compile("".join(f"(?P<{each}>[^/]+)" if odd % 2 else re.escape(each) for odd, each in enumerate(parts)))
