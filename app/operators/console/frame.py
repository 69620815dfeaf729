"""The frame of all pages of the console: who may see them, which requests are taken, and how they are answered.

A page is a function of a `Visit`, in a table of `ConsolePage`. By the time it is called, somebody is logged in who may have it,
and a POST is known to come from a form of that session.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from starlette.requests import Request
from starlette.responses import Response

from oncegate.app.operators.audit import MOST_REASON, REASON, Author
from oncegate.app.operators.console.sessions import Session, Sessions
from oncegate.app.operators.console.sources import Sources
from oncegate.app.operators.console.words import FILTERS
from oncegate.app.turns import in_pieces

COOKIE: Final = "oncegate-session"
MOST_FORM_BYTES: Final = 256 * 1024
"""The most bytes of a form: a resolution may bring a response's body."""
FORM_SECONDS: Final = 30.0
_MOST_FIELDS: Final = 200
_PARTS: Final = 50
"""Parts of a page that are made before others have the loop: some rows."""
_TEMPLATES: Final = Path(__file__).parent / "templates"
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""The headers of each answer of the console; the operations add ``Cache-Control: no-store``."""
_LOCAL: Final = re.compile(r"(/[A-Za-z0-9:._~-]+)*")


class PageRefused(Exception):
    """A page can't be answered as asked: a ``status``, and in words why, and what to do."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """The page at ``path`` (below the console's address; ``{id}`` stands for one part of it).

    ``menu``: its name in the menu; without one it is reached from another page. ``changes``: only for a token that is for
    changes. A POST without it is one whose form carries what must not be in an address.
    """

    path: str
    answer: "Callable[[Visit], Awaitable[Response]]"
    menu: str = ""
    method: str = "GET"
    changes: bool = False


class _Compiled(BytecodeCache):
    """The code of templates by their text, for all that this process makes of them: a reload would compile them anew otherwise,
    a tenth of a second of a processor that requests wait for.
    """

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], Any] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        """See `BytecodeCache`."""
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        """See `BytecodeCache`."""
        self._code[bucket.key, bucket.checksum] = bucket.code


_COMPILED: Final = _Compiled()


class Templates:
    """The console's templates, all compiled. What is put into them is text, never markup. ``base`` is the console's address."""

    def __init__(self, base: str, menu: Sequence[ConsolePage], folder: Path = _TEMPLATES) -> None:
        self._environment = Environment(
            autoescape=True,
            auto_reload=False,
            bytecode_cache=_COMPILED,
            loader=FileSystemLoader(folder),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= FILTERS
        self._environment.globals |= {"base": base, "menu": [page for page in menu if page.menu]}
        for name in self._environment.list_templates():
            self._environment.get_template(name)

    async def page(self, name: str, status: int = 200, **values: Any) -> Response:
        """The page by the template ``name``. Its rows are not made at once: others have the loop in between."""
        parts = [part async for part in in_pieces(self._environment.get_template(name).generate(values), _PARTS)]
        return Response("".join(parts), status, HEADERS, "text/html")


@dataclass(slots=True)
class Visit:
    """One request of somebody who is logged in. ``sources`` is where pages get what they show, ``form`` what was sent."""

    request: Request
    session: Session
    sources: Sources
    templates: Templates
    sessions: Sessions
    base: str
    form: Mapping[str, str]

    @property
    def operator(self) -> str:
        """The name of the token; nobody's in particular: empty."""
        return self.session.token.name if self.session.token is not None else ""

    @property
    def writes(self) -> bool:
        """Whether the token is for changes."""
        return self.session.token is not None and self.session.token.writes

    def query(self, name: str) -> str:
        """A parameter of the address; empty where it is not there."""
        return self.request.query_params.get(name, "")

    async def page(self, template: str, title: str, status: int = 200, **values: Any) -> Response:
        """The page by ``template``, which extends ``layout.html``, with ``title`` as its heading."""
        notice = self.query("notice")
        if self.query("by") != self.sessions.sign(
            self.session, notice
        ):  # a link from elsewhere puts no words in our mouth
            notice = ""
        return await self.templates.page(
            template,
            status,
            title=title,
            here=self.base + self.request.scope["path"].removeprefix("/console"),
            operator=self.operator,
            writes=self.writes,
            form_token=self.session.form,
            notice=notice,
            **values,
        )

    def to(self, path: str, notice: str = "") -> Response:
        """Lead on to another page, which shows ``notice``. For what a POST has done: to load that again does nothing twice."""
        query = urlencode({"notice": notice, "by": self.sessions.sign(self.session, notice)}) if notice else ""
        return redirect(self.base + path, query)

    def author(self) -> Author:
        """Who changes something, and the reason that the form has to give. Raises `PageRefused`."""
        reason = self.form.get("reason", "").strip()
        if not reason:
            raise PageRefused(
                400, "Give a reason: it is kept with what you change, and in the audit log. Nothing was changed."
            )
        if len(reason) > MOST_REASON or not REASON.fullmatch(reason):
            raise PageRefused(400, f"A reason is one line of at most {MOST_REASON} characters. Nothing was changed.")
        return Author(self.operator, reason)


def below(path: str, **query: str) -> str:
    """The address of a page below the console, by what it is to show."""
    return f"{path}?{urlencode(query)}"


def redirect(path: str, query: str = "") -> Response:
    """Lead on by GET."""
    return Response(status_code=303, headers={**HEADERS, "location": f"{path}?{query}" if query else path})


def fields(body: bytes) -> dict[str, str]:
    """The fields of a form. Raises `PageRefused`."""
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise PageRefused(400, "That is no form of the console's. Nothing was changed.") from None


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether a request says that a page of another origin has sent it.

    Browsers say so by Sec-Fetch-Site where the connection can be trusted; elsewhere by Origin, which our Referrer-Policy makes
    ``null`` for our own forms. Who says neither is known by the form's token alone.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site not in ("same-origin", "none")
    return origin is not None and origin != "null" and urlsplit(origin).netloc != headers.get("host", "")


def local(path: str) -> str:
    """A path below the console, as an address names it: to go on to after the log-in; anything else is the first page."""
    return path if _LOCAL.fullmatch(path) and not {".", ".."} & set(path.split("/")) else ""
