"""The console's log-in: who gets in, by which cookie, how long; and which requests are refused.

Rules of docs/contract.md: R11.50, R11.51, R11.52, R11.53.
"""

import asyncio
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from oncegate.app.operators.console import console
from oncegate.app.operators.console.attempts import FREE, MOST_ADDRESSES, MOST_SECONDS, Attempts
from oncegate.app.operators.console.frame import COOKIE, local
from oncegate.app.operators.console.sessions import MOST_ENDED, SECONDS, EndedSessions, Sessions, session_keys
from oncegate.app.settings.admin_tokens import AdminToken
from testing.served import served
from testing.servers import free_port
from tests.app.operators.console.browsing import AS_A_BROWSER, CONSOLE, READER, WRITER, Browser, Form

TOKENS = [AdminToken.of("rita", READER, writes=False).setting(), AdminToken.of("will", WRITER).setting()]
ALICE, BOB = AdminToken.of("alice", "a" * 32), AdminToken.of("bob", "b" * 32, writes=False)


@asynccontextmanager
async def console_of(**settings: Any) -> AsyncIterator[Browser]:
    settings.setdefault("admin_tokens", TOKENS)
    async with served(f"http://127.0.0.1:{free_port()}", **settings) as (client, _):
        yield Browser(client)


def cookie_of(answer: httpx.Response) -> dict[str, str]:
    """The session's cookie with its attributes, in lower case; its value as ``value``."""
    (line,) = [each for each in answer.headers.get_list("set-cookie") if each.startswith(COOKIE)]
    first, *rest = [each.strip() for each in line.split(";")]
    attributes = dict(each.partition("=")[::2] for each in rest)
    return {"value": first.partition("=")[2]} | {name.lower(): value for name, value in attributes.items()}


async def test_a_browser_at_the_prefix_is_led_to_the_log_in_and_others_are_not() -> None:
    async with console_of() as browser:
        for path in ("/_oncegate", "/_oncegate/"):
            page = await browser.open(path)
            assert page.status == 401
            assert page.answer.url.path == CONSOLE
            assert page.form("/log-in").fields.keys() == {"form", "then", "token"}
        for accept in ("*/*", "application/json"):
            answer = await browser.client.get("/_oncegate", headers={"accept": accept})
            assert (answer.status_code, answer.json()["title"]) == (404, "Not Found")


async def test_a_token_lets_in_and_says_what_it_may() -> None:
    async with console_of() as browser:
        page = await browser.log_in(READER)
        assert (page.status, page.answer.url.path) == (200, CONSOLE)
        assert "rita: reads only" in page.text
    async with console_of() as browser:
        assert "will: may change" in (await browser.log_in(WRITER)).text


async def test_after_the_log_in_the_page_that_was_asked_for_is_shown() -> None:
    async with console_of() as browser:
        page = await browser.open("/find")
        assert page.status == 401
        assert (await browser.send(page.form("/log-in"), token=WRITER)).answer.url.path == f"{CONSOLE}/find"


@pytest.mark.parametrize(
    "then", ["//evil.example", "https://evil.example", "/../../x", "/a\r\nset-cookie: a=b", "\\\\evil"]
)
def test_the_log_in_leads_to_pages_of_the_console_alone(then: str) -> None:
    assert local(then) == ""
    assert local("/records/a:b") == "/records/a:b"


async def test_the_cookie_is_out_of_reach_and_holds_no_token() -> None:
    async with console_of() as browser:
        form = (await browser.open()).form("/log-in")
        answer = await browser.client.post(form.action, data=form.fields | {"token": WRITER}, headers=AS_A_BROWSER)
        cookie = cookie_of(answer)
        assert {"httponly", "samesite", "path", "max-age"} <= cookie.keys()
        assert (cookie["samesite"].lower(), cookie["path"], cookie["max-age"]) == ("strict", "/_oncegate", str(SECONDS))
        assert "secure" not in cookie, "there is no TLS here, so that it would never come back"
        assert SECONDS <= 8 * 3600
        assert WRITER not in answer.text + str(answer.headers)
        assert WRITER[:8] not in urlsafe_b64decode(cookie["value"]).decode("latin-1")


async def test_the_cookie_is_secure_where_a_trusted_proxy_has_the_tls() -> None:
    for trusted, scheme, secure in (
        (["127.0.0.1"], "https", True),
        (["127.0.0.1"], "http", False),
        (["10.0.0.1"], "https", False),
    ):
        async with console_of(trusted_proxies=trusted) as browser:
            page = await browser.open(**{"x-forwarded-proto": scheme})
            assert ("secure" in cookie_of(page.answer)) is secure


async def test_a_page_says_what_browsers_are_to_do_with_it() -> None:
    async with console_of() as browser:
        for page in (await browser.open(), await browser.log_in(), await browser.open("/nowhere")):
            headers = page.answer.headers
            policy = dict(each.strip().partition(" ")[::2] for each in headers["content-security-policy"].split(";"))
            assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] == "no-store"
            assert headers["x-content-type-options"] == "nosniff"
            assert not [
                given for tag, given in page.tags if "style" in given or any(name.startswith("on") for name in given)
            ]
            scripts = [given for tag, given in page.tags if tag in ("script", "style")]
            assert scripts == [{"src": f"{CONSOLE}/console.js", "defer": None}]


async def test_what_the_pages_load_is_there_and_small() -> None:
    async with console_of() as browser:
        script = await browser.client.get(f"{CONSOLE}/console.js")
        assert script.headers["content-type"].startswith("text/javascript")
        assert len(script.content) <= 10_000
        for name, kind in (("console.css", "text/css"), ("icon.svg", "image/svg+xml")):
            assert (await browser.client.get(f"{CONSOLE}/{name}")).headers["content-type"].startswith(kind)


async def test_without_tokens_there_is_no_console_and_its_address_says_how_to_get_one() -> None:
    async with console_of(admin_tokens=[]) as browser:
        for path in ("", "/find", "/log-in"):
            page = await browser.open(path)
            assert page.status == 404
            assert "oncegate token" in page.text
            assert page.forms == []


async def test_on_a_port_of_their_own_the_main_port_has_no_console() -> None:
    port = free_port()
    async with console_of(ops_port=port) as browser:  # this client is at another port
        for path in ("", "/_oncegate", "/console.js"):
            answer = await browser.client.get(
                CONSOLE + path if not path.startswith("/_") else path, headers=AS_A_BROWSER
            )
            assert (answer.status_code, answer.json()["title"]) == (404, "Not Found")


# -- refused ------------------------------------------------------------------------------------------------------------


async def test_a_wrong_token_is_refused_logged_and_slowed(caplog: pytest.LogCaptureFixture) -> None:
    async with console_of() as browser:
        for number in range(FREE + 1):
            page = await browser.send((await browser.open()).form("/log-in"), token=f"oncegate-wrong-{number}")
            assert page.status == 401
            assert "no operator's token" in page.text
        page = await browser.send((await browser.open()).form("/log-in"), token=WRITER)
        assert page.status == 429, "the right one waits, too"
        assert int(page.answer.headers["retry-after"]) >= 1
        await asyncio.sleep(int(page.answer.headers["retry-after"]))
        assert (await browser.log_in()).status == 200
    lines = [each.getMessage() for each in caplog.records if each.name == "oncegate.operators"]
    assert len([each for each in lines if "refused: wrong or no token, from 127.0.0.1" in each]) == FREE + 1
    assert "wrong-" not in caplog.text


def test_attempts_wait_twice_as_long_each_and_are_forgotten() -> None:
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    waits = []
    for _ in range(FREE + 9):
        attempts.failed("10.0.0.1")
        waits.append(attempts.wait("10.0.0.1"))
        now[0] += waits[-1]
    assert waits[:FREE] == [0.0] * FREE
    assert waits[FREE : FREE + 3] == [1.0, 2.0, 4.0]
    assert waits[-1] == MOST_SECONDS
    assert attempts.wait("10.0.0.2") == 0
    now[0] += MOST_SECONDS + 1
    attempts.failed("10.0.0.1")
    assert attempts.wait("10.0.0.1") == 0


def test_attempts_are_counted_in_bounded_memory_and_by_household() -> None:
    attempts = Attempts(lambda: 0.0)
    for number in range(MOST_ADDRESSES * 3):
        attempts.failed(f"10.{number // 65536}.{number // 256 % 256}.{number % 256}")
    assert len(attempts._wrong) == MOST_ADDRESSES
    for number in range(FREE + 2):
        attempts.failed(f"2001:db8::{number}")
    assert attempts.wait("2001:db8::ffff") > 0
    assert attempts.wait("2001:db8:0:1::1") == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site", "origin": "null"},
    ],
)
async def test_a_form_of_another_origin_is_refused(headers: dict[str, str]) -> None:
    async with console_of() as browser:
        page = await browser.log_in()
        for form in (page.form("/log-out"), Form(f"{CONSOLE}/log-in", "post", {"token": WRITER})):
            answer = await browser.send(form, headers)
            assert answer.status == 403
            assert "another origin" in answer.text
        assert (await browser.open()).status == 200, "nothing was logged out"


@pytest.mark.parametrize("form", ["", "0" * 64, None])
async def test_a_form_without_its_token_is_refused(form: str | None) -> None:
    async with console_of() as browser:
        page = await browser.log_in()
        given = page.form("/log-out")
        given.fields = {} if form is None else {"form": form}
        assert (await browser.send(given)).status == 403
        assert (await browser.open()).status == 200


async def test_a_form_is_of_one_session() -> None:
    async with console_of() as browser, console_of() as other:
        theirs = (await other.log_in()).form("/log-out")
        await browser.log_in()
        assert (await browser.send(theirs)).status == 403
    async with console_of() as browser:
        form = (await browser.open()).form("/log-in")
        browser.client.cookies.clear()
        assert (await browser.send(form, token=WRITER)).status == 403, (
            "nobody can be logged in by a form of somebody else's"
        )


async def test_a_log_in_begins_a_session_of_its_own() -> None:
    async with console_of() as browser:
        await browser.open()
        before = browser.client.cookies[COOKIE]
        await browser.log_in()
        assert browser.client.cookies[COOKIE] != before


async def test_a_log_out_ends_the_session_also_for_who_has_copied_its_cookie() -> None:
    async with console_of() as browser:
        page = await browser.log_in()
        copied = browser.client.cookies[COOKIE]
        after = await browser.send(page.form("/log-out"))
        assert after.answer.url.path == f"{CONSOLE}/log-in"
        browser.client.cookies.clear()
        browser.client.cookies.set(COOKIE, copied)
        assert (await browser.open()).status == 401


async def test_what_is_no_page_is_said_and_large_forms_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "MOST_FORM_BYTES", 1000)
    async with console_of() as browser:
        page = await browser.log_in()
        assert (await browser.open("/nowhere")).status == 404
        assert (await browser.open("/log-out")).status == 404
        assert (await browser.send(page.form("/log-out"), more="x" * 2000)).status == 413
        page.form("/log-out").action = CONSOLE
        assert (await browser.send(Form(CONSOLE, "post", page.form("").fields))).status == 405


async def test_a_log_in_is_in_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with console_of() as browser:
        await browser.log_in()
    assert [each.getMessage() for each in caplog.records if each.name == "oncegate.audit"] == [
        "console: opened by will"
    ]
    assert WRITER not in caplog.text


# -- sessions -----------------------------------------------------------------------------------------------------------


def test_a_session_ends_after_its_hours_and_with_its_token() -> None:
    now = [1_000_000.0]
    ended = EndedSessions()
    here = Sessions(ended, [], [ALICE, BOB], lambda: now[0])
    cookie = here.begin(ALICE)
    assert (found := here.of(cookie)) is not None
    assert found.token == ALICE
    reads = AdminToken("alice", False, ALICE.digest)
    assert Sessions(ended, [], [BOB], lambda: now[0]).of(cookie) is None, "the token is gone by a reload"
    after = Sessions(ended, [], [reads], lambda: now[0]).of(cookie)
    assert after is not None
    assert after.token == reads, "what it may do is what its token may now"
    now[0] += SECONDS - 1
    assert here.of(cookie) is not None
    now[0] += 1
    assert here.of(cookie) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda c: c[:-4],
        lambda c: ("B" if c[0] == "A" else "A") + c[1:],
        lambda c: "",
        lambda c: "é",
        lambda c: c + "AAAA",
    ],
)
def test_a_cookie_that_was_changed_is_none(spoil: Any) -> None:
    here = Sessions(EndedSessions(), [], [ALICE])
    assert here.of(spoil(here.begin(ALICE))) is None


def test_no_byte_of_a_cookie_can_be_changed() -> None:
    here = Sessions(EndedSessions(), [], [ALICE, BOB])
    given = bytearray(urlsafe_b64decode(here.begin(BOB)))
    for position in range(len(given)):
        given[position] ^= 1
        assert here.of(urlsafe_b64encode(bytes(given)).decode()) is None
        given[position] ^= 1
    assert here.of(urlsafe_b64encode(bytes(given)).decode()) is not None


def test_a_session_of_nobody_s_may_nothing_and_a_name_alone_neither() -> None:
    here = Sessions(EndedSessions(), [], [ALICE])
    assert (found := here.of(here.begin())) is not None
    assert found.token is None
    other = Sessions(EndedSessions(), [], [AdminToken.of("alice", "c" * 32)])
    assert other.of(here.begin(ALICE)) is None


def test_gateways_with_one_secret_take_each_other_s_sessions_and_others_don_t() -> None:
    one, two = "s" * 32, "t" * 32
    cookie = Sessions(EndedSessions(), session_keys(one), [ALICE]).begin(ALICE)
    for keys, taken in (
        (session_keys(one), True),
        (session_keys([two, one]), True),
        (session_keys(two), False),
        ([], False),
    ):
        assert (Sessions(EndedSessions(), keys, [ALICE]).of(cookie) is not None) is taken
    assert session_keys(None) == []
    assert len(session_keys([None, one])) == 1


def test_a_log_out_is_seen_by_each_worker_and_is_bounded() -> None:
    shared = EndedSessions(workers=2)
    here = Sessions(shared, [], [ALICE])
    first = here.of(here.begin(ALICE))
    assert first is not None
    here.end(first)
    shared.enter(1)
    second = here.of(here.begin(ALICE))
    assert second is not None
    here.end(second)
    assert first.identifier in shared
    assert second.identifier in shared
    for number in range(MOST_ENDED):
        shared.add(number.to_bytes(16, "big", signed=False).replace(b"\0", b"x"))
    assert first.identifier in shared, "the other worker's"
    assert second.identifier not in shared
