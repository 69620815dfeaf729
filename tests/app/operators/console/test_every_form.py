"""Each form that the console has, as its own table of pages has them: forged, from elsewhere, and by a token that reads.

Rules of docs/contract.md: R11.52.
"""

import re
from pathlib import Path

import pytest

from oncegate.app.operators import console
from oncegate.app.operators.console import commands
from oncegate.app.operators.console.database import order, outbox, projections
from oncegate.app.operators.console.records import all_unknown, find, record
from oncegate.app.settings.admin_tokens import AdminToken
from testing.servers import RedisServer
from tests.app.operators.console.browsing import CONSOLE, READER, WRITER, Browser, Form
from tests.app.submitted import serving

TOKENS = [AdminToken.of("rita", READER, writes=False).setting(), AdminToken.of("will", WRITER).setting()]
TABLES = (find, record, all_unknown, commands, order, outbox, projections)
POSTED = [page for table in TABLES for page in table.PAGES if page.method == "POST"]
FORM = re.compile(r"<form\b[^>]*method=\"post\"[^>]*>(.*?)</form>", re.DOTALL)
TEMPLATES = {path.name: path.read_text("utf-8") for path in (Path(*console.__path__) / "templates").glob("*.html")}


def test_no_table_of_pages_with_forms_is_left_out() -> None:
    folder = Path(*console.__path__)
    posts = {path.stem for path in folder.rglob("*.py") if 'method="POST"' in path.read_text("utf-8")}
    assert posts == {table.__name__.rpartition(".")[2] for table in TABLES}


def test_what_is_posted_changes_something_or_is_a_look_whose_subject_is_not_for_an_address() -> None:
    looks = {page.path for page in POSTED if not page.changes}
    assert looks == {"/find", "/records/{id}/response", "/commands/payload"}


async def test_a_log_in_is_refused_whose_form_is_another_session_s(redis_server: RedisServer) -> None:
    async with serving(redis_server, admin_tokens=TOKENS) as there:
        browser = Browser(there.client)
        form = (await browser.open()).form("/log-in")
        for other in ("", "0" * 64):
            refused = await browser.send(Form(form.action, "post", form.fields | {"form": other}), token=WRITER)
            assert (refused.status, "The form was too old" in refused.text) == (403, True)
        assert (await browser.send(form, token=WRITER)).status == 200


async def test_each_is_refused_where_it_is_forged_or_foreign_and_a_change_to_a_token_that_reads(
    redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert sum(page.changes for page in POSTED) >= 7
    async with serving(redis_server, admin_tokens=TOKENS, ops_database=f"sqlite:///{tmp_path}/shop.db") as there:
        browser = Browser(there.client)
        for token in (WRITER, READER):
            browser.client.cookies.clear()
            own = (await browser.log_in(token)).form("/log-out").fields["form"]
            caplog.clear()
            for page in POSTED:
                where = CONSOLE + page.path.replace("{id}", f"{'a' * 20}:{'b' * 20}")
                form = Form(where, "post", {"form": own, "do": "discard", "as": "failed", "reason": "x", "what": "x"})
                for other in ("", "0" * 64, own[:-1] + ("0" if own[-1] != "0" else "1")):
                    forged = Form(where, "post", form.fields | {"form": other})
                    assert (await browser.send(forged)).status == 403, page
                for headers in ({"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site", "origin": "null"}):
                    assert (await browser.send(form, headers)).status == 403, page
                if page.changes and token == READER:
                    refused = await browser.send(form)
                    assert (refused.status, "is for reading" in refused.text) == (403, True), page
                elif page.changes:  # it is its own token that lets it in: what is not there is another answer
                    assert (await browser.send(form)).status != 403, page
            assert [each.getMessage() for each in caplog.records if each.name == "oncegate.audit"] == []


def test_each_form_that_posts_carries_its_session_s_token() -> None:
    forms = {name: FORM.findall(text) for name, text in TEMPLATES.items()}
    assert sum(map(len, forms.values())) >= 13
    for name, found in forms.items():
        assert all('<input type="hidden" name="form" value="{{ form_token }}">' in each for each in found), name
        assert TEMPLATES[name].count('method="post"') == len(found), name


def test_nothing_is_put_into_a_page_unescaped() -> None:
    for name, text in TEMPLATES.items():
        assert re.search(r"\|\s*(safe|tojson|xmlattr)\b|autoescape|Markup", text) is None, name
    code = [path.read_text("utf-8") for path in Path(*console.__path__).rglob("*.py")]
    assert not any(re.search(r"\bMarkup\b|markupsafe|__html__", text) for text in code)
