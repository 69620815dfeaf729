"""The box that takes anything: every id that a page shows, and words on what is in no store.

Rules of docs/contract.md: R11.65.
"""

import re
from collections.abc import AsyncIterator

import pytest

from oncegate.cache.redis.streams.stream import stream_key
from oncegate.middleware.rules.keys.key import caller_of_id
from testing.servers import RedisServer
from tests.app.operators.console.browsing import CONSOLE, WRITER, Browsed, Browser
from tests.app.operators.console.test_command_pages import TOKENS, Operated
from tests.app.operators.test_streams import command, died
from tests.app.submitted import serving

IDS = (
    r"[A-Za-z0-9._]{20}:[A-Za-z0-9._]{20}",  # records and commands
    r"(?<![\w.:])[A-Za-z0-9._]{20}(?![\w.:])",  # callers
    r"\b[0-9]{13}-[0-9]+\b",  # entries and dead letters
    r"\b[0-9a-f]{12}\b",  # errors, configurations
    r"\b[\w.-]+/[0-9]+\b",  # processes, workers
)


@pytest.fixture
async def operated(redis_server: RedisServer) -> AsyncIterator[Operated]:
    async with serving(redis_server, admin_tokens=TOKENS) as there:
        yield Operated(there, redis_server)


async def look_for(browser: Browser, what: str) -> Browsed:
    return await browser.send((await browser.open("/find")).form("/find"), what=what)


async def test_every_id_that_a_page_shows_is_taken(operated: Operated, redis_server: RedisServer) -> None:
    browser, there = operated.browser, operated.there
    await browser.log_in(WRITER)
    operated.letters.has_a_reader()
    accepted = (await there.submit()).json()["command"]
    headers = {"idempotency-key": "k-1", "authorization": "Bearer alice", "prefer": "respond-async"}
    assert (await there.client.post("/reports", content=b'{"other": 1}', headers=headers)).status_code == 422
    operated.letters.add(accepted, others=died("no account 1") | {b"aggregate": b"account-7", b"sequence": b"3"})
    stream = stream_key(there.namespace, "commands")
    redis_server.command("XREADGROUP", "GROUP", "billing", "host/1", "COUNT", "1", "STREAMS", stream, ">")
    one = await browser.open(next(link for link in (await operated.error()).links() if "/commands/letter?" in link))
    discarded = operated.letters.add(command(5), others=died("gone"))
    gone = await there.client.post(
        f"/_oncegate/dead-letters/{discarded}/discard",
        params={"stream": "commands"},
        headers={"authorization": f"Bearer {WRITER}"},
        json={"reason": "it is known"},
    )
    assert gone.status_code == 200
    pages = [one, await operated.error(), await browser.open(f"/records/{accepted}")]
    pages += [
        await browser.open(path) for path in ("", "/records", "/unknown", "/commands", "/callers", "/routes", "/audit")
    ]
    assert all(page.status == 200 for page in pages)
    texts = [page.text.partition("Settings, and where each came from")[0] for page in pages]  # names that may look so
    shown = {kind: {found for text in texts for found in re.findall(kind, text)} for kind in IDS}
    assert all(shown.values()), shown
    settings = await there.client.get("/_oncegate/settings/", headers={"authorization": f"Bearer {WRITER}"})
    named = {each["name"] for each in settings.json()["settings"]}  # some names are as long as a digest
    ids = set[str]().union(*shown.values()) - named
    assert {accepted, discarded, caller_of_id(accepted), "host/1"} <= ids
    for what in sorted(ids):
        page = await look_for(browser, what)
        assert page.status == 200, what
        assert "Nothing was found" not in page.text, what


async def test_each_leads_to_its_own_page(operated: Operated) -> None:
    browser, there = operated.browser, operated.there
    await browser.log_in(WRITER)
    answer = (await there.submit()).json()
    accepted, entry = answer["command"], answer["position"]
    letter = operated.letters.add(command(1), others=died("no account 1") | {b"aggregate": b"account-7"})
    to_letter = f"{CONSOLE}/commands/letter"
    policy = (await there.client.get("/_oncegate/policy", headers={"authorization": f"Bearer {WRITER}"})).json()
    expected = {
        accepted: f"{CONSOLE}/records/{accepted}",
        "k-1": f"{CONSOLE}/records/{accepted}",
        entry: f"{CONSOLE}/records/{accepted}",
        letter: to_letter,
        command(1): to_letter,
        "account-7": to_letter,
        caller_of_id(accepted): f"{CONSOLE}/records",
        "/tenants": f"{CONSOLE}/records",
        "tenants": f"{CONSOLE}/commands",
        policy["configuration"]: f"{CONSOLE}/routes",
    }
    for what, path in expected.items():
        assert (await look_for(browser, what)).answer.url.path == path, what


async def test_what_is_in_no_store_is_said_with_the_query_of_the_log(operated: Operated) -> None:
    browser = operated.browser
    await browser.log_in(WRITER)
    found = await look_for(browser, "266e1de9729f-00000006")
    assert "Nothing was found" in found.text
    assert """grep '"request_id":"266e1de9729f-00000006"' ACCESS_LOG""" in found.text
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    assert (
        f"""grep '"trace_id":"{trace}"' ACCESS_LOG"""
        in (await look_for(browser, f"00-{trace}-00f067aa0ba902b7-01")).text
    )
    assert "A request's id" in (await browser.open("/find")).text
    assert "ACCESS_LOG'" not in (await look_for(browser, "'; rm -rf /")).text
