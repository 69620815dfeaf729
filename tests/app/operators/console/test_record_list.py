"""The console's records: the newest first, by a choice in the address, with counts, and honest about what was not looked at.

Rules of docs/contract.md: R11.43.
"""

import html
import os
from typing import Any

import httpx
import pytest

from oncegate.app.operators.console.records import records
from oncegate.app.settings.admin_tokens import AdminToken
from oncegate.cache.record import Record, State, Trace
from oncegate.middleware.outcome.responses import now_ms
from oncegate.middleware.rules.keys.key import caller_of_id, record_id, record_key, scope_parts
from testing.served import served
from tests.app.operators.console.browsing import CONSOLE, READER, Browser

TOKENS = [AdminToken.of("rita", READER, writes=False).setting()]
HOSTILE = '/<script>alert("1")</script>\'"&'


class Pages:
    """A reader's browser, and what is in the cache of the gateway."""

    def __init__(self, client: httpx.AsyncClient, cache: Any) -> None:
        self.browser = Browser(client)
        self._cache = cache

    async def add(
        self, key: str, route: str = "/payments", state: State = State.SUCCEEDED, ago: float = 0, caller: str = "a"
    ) -> str:
        """A record that began ``ago`` seconds ago; its id."""
        scope = scope_parts({b"authorization": [caller.encode()]}, (b"authorization",))
        name = record_key("default", key, scope)
        trace = Trace(gateway="here/1", begun_at_ms=now_ms() - round(ago * 1000), method="POST", route=route)
        await self._cache.complete(name, Record(state, os.urandom(16), b"f" * 16, 1, trace=trace), ttl_ms=600_000)
        return record_id(name)

    async def listed(self, query: str = "", status: int = 200) -> list[str]:
        """The records that a page lists, in its order."""
        page = await self.browser.open(f"/records{query}")
        assert page.status == status, page.text
        return [link.rpartition("/")[2] for link in page.links() if link.startswith(f"{CONSOLE}/records/")]


async def pages_of(**settings: Any) -> Any:
    """(See `served`.)"""
    return served("http://127.0.0.1:1", admin_tokens=TOKENS, **settings)


async def test_the_newest_come_first_by_what_the_address_says() -> None:
    async with await pages_of() as (client, gateway):
        there = Pages(client, gateway.lasting.cache)
        await there.browser.log_in(READER)
        assert await there.listed() == []
        old = await there.add("k-1", ago=4000)
        new = await there.add("k-2", ago=1)
        lost = await there.add("k-3", state=State.UNKNOWN, route="/refunds", ago=100)
        other = await there.add("k-4", caller="b", ago=50)
        assert await there.listed() == [new, other, lost, old]
        assert await there.listed("?state=unknown") == [lost]
        assert await there.listed("?route=/payments") == [new, other, old]
        assert await there.listed("?since=5m") == [new, other, lost]
        assert await there.listed(f"?caller={caller_of_id(other)}") == [other]
        assert await there.listed("?route=/payments&since=5m&state=failed&caller=") == []
        page = await there.browser.open("/records?route=/payments&since=5m")
        assert "4 records were looked at, which are all" in page.text
        assert "succeeded 2" in page.text
        assert f"{CONSOLE}/records?route=%2Fpayments&since=5m&state=succeeded" in page.links()
        (form,) = [form for form in page.forms if form.action == f"{CONSOLE}/records"]
        assert (form.method, form.fields["route"]) == ("get", "/payments")


async def test_what_was_not_looked_at_is_said_and_led_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "SCANNED", 1)
    monkeypatch.setattr("oncegate.app.operators.records.newest._STEP", 3)
    async with await pages_of() as (client, gateway):
        there = Pages(client, gateway.lasting.cache)
        await there.browser.log_in(READER)
        ids = {await there.add(f"k-{number}") for number in range(7)}
        page = await there.browser.open("/records")
        assert "3 records were looked at: there are others, which may be newer" in page.text
        seen: set[str] = set()
        while True:
            seen |= {link.rpartition("/")[2] for link in page.links() if link.startswith(f"{CONSOLE}/records/")}
            further = [str(given["href"]) for tag, given in page.tags if tag == "a" and given.get("rel") == "next"]
            if not further:
                break
            page = await there.browser.open(further[0])
        assert seen == ids
        assert "which are all" not in page.text  # it is the end of several


@pytest.mark.parametrize(
    "query", ["?state=absurd", "?caller=alice", "?since=1y", "?cursor=%00", f"?route={'x' * 1001}"]
)
async def test_an_address_that_says_nothing_is_refused_in_words(query: str) -> None:
    async with await pages_of() as (client, gateway):
        there = Pages(client, gateway.lasting.cache)
        await there.browser.log_in(READER)
        assert await there.listed(query, 400) == []


async def test_what_comes_from_elsewhere_is_text() -> None:
    async with await pages_of() as (client, gateway):
        there = Pages(client, gateway.lasting.cache)
        await there.browser.log_in(READER)
        await there.add("k-1", route=HOSTILE)
        page = await there.browser.open("/records")
        assert HOSTILE in page.text
        for path in ("/records", f"/records?route={HOSTILE.replace('&', '%26')}"):
            answer = (await there.browser.open(path)).answer
            assert answer.status_code == 200
            assert "<script>alert" not in answer.text
            assert html.escape(HOSTILE[:9]) in answer.text


async def test_records_are_for_who_is_logged_in() -> None:
    async with await pages_of() as (client, gateway):
        there = Pages(client, gateway.lasting.cache)
        await there.add("k-1")
        page = await there.browser.open("/records")
        assert (page.status, page.form("/log-in").fields["then"]) == (401, "/records")
