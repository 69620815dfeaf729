"""The console in a headless Chromium: at both widths, light and dark, with scripts and without, by the keyboard alone; axe-core.

Rules of docs/contract.md: R11.47, R11.50, R11.53, R11.63.
"""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from oncegate.app.settings.admin_tokens import AdminToken
from oncegate.sql.outbox.tables import all_tables
from testing.caller import fresh_key
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer
from testing.waiting import wait_until
from tests.app.operators.test_dead_letters import COMMAND, Letters
from tests.foreign.chrome import Chrome, Tab
from tests.foreign.conftest import fetched_or_skipped
from tests.sql.handlers.parking import sweep
from tests.sql.operators.looking import parks, refused, stands
from tests.sql.places import SyncPlace
from tests.sql.projections.accounts import make
from tests.system.conftest import Start

WRITER, READER = "oncegate-a-token-that-changes", "oncegate-a-token-that-reads"
TOKENS = [AdminToken.of("rita", READER, writes=False).setting(), AdminToken.of("will", WRITER).setting()]
HOSTILE = "<script>alert(1)</script>\"><img src=x onerror=alert(1)><svg onload=alert(1)>'"
PAGES = ("", "/find", "/records", "/unknown", "/unknown/all", "/commands", "/callers", "/routes", "/audit")
ODD = "/odd&amp;'*"
"""A route whose pattern reads otherwise where it is taken for markup."""
OF_DATABASE = ("/order", "/outbox", "/outbox?held=1", "/outbox/1", "/projections", "/projections/balance.v1")


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with Chrome(fetched_or_skipped("chromium")) as running:
        yield running


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> SyncPlace:
    """A consumers' database in which something waits everywhere, whose texts a page must not take for markup."""
    place = SyncPlace(f"sqlite:///{tmp_path_factory.mktemp('shop')}/shop.db")
    place.prepare()
    make(place)
    for table in all_tables(None):
        place.run(partial(_create, table))
    for aggregate in (HOSTILE, "keyboard"):
        parks(place, aggregate=aggregate)
    asyncio.run(refused(place, HOSTILE, HOSTILE))
    stands(place)
    return place


def _create(table: Any, session: Any) -> None:
    table.create(session.connection())


@pytest.fixture(scope="module")
def namespace() -> str:
    return fresh_key()


@pytest.fixture(scope="module")
def letter(gateway: Gateway, redis_server: RedisServer, namespace: str) -> str:
    """The id of a dead letter, of which all that a client, a handler or a worker gives is hostile."""
    there: Any = SimpleNamespace(client=None, namespace=namespace)
    names = ("key", "target", "route", "aggregate", "body", "correlation", "dead.error", "dead.error_type")
    others = {name.encode(): HOSTILE.encode() for name in (*names, "dead.worker", "dead.reason", "retried")}
    return Letters(there, redis_server).add(COMMAND, consumer=HOSTILE, others=others | {b"sequence": b"1"})


@pytest.fixture(scope="module")
def gateway(start: Start, ledger: Ledger, redis_server: RedisServer, shop: SyncPlace, namespace: str) -> Gateway:
    """One with records of each state, of which some hold what a page must not take for markup."""
    held = (("content-type", "text/html"), ("x-note", HOSTILE))
    ledger.answer("/paid", Reply(201, held, HOSTILE.encode()))
    ledger.answer("/failed", Reply(500, held, HOSTILE.encode()))
    return start(
        ledger.url,
        redis_server.url,
        namespace=namespace,
        admin_tokens=TOKENS,
        ops_database=shop.url,
        routes=[
            {"path": "/later", "mode": "async", "on_missing_key": "reject"},
            {"path": "/paid"},
            {"path": "/failed"},
            {"path": "/lost*"},
            {"path": "/never&amp;'\"*"},
            {"path": ODD},
        ],
    ).ready()


def send(gateway: Gateway, path: str, key: str, body: bytes = b"a") -> httpx.Response:
    headers = {"idempotency-key": key, "authorization": "Bearer a"}
    return httpx.post(gateway.url + path, headers=headers, content=body, timeout=DEADLINE)


def reuse(gateway: Gateway) -> None:
    """A caller who reuses a key, at the odd route."""
    key = fresh_key()
    assert [send(gateway, "/odd&amp;'s", key, body).status_code for body in (b"1", b"2")] == [201, 422]


def unknown(gateway: Gateway, ledger: Ledger) -> str:
    """The id of a record of unknown outcome."""
    path = f"/lost/{fresh_key()}"
    ledger.answer(path, Reply(cut="before-head"))
    return str(send(gateway, path, fresh_key()).json()["record"])


def address(gateway: Gateway, path: str = "") -> str:
    return f"{gateway.url}/_oncegate/console{path}"


def logged_in(chrome: Chrome, gateway: Gateway, token: str = WRITER, **options: Any) -> Tab:
    tab = chrome.tab(**options)
    tab.open(address(gateway))
    tab.fill("#token", token)
    tab.click("main button")
    assert tab.run("document.querySelector('h1').textContent") == "Overview"
    return tab


def aggregate(tab: Tab, gateway: Gateway, name: str) -> str:
    """The address of one that waits, below the console."""
    tab.open(address(gateway, "/order"))
    link = f"[...document.querySelectorAll('th a')].find(e => e.textContent === {json.dumps(name)}).href"
    return str(tab.run(link)).removeprefix(address(gateway))


def linked(tab: Tab, gateway: Gateway, path: str, part: str) -> str:
    """The first address on a page that has this in it, below the console."""
    tab.open(address(gateway, path))
    link = f"[...document.querySelectorAll('main a')].find(e => e.href.includes({json.dumps(part)})).href"
    return str(tab.run(link)).removeprefix(address(gateway))


def fits(tab: Tab) -> bool:
    """Whether nothing is wider than the window: what is wide scrolls by itself."""
    return bool(tab.run("document.documentElement.scrollWidth <= window.innerWidth"))


@pytest.mark.parametrize(
    ("width", "dark", "scripts"),
    [
        (360, False, True),
        (360, True, False),
        (1440, False, False),
        (1440, True, True),
    ],
)  # each pair of any two of them
def test_each_page_fits_and_has_no_fault_of_axe(
    chrome: Chrome, gateway: Gateway, ledger: Ledger, letter: str, width: int, dark: bool, scripts: bool
) -> None:
    axe = (Path(fetched_or_skipped("node-clients")) / "node_modules/axe-core/axe.min.js").read_text("utf-8")
    identifier = unknown(gateway, ledger)
    tab = chrome.tab(width=width, dark=dark, scripts=scripts)
    tab.open(address(gateway))
    found = {"log in": faults(tab, axe)}
    tab.fill("#token", WRITER)
    tab.click("main button")
    waiting = aggregate(tab, gateway, "keyboard")
    error = linked(tab, gateway, "/commands", "/commands/error?")
    reuse(gateway)
    one = f"/commands/letter?stream=commands&id={letter}"
    for path in (*PAGES, *OF_DATABASE, waiting, f"/records/{identifier}", error, one, "/nowhere"):
        tab.open(address(gateway, path))
        assert fits(tab), path
        found[path] = faults(tab, axe)
        if path == "/callers":
            assert ODD in tab.run("document.querySelector('main table').textContent")
        if path == one:
            tab.click("form[action$='/commands/payload'] button")
            found["payload"] = faults(tab, axe)
            assert fits(tab), "a payload"
    for what in (HOSTILE, "nobody's"):
        look_for(tab, gateway, what)
        assert fits(tab), what
        found[f"found: {what}"] = faults(tab, axe)
    assert {path: each for path, each in found.items() if each} == {}
    ground = tab.run("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
    assert {url.partition("/_oncegate/")[0] for url in tab.fetched()} == {gateway.url}, (
        "nothing is fetched from elsewhere"
    )
    assert tab.wrong() == []


def faults(tab: Tab, axe: str) -> list[str]:
    tab.run(axe + "; 0")
    report = json.loads(
        tab.examine("axe.run({resultTypes: ['violations']}).then(found => JSON.stringify(found.violations))")
    )
    return [f"{each['id']}: {[node['html'] for node in each['nodes']][:3]}" for each in report]


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "plain"])
def test_an_unknown_outcome_is_resolved_by_the_keyboard_alone(
    chrome: Chrome, gateway: Gateway, ledger: Ledger, scripts: bool
) -> None:
    identifier = unknown(gateway, ledger)
    tab = chrome.tab(scripts=scripts, width=360)
    tab.open(address(gateway))
    wait_until(lambda: tab.run("document.activeElement.name") == "token", "the field has the focus by itself")
    tab.type(WRITER)
    tab.press("Enter", leads_on=True)
    tab.press("Tab")
    assert tab.run("document.activeElement.className") == "skip"
    assert tab.run("getComputedStyle(document.activeElement).left") != "-100vw"
    tab.tab_to("e => e.textContent === 'Unknown'")
    assert tab.run("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is seen"
    tab.press("Enter", leads_on=True)
    tab.tab_to(f"e => e.textContent === {json.dumps(identifier)}")
    tab.press("Enter", leads_on=True)
    tab.tab_to("e => e.id === 'status'")
    tab.type("201")
    tab.tab_to("e => e.id === 'body'")
    tab.type('{"id": 7}')
    tab.tab_to("e => e.id === 'reason-succeeded'")
    tab.type("in the books")
    tab.press("Enter", leads_on=True)
    assert tab.run("document.querySelector('.notice').textContent").startswith("Resolved as executed")
    assert tab.run("document.querySelector('.state').textContent") == "succeeded"
    tab.tab_to("e => e.textContent === 'Log out'")
    tab.press("Enter", leads_on=True)
    assert tab.run("document.querySelector('h1').textContent") == "Log in"
    assert tab.wrong() == []


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "plain"])
def test_a_number_that_never_comes_is_skipped_by_the_keyboard_alone(
    chrome: Chrome, gateway: Gateway, shop: SyncPlace, scripts: bool
) -> None:
    name = f"keys-{scripts}"
    ledger, _ = parks(shop, aggregate=name)
    tab = logged_in(chrome, gateway, scripts=scripts, width=360)
    tab.tab_to("e => e.textContent === 'Aggregates that wait'")
    tab.press("Enter", leads_on=True)
    tab.tab_to(f"e => e.textContent === {json.dumps(name)}")
    tab.press("Enter", leads_on=True)
    tab.tab_to("e => e.id === 'reason'")
    tab.type("withdrawn")
    tab.tab_to("e => e.value === 'skip'")
    tab.press("Enter", leads_on=True)
    assert tab.run("document.querySelector('.notice').textContent").startswith("The number 1 was skipped. 2 parked")
    sweep(ledger, lambda: f"{name}003" in shop.effects())
    assert [each for each in shop.effects() if each.startswith(name)] == [f"{name}002", f"{name}003"]
    assert tab.wrong() == []


def look_for(tab: Tab, gateway: Gateway, what: str) -> None:
    tab.open(address(gateway, "/find"))
    tab.fill("#what", what)
    tab.click("main button")


def test_what_others_have_written_runs_nowhere(chrome: Chrome, gateway: Gateway, letter: str) -> None:
    tab = logged_in(chrome, gateway)
    key = fresh_key()
    for path in ("/paid", "/failed"):
        assert send(gateway, path, f"{key}{path}").status_code in (201, 500)
        look_for(tab, gateway, f"{key}{path}")
        tab.click("form[action$='/response'] button")
        shown = tab.run("[...document.querySelectorAll('#response ~ pre, section pre')].map(e => e.textContent).join()")
        assert shown.count(HOSTILE) == 2
        assert tab.run("document.querySelectorAll('main img, main script, main svg:not(.drawing)').length") == 0
    for path in (*OF_DATABASE, aggregate(tab, gateway, HOSTILE)):
        tab.open(address(gateway, path))
        assert path.startswith("/projections") or HOSTILE in tab.run("document.querySelector('main').textContent")
        assert tab.run("document.querySelectorAll('main img, main script, main svg').length") == 0, path
    one = f"/commands/letter?stream=commands&id={letter}"
    for path in ("/commands", linked(tab, gateway, "/commands", "/commands/error?"), one):
        tab.open(address(gateway, path))
        assert HOSTILE in tab.run("document.querySelector('main').textContent"), path
        assert tab.run("document.querySelectorAll('main img, main script, main svg').length") == 0, path
    tab.click("form[action$='/commands/payload'] button")
    held = tab.run("[...document.querySelectorAll('#payload ~ dl dd, #payload ~ pre')].map(e => e.textContent)")
    assert held == [HOSTILE] * 3
    assert tab.run("document.querySelectorAll('main img, main script, main svg').length") == 0
    look_for(tab, gateway, HOSTILE)
    links = tab.run("[...document.querySelectorAll('main li a')].map(e => e.textContent)")
    assert f"a dead letter of commands, about {HOSTILE}" in links
    assert tab.run("document.querySelectorAll('main img, main script, main svg').length") == 0
    reuse(gateway)
    for path in ("/callers", "/routes"):
        tab.open(address(gateway, path))
        assert ODD in tab.run("document.querySelector('main').textContent"), path
    query = quote(HOSTILE)
    for path in ("/audit?operator=", "/unknown?route=", "/unknown/all?route=", "/records?route=", "/callers?minutes="):
        tab.open(address(gateway, path + query))
        assert tab.run("document.querySelectorAll('main img, main script, main svg:not(.drawing)').length") == 0, path
    assert tab.wrong() == []


def test_a_script_reads_no_cookie_and_no_page_frames_the_console(chrome: Chrome, gateway: Gateway) -> None:
    tab = logged_in(chrome, gateway)
    assert tab.run("document.cookie") == ""
    tab.run("{ const f = document.createElement('iframe'); f.src = location.href; document.body.append(f); 0 }")
    assert tab.run(
        "new Promise(r => setTimeout(() => r(document.querySelector('iframe').contentDocument === null), 500))"
    )


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "plain"])
def test_records_follow_live_until_they_are_stopped_and_by_a_link_without_scripts(
    chrome: Chrome, gateway: Gateway, ledger: Ledger, scripts: bool
) -> None:
    tab = logged_in(chrome, gateway, scripts=scripts)
    tab.open(address(gateway, "/records?state=unknown"))
    identifier = unknown(gateway, ledger)
    shown = f"document.body.textContent.includes({json.dumps(identifier)})"
    assert not tab.run(shown)
    if scripts:
        button = "document.querySelector('h1 + button')"
        tab.run(f"{button}.click()")
        wait_until(lambda: tab.run(shown), "the list is loaded anew")
        assert tab.run(f"{button}.getAttribute('aria-pressed')") == "true"
        tab.run(f"{button}.click()")
        assert tab.run(f"{button}.textContent") == "Follow live"
        assert tab.run("document.querySelector('noscript a') === null")
    else:
        tab.click("noscript a")
        assert tab.run(shown)
        assert tab.run("location.search") == "?state=unknown"
    assert tab.wrong() == []


SHOWS = "document.body.textContent.includes({})"
SEEN = "new Promise(r => {{ const t = setInterval(() => {} && (clearInterval(t), r(true)), 50) }})"


def test_the_overview_follows_by_itself_until_it_is_paused(chrome: Chrome, gateway: Gateway, ledger: Ledger) -> None:
    tab = logged_in(chrome, gateway)
    button = "document.querySelector('h1 + button')"
    assert tab.run(f"{button}.textContent") == "Pause"
    assert tab.run("document.getElementById('refresh')") is None
    first = SHOWS.format(json.dumps(unknown(gateway, ledger)))
    assert tab.run(SEEN.format(first))
    tab.run(f"{button}.focus()")
    tab.press("Enter")
    assert tab.run(f"{button}.textContent") == "Go on"
    paused = SHOWS.format(json.dumps(unknown(gateway, ledger)))
    # Longer than until it would have looked again: what must not happen can't be awaited.
    assert tab.run(f"new Promise(r => setTimeout(() => r({paused}), 7000))") is False
    tab.press("Enter")
    assert tab.run(f"{button}.textContent") == "Pause"
    assert tab.run(SEEN.format(paused))
    assert tab.wrong() == []


def test_without_scripts_the_overview_has_a_link_that_refreshes_it(
    chrome: Chrome, gateway: Gateway, ledger: Ledger
) -> None:
    tab = logged_in(chrome, gateway, scripts=False)
    shows = SHOWS.format(json.dumps(unknown(gateway, ledger)))
    assert not tab.run(shows)
    tab.tab_to("e => e.id === 'refresh'")
    tab.press("Enter", leads_on=True)
    assert tab.run(shows)


def test_the_overview_shows_who_is_up_and_the_cache(chrome: Chrome, gateway: Gateway) -> None:
    tab = logged_in(chrome, gateway, width=360)
    text = "document.body.textContent"
    assert tab.run(SEEN.format(f"{text}.includes('/{gateway.pid}')"))
    assert tab.run(f"{text}.includes('noeviction')")
    tab.open(address(gateway, "/routes"))
    assert tab.run(f"{text}.includes('ONCEGATE_NAMESPACE')")
    assert WRITER not in tab.run(text)
    assert tab.wrong() == []
