"""The pages that problems point to: what happened, what was executed, whether to send it again, what to do.

For people, in HTML that loads nothing. They are public: who is refused reads them, and nothing in them is of one gateway.
"""

import re
from html import escape
from typing import Final

from fastapi import APIRouter, Request, Response

from oncegate.app.operators.pages.described.description import PAGE_POLICY, STYLE
from oncegate.app.operators.pages.for_callers.problem_texts import TEXTS
from oncegate.app.operators.pages.reply import problem
from oncegate.middleware.outcome.problem_kinds import KINDS

router = APIRouter(include_in_schema=False)

_SECTION: Final = re.compile(r"^## ([a-z-]+)\n\n(.*?)(?=^## |\Z)", re.M | re.S)
_PARAGRAPHS: Final = dict(_SECTION.findall(TEXTS))
_MARKED: Final = re.compile(r"`([^`]+)`|\*\*(.+?)\*\*|\[([^\]]+)\]\((?:#([a-z-]+)|[^)]+)\)")


@router.get("/problems")
async def problems(request: Request) -> Response:
    """All problems."""
    below = escape(request.scope["raw_path"].decode("latin-1").rstrip("/"))
    rows = "".join(
        f'<tr><td><a href="{below}/{slug}"><code>{slug}</code></a><td>{kind.status}<td>{escape(kind.title)}'
        for slug, kind in KINDS.items()
    )
    return _page("Problems", f"<table><tr><th>code<th>status<th>title{rows}</table>")


@router.get("/problems/{slug}")
async def explained(slug: str) -> Response:
    """One problem."""
    kind = KINDS.get(slug)
    if kind is None:
        return problem(404, "No such problem.")
    again = "yes" if kind.retryable else "no"
    if kind.unless:
        again += f"; {_marked(kind.unless)}"
    facts = (("code", f"<code>{slug}</code>"), ("status", str(kind.status)), ("retryable", again))
    table = "".join(f"<tr><th>{name}<td>{value}" for name, value in facts)
    return _page(kind.title, f"<table>{table}</table>{_paragraphs(slug)}")


def _page(title: str, body: str) -> Response:
    title = escape(title)
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"
        f"<h1>{title}</h1>{body}<p>Answered by oncegate, in front of the service that you called.</html>"
    )
    return Response(page, media_type="text/html", headers={"content-security-policy": PAGE_POLICY})


def _paragraphs(slug: str) -> str:
    """Each begins with words in bold."""
    text = " ".join(_PARAGRAPHS[slug].split())
    return "".join(f"<p>{_marked(each)}" for each in re.split(r" (?=\*\*)", text))


def _marked(text: str) -> str:
    """Markdown's marks as HTML. A link to another problem stays one; others lead to pages that are not here."""
    rest, html = 0, ""
    for found in _MARKED.finditer(text):
        code, bold, words, slug = found.groups()
        html += escape(text[rest : found.start()])
        if code:
            html += f"<code>{escape(code)}</code>"
        elif bold:
            html += f"<b>{_marked(bold)}</b>"
        else:
            html += f'<a href="{slug}">{_marked(words)}</a>' if slug in KINDS else _marked(words)
        rest = found.end()
    return html + escape(text[rest:])
