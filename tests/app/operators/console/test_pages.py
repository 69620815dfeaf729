"""The console's pages, by a real gateway: what they show, what they do, and that all of it is text.

Rules of docs/contract.md: R11.47, R11.50, R11.52, R11.53, R11.54, R11.66.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from jinja2 import Environment

from oncegate.app.operators import console
from oncegate.app.operators.console.frame import Templates
from oncegate.app.operators.console.records import record as record_page
from oncegate.app.operators.console.records import unknown as unknown_page
from oncegate.app.operators.console.records.prospects import command_line, prospect
from oncegate.app.operators.console.words import instant, seconds, size
from oncegate.app.settings.admin_tokens import AdminToken
from oncegate.cache.store import KeepsProcesses
from testing.served import served
from testing.servers import RedisServer
from testing.upstreams import Upstream, answering, resetting_after
from tests.app.operators.console.browsing import CONSOLE, READER, WRITER, Browsed, Browser, Form

TOKENS = [AdminToken.of("rita", READER, writes=False).setting(), AdminToken.of("will", WRITER).setting()]
SECRET = "the-card-number-4242"
PAID = b"HTTP/1.1 201 Created\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (
    len(SECRET),
    SECRET.encode(),
)
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "</textarea></pre><svg onload=alert(1)>",
    "javascript:alert(1)",
    "&lt;b&gt;&amp;",
]


@asynccontextmanager
async def paying(token: str = WRITER, answer: Any = None, **settings: Any) -> AsyncIterator[Browser]:
    """A browser that is logged in to the gateway of an upstream that resets, or that answers."""
    async with (
        Upstream(resetting_after() if answer is None else answering(answer)) as upstream,
        served(upstream.url, admin_tokens=TOKENS, **settings) as (client, gateway),
    ):
        browser = Browser(client, gateway.lasting.cache)
        assert (await browser.log_in(token)).status == 200
        yield browser


async def pay(browser: Browser, key: str, path: str = "/payments", **headers: str) -> Any:
    sent = {"idempotency-key": key, "authorization": "Bearer alice"} | headers
    return await browser.client.post(path, content=b"{}", headers=sent)


async def unknown(browser: Browser, key: str = "k-1", **headers: str) -> str:
    """A record of unknown outcome; its id."""
    answer = await pay(browser, key, **headers)
    assert answer.status_code == 502
    return str(answer.json()["record"])


def audited(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "oncegate.audit"]


def resolving(page: Browsed, outcome: str) -> Form:
    (form,) = [each for each in page.forms if each.fields.get("as") == outcome]
    return form


async def test_the_overview_shows_what_needs_a_person_and_what_was_decided() -> None:
    async with paying() as browser:
        page = await browser.open()
        assert "No unknown outcome among the 0 records" in page.text
        identifier = await unknown(browser)
        await pay(browser, "k-1")
        page = await browser.open()
        assert f"{CONSOLE}/records/{identifier}" in page.links()
        assert re.search(r"Unknown outcomes 1\b", page.text)
        assert row_of(page) == [0, 0, 0, 0, 2, 0, 2, 1], "of five columns, the others, and all; one attempt is unknown"
        assert "upstream unreachable" in page.text.lower() or "upstream reachable" in page.text.lower()


async def test_the_overview_counts_what_an_upstream_s_own_answer_leaves_unknown() -> None:
    """Its 502 says that nobody knows; it was a first request all the same, and no refusal."""
    async with paying(answer=b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n") as browser:
        await pay(browser, "k-1")
        await pay(browser, "k-1")
        assert row_of(await browser.open()) == [1, 0, 0, 0, 1, 0, 2, 1]


def row_of(page: Browsed) -> list[int]:
    """The overview's row of the default route."""
    row = re.search(r"\* ([\d ]+) Requests of the last", page.text)
    assert row is not None
    return [int(count) for count in row[1].split()]


async def test_the_menu_says_where_one_is() -> None:
    async with paying() as browser:
        for path in ("", "/find", "/unknown", "/audit"):
            page = await browser.open(path)
            assert [given["href"] for _, given in page.tags if "aria-current" in given] == [CONSOLE + path]


async def test_a_key_an_id_and_what_holds_an_id_are_found() -> None:
    async with paying() as browser:
        identifier = await unknown(browser, "k-1")
        form = (await browser.open("/find")).form("/find")
        assert form.method == "post", "a key must not be in an address"
        for what in ("k-1", '"k-1"', identifier, f'{{"record": "{identifier}"}}', f"  {identifier} "):
            found = await browser.send(form, what=what)
            assert found.answer.url.path == f"{CONSOLE}/records/{identifier}", what
        other = await unknown(browser, "k-1", authorization="Bearer bob")
        found = await browser.send(form, what="k-1")
        assert {f"{CONSOLE}/records/{each}" for each in (identifier, other)} <= set(found.links())
        for what in ("k-2", f"{'a' * 20}:{'b' * 20}"):
            assert "Nothing was found" in (await browser.send(form, what=what)).text
        assert (await browser.send(form, what="x" * 1001)).status == 400


async def test_a_trace_is_found() -> None:
    async with paying() as browser:
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        identifier = await browser.keep_unknown("k", span=f"{trace}-00f067aa0ba902b7")
        await browser.keep_unknown("k-2", span=f"{'0' * 31}1-00f067aa0ba902b7")
        form = (await browser.open("/find")).form("/find")
        for what in (trace, f"00-{trace}-00f067aa0ba902b7-01"):
            assert (await browser.send(form, what=what)).answer.url.path == f"{CONSOLE}/records/{identifier}"


async def test_a_record_has_its_story_and_what_a_retry_gets() -> None:
    async with paying() as browser:
        identifier = await unknown(browser)
        page = await browser.open(f"/records/{identifier}")
        assert page.status == 200
        assert "attempt 1 began" in page.text
        assert "409 outcome-unknown: nothing is executed" in page.text
        assert "curl -si -X POST" in page.text
        assert "the record is unknown" in str(page.tags)
        assert (await pay(browser, "k-1")).status_code == 409, "as the page says"
        assert (await browser.open(f"/records/{'a' * 20}:{'b' * 20}")).status == 404
        assert (await browser.open("/records/absurd")).status == 400


async def test_a_record_that_was_executed_is_resolved_and_retries_get_what_was_given(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with paying() as browser:
        identifier = await unknown(browser)
        form = resolving(await browser.open(f"/records/{identifier}"), "succeeded")
        page = await browser.send(form, status="201", body='{"id": 7}', reason="found it in the books")
        assert page.answer.url.path == f"{CONSOLE}/records/{identifier}"
        assert "Resolved as executed" in page.text
        assert "resolved by will: found it in the books" in page.text
        answer = await pay(browser, "k-1")
        assert (answer.status_code, answer.json()) == (201, {"id": 7})
        assert f"record {identifier}: resolved to succeeded by will: found it in the books" in audited(caplog)
        lines = (await browser.open("/audit")).text
        assert f"will record {identifier} resolved to succeeded found it in the books" in lines


async def test_a_record_that_was_not_executed_is_resolved_or_released() -> None:
    async with paying() as browser:
        first, second = await unknown(browser, "k-1"), await unknown(browser, "k-2")
        page = await browser.send(resolving(await browser.open(f"/records/{first}"), "failed"), reason="not booked")
        assert "Resolved as not executed" in page.text
        form = resolving(await browser.open(f"/records/{second}"), "release")
        page = await browser.send(form, reason="not booked")
        assert "Released" in page.text
        assert (await browser.open(f"/records/{second}")).status == 404
        page = await browser.send(form, reason="once more")
        assert page.status == 404, "nothing is there any more"
        assert "Nothing was changed" in page.text


@pytest.mark.parametrize("reason", ["", "   ", "x" * 121, "a\nb", "\u202eabc"])
async def test_without_a_reason_nothing_is_changed(reason: str, caplog: pytest.LogCaptureFixture) -> None:
    async with paying() as browser:
        identifier = await unknown(browser)
        form = resolving(await browser.open(f"/records/{identifier}"), "release")
        page = await browser.send(form, reason=reason)
        assert (page.status, "Nothing was changed" in page.text) == (400, True)
        assert "unknown" in (await browser.open(f"/records/{identifier}")).text
        assert audited(caplog) == ["console: opened by will"]


async def test_an_attempt_that_was_not_looked_at_is_not_resolved() -> None:
    async with paying() as browser:
        identifier = await unknown(browser)
        form = resolving(await browser.open(f"/records/{identifier}"), "release")
        form.fields["attempt"] = "2"
        page = await browser.send(form, reason="too late")
        assert (page.status, "another attempt is there" in page.text) == (409, True)


async def test_the_stored_response_is_shown_on_a_click_alone_and_each_click_is_audited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with paying(READER, PAID) as browser:
        assert (await pay(browser, "k-1")).status_code == 201
        page = await browser.send((await browser.open("/find")).form("/find"), what="k-1")
        identifier = page.answer.url.path.rpartition("/")[2]
        assert SECRET not in page.answer.text
        assert (await browser.open(f"/records/{identifier}/response")).status == 405
        before = audited(caplog)
        for number in (1, 2):
            shown = await browser.send(page.form("/response"))
            assert SECRET in shown.text
            line = f"record {identifier}: its stored response shown by rita"
            assert audited(caplog) == before + [line] * number
        assert f"rita record {identifier} its stored response shown" in (await browser.open("/audit")).text


async def test_a_long_body_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_page, "MOST_SHOWN", 10)
    async with paying(answer=PAID) as browser:
        await pay(browser, "k-1")
        page = await browser.send((await browser.open("/find")).form("/find"), what="k-1")
        shown = await browser.send(page.form("/response"))
        assert SECRET[:10] in shown.text
        assert SECRET not in shown.text


async def test_a_token_that_reads_sees_no_form_that_changes_and_is_refused_where_it_posts_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with paying(READER) as browser:
        identifier = await unknown(browser)
        page = await browser.open(f"/records/{identifier}")
        assert [form for form in page.forms if "as" in form.fields] == []
        assert "Your token is for reading" in page.text
        forged = {"form": page.form("/log-out").fields["form"], "as": "release", "attempt": "1", "reason": "because"}
        answer = await browser.send(Form(f"{CONSOLE}/records/{identifier}/resolve", "post", forged))
        assert (answer.status, "for reading" in answer.text) == (403, True)
        assert "unknown" in (await browser.open(f"/records/{identifier}")).text
        assert audited(caplog) == ["console: opened by rita"]


async def test_each_form_that_is_posted_needs_its_token() -> None:
    async with paying() as browser:
        identifier = await unknown(browser)
        seen = 0
        for path in ("", "/find", "/unknown", "/routes", "/audit", f"/records/{identifier}"):
            for form in (await browser.open(path)).forms:
                if form.method != "post":
                    continue
                seen += 1
                assert form.fields.pop("form"), form.action
                answer = await browser.send(form, what="k", reason="because", status="200")
                assert answer.status == 403, form.action
        assert seen == 6 + 1 + 3
        assert "unknown" in (await browser.open(f"/records/{identifier}")).text


async def test_unknown_outcomes_are_the_oldest_first_and_by_route() -> None:
    async with paying() as browser:
        begun = {"/a": 3_000, "/b": 1_000, "/c": 2_000}
        ids = {
            route: await browser.keep_unknown(route, route=route, begun_at_ms=1_790_000_000_000 + at)
            for route, at in begun.items()
        }
        assert await listed(browser, "/unknown") == [ids["/b"], ids["/c"], ids["/a"]]
        assert await listed(browser, "/unknown?route=/a") == [ids["/a"]]
        assert await listed(browser, "/unknown?route=/d") == []
        assert "These are all that there are" in (await browser.open("/unknown")).text


async def test_of_many_records_a_page_has_some_and_leads_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown_page, "MOST_ROWS", 5)
    monkeypatch.setattr(unknown_page, "SCANNED", 500)
    async with paying() as browser:
        ids = {await browser.keep_unknown(f"k-{number}", begun_at_ms=1_790_000_000_000) for number in range(1300)}
        page, found = await browser.open("/unknown"), set[str]()
        for _ in range(10):
            rows = {link.rpartition("/")[2] for link in page.links() if "/records/" in link}
            assert len(rows) == 5
            found |= rows
            further = [link for link in page.links() if "cursor=" in link]
            if not further:
                break
            page = await browser.open(further[0])
        assert len(found) > 10
        assert found <= ids


async def listed(browser: Browser, path: str) -> list[str]:
    """The ids of the records that a page lists, in its order."""
    return [link.rpartition("/")[2] for link in (await browser.open(path)).links() if "/records/" in link]


async def test_routes_are_said_in_words() -> None:
    routes = [{"path": "/payments", "on_missing_key": "reject", "ttl": 3600}, {"path": "/never", "on_unknown": "retry"}]
    async with paying(routes=routes) as browser:
        await unknown(browser)
        page = await browser.open("/routes")
        assert "a request without one is refused" in page.text
        assert "A success is kept for 1 h" in page.text
        assert "1 requests under /payments" in page.text
        assert "/never PATCH, POST Never matched" in page.text
        assert "of what nobody knows, is executed again" in page.text


async def test_while_the_cache_is_away_the_pages_say_so(redis_server: RedisServer) -> None:
    with RedisServer() as away:
        async with paying(answer=PAID) as browser, paying(answer=PAID, cache=away.url) as other:
            assert (await browser.open("/unknown")).status == 200
            away.stop()
            for path in ("/unknown", f"/records/{'a' * 20}:{'b' * 20}", "/audit"):
                page = await other.open(path)
                assert (page.status, "The cache can't be reached" in page.text) == (503, True)
            page = await other.open()
            assert (page.status, "The cache can't be reached" in page.text) == (200, True)


# -- text, never markup -------------------------------------------------------------------------------------------------


def as_tags(page: Browsed) -> list[tuple[str, frozenset[str]]]:
    return [(tag, frozenset(given)) for tag, given in page.tags]


@pytest.mark.parametrize("hostile", HOSTILE)
async def test_what_others_have_written_is_text(hostile: str) -> None:
    """A key, a route, a body, a header, a reason, an operator that is asked for."""
    body = f"{hostile}"
    answer = f"HTTP/1.1 201 Created\r\nX-Note: {hostile}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    async with paying(answer=answer.encode()) as browser, paying() as other:
        await pay(browser, "k-1")
        page = await browser.send((await browser.open("/find")).form("/find"), what="k-1")
        shown = await browser.send(page.form("/response"))
        assert shown.text.count(" ".join(hostile.split())) == 2, "the header and the body, letter by letter"
        plain = await browser.send((await browser.open("/find")).form("/find"), what="(k-nothing)")
        found = await browser.send((await browser.open("/find")).form("/find"), what=hostile)
        if found.status == 400:  # what begins with a quote and is no key
            assert hostile.startswith('"')
            return
        assert as_tags(found) == as_tags(plain)
        assert {"value": hostile}.items() <= next(
            given for tag, given in found.tags if given.get("id") == "what"
        ).items()
        for path in (f"/unknown?route={quote(hostile)}", f"/audit?operator={quote(hostile)}"):
            assert as_tags(await browser.open(path)) == as_tags(await browser.open(path.replace(quote(hostile), "x")))
        identifier = await unknown(other)
        form = resolving(await other.open(f"/records/{identifier}"), "failed")
        done = await other.send(form, reason=hostile)
        assert f"resolved by will: {' '.join(hostile.split())}" in done.text


async def test_a_notice_of_somebody_else_s_is_not_shown() -> None:
    async with paying() as browser:
        assert "Call 555" not in (await browser.open("?notice=Call+555")).text
        assert "Call 555" not in (await browser.open(f"?notice=Call+555&by={'0' * 32}")).text


async def test_no_template_says_that_something_is_markup(tmp_path: Path) -> None:
    folder = Path(*console.__path__)
    texts = {path.name: path.read_text("utf-8") for path in (folder / "templates").iterdir()}
    assert len(texts) > 8
    for name, text in texts.items():
        assert not re.search(r"\|\s*safe\b|autoescape|Markup|\bon[a-z]+=|style=|<style|javascript:|https?://", text), (
            name
        )
        for form in re.findall(r"<form[^>]*method=\"post\".*?</form>", text, re.S):
            assert 'name="form"' in form, f"a form of {name} has no token"
    for name in ("page.html", "page.txt"):
        (tmp_path / name).write_text("{{ text }}")
        assert bytes((await Templates("", [], tmp_path).page(name, text="<a>")).body) == b"&lt;a&gt;"


async def test_a_reload_compiles_no_template_anew_and_another_text_is_another_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling all takes a tenth of a second of a processor, which requests would wait for."""
    (tmp_path / "page.html").write_text("one {{ text }}")
    assert bytes((await Templates("", [], tmp_path).page("page.html", text="<a>")).body) == b"one &lt;a&gt;"
    compiled: list[str | None] = []
    compiling = Environment.compile

    def counted(self: Environment, source: str, name: str | None = None, *rest: Any, **more: Any) -> Any:
        compiled.append(name)
        return compiling(self, source, name, *rest, **more)

    monkeypatch.setattr(Environment, "compile", counted)
    assert bytes((await Templates("/two", [], tmp_path).page("page.html", text="<b>")).body) == b"one &lt;b&gt;"
    assert compiled == []
    (tmp_path / "page.html").write_text("two {{ base }}")
    assert bytes((await Templates("/two", [], tmp_path).page("page.html")).body) == b"two /two"
    assert compiled == ["page.html"]


# -- words --------------------------------------------------------------------------------------------------------------


def test_words() -> None:
    assert [seconds(each) for each in (None, 0.25, 1, 61, 3600, 90_061, -5)] == [
        "not known",
        "250 ms",
        "1 s",
        "1 min 1 s",
        "1 h",
        "1 d 1 h",
        "-5 s",
    ]
    assert instant("2026-11-26T01:02:03.456Z") == "2026-11-26 01:02:03 UTC"
    assert instant(None) == "not known"


def test_a_curl_quotes_what_a_shell_would_take_for_more() -> None:
    record = {"route": "/a;rm -rf $HOME/'*", "method": "POST"}
    assert "'http://x/a;rm -rf $HOME/'\"'\"'*'" in command_line(record, None, "http://x")


RULES = {"on_error": "retry", "on_unknown": "refuse", "on_duplicate": "replay", "header": "Idempotency-Key"}


@pytest.mark.parametrize(
    ("state", "rules", "begins"),
    [
        ("in-flight", {}, "409 in-flight"),
        ("succeeded", {}, "What was kept (status 201), replayed"),
        ("succeeded", {"on_duplicate": "error"}, "409 duplicate"),
        ("failed", {}, "It is executed again, as attempt 3"),
        ("failed", {"on_error": "replay"}, "What was kept"),
        ("unknown", {}, "409 outcome-unknown"),
        ("unknown", {"on_unknown": "retry"}, "It is executed again, as attempt 3"),
    ],
)
def test_what_a_retry_gets_follows_the_rules_in_effect(state: str, rules: dict[str, str], begins: str) -> None:
    record = {"state": state, "attempt": 2, "submission": False, "status": 201, "expires_in": 60.0}
    assert prospect(record, RULES | rules).startswith(begins)


async def test_the_overview_shows_gateways_workers_and_the_cache() -> None:
    async with paying() as browser:
        cache = browser.cache
        assert isinstance(cache, KeepsProcesses)
        assert "None is seen yet" in (await browser.open()).text
        always = {"started": 1, "ttl": 30_000, "version": "1"}
        for name, configuration in (("h/1", "c0ffee"), ("h/2", HOSTILE[0])):
            decided = {"rows": [["/paid", "first", "enforced", 3]], "more": name == "h/2"}
            entry = {
                "name": name,
                "kind": "gateway",
                "gateway": name,
                "configuration": configuration,
                "decisions": decided,
            }
            await cache.keep_process("default", name, orjson.dumps(always | entry), ttl_ms=30_000)
        page = await browser.open()
        assert f"gateways run 2 configurations: {HOSTILE[0]} in h/2; c0ffee in h/1" in page.text
        assert re.search(r"h/1 gateway .* h/2 gateway ", page.text)
        assert "/paid 6 0 0 0 0 0 6 Requests of the last 5 min, by h/1, h/2" in page.text
        assert "Of each gateway the 100 most frequent are counted." in page.text
        assert [given for tag, given in page.tags if tag == "script"] == [
            {"src": f"{CONSOLE}/console.js", "defer": None}
        ]
        assert re.search(r"memory \d+(\.\d+)? k?B in \d records 268 MB none: a restart forgets every record", page.text)


async def test_the_overview_refreshes_by_a_link_too() -> None:
    async with paying() as browser:
        page = await browser.open()
        assert page.links().count(CONSOLE) == 3  # the brand, the menu, the link
        assert [given["data-follow"] for _, given in page.tags if "data-live" in given] == ["5"]


async def test_routes_shows_the_settings_in_effect_and_whence() -> None:
    async with paying(drain_delay=0.25, secret="a-secret-of-32-characters-or-more") as browser:
        page = await browser.open("/routes")
        assert "drain_delay 0.25 the program that made them" in page.text
        assert "secret set, and not shown the program that made them" in page.text
        assert 'host "127.0.0.1" default' in page.text
        assert "jwt not set default" in page.text
        assert page.text.index(" drain_delay ") < page.text.index(" host ")
        assert "a-secret-of" not in page.text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (268_435_456, "268 MB"), (5e12, "5 TB")]
)
def test_sizes_are_said_in_the_unit_that_fits(value: float, text: str) -> None:
    assert size(value) == text
