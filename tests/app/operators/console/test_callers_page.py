"""The page of callers: who was refused, with links to the records of each, and without a key or a credential.

Rules of docs/contract.md: R11.64.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

import httpx
from markupsafe import escape

from oncegate.app.settings.admin_tokens import AdminToken
from oncegate.middleware.rules.keys.key import caller_of_id
from testing.served import served
from testing.upstreams import OK, Upstream, answering
from tests.app.operators.console.browsing import CONSOLE, READER, Browser

TOKENS = [AdminToken.of("rita", READER, writes=False).setting()]
HOSTILE = "/never&amp;'\"*"
CREDENTIAL = "Bearer alice-s-own-credential"


@asynccontextmanager
async def reading(**settings: Any) -> AsyncIterator[tuple[Browser, httpx.AsyncClient]]:
    """A reader's browser, and a client who pays."""
    async with (
        Upstream(answering(OK)) as upstream,
        served(upstream.url, admin_tokens=TOKENS, **settings) as (client, _),
    ):
        browser = Browser(client)
        await browser.log_in(READER)
        yield browser, client


async def pay(client: httpx.AsyncClient, body: bytes, status: int, path: str = "/payments") -> httpx.Response:
    headers = {"idempotency-key": "k-1", "authorization": CREDENTIAL}
    answer = await client.post(path, content=body, headers=headers)
    assert answer.status_code == status
    return answer


async def test_it_says_who_reuses_keys_and_leads_to_their_records() -> None:
    async with reading(routes=[{"path": "/payments"}]) as (browser, client):
        assert "Nobody was refused" in (await browser.open("/callers")).text
        await pay(client, b"a", 200)
        caller = caller_of_id((await pay(client, b"b", 422)).json()["record"])
        await pay(client, b"c", 422)
        page = await browser.open("/callers?minutes=60")
        assert f"key-reused 422 all {caller} /payments 2 2" in page.text
        assert "2 refusals in the last" in page.text
        assert "not listed" not in page.text
        of_both = f"{CONSOLE}/records?{urlencode({'caller': caller, 'route': '/payments'})}"
        assert {of_both, f"{CONSOLE}/records?caller={caller}"} <= set(page.links())
        assert f"{caller} succeeded POST /payments" in (await browser.open(of_both)).text
        assert CREDENTIAL.split()[1] not in page.answer.text
        assert (await browser.open("/callers?minutes=7")).status == 400


async def test_a_route_that_is_markup_is_text() -> None:
    async with reading(routes=[{"path": HOSTILE, "on_missing_key": "reject"}]) as (browser, client):
        path = quote(HOSTILE.replace("*", "x"))
        answer = await client.post(path, content=b"a", headers={"authorization": CREDENTIAL})
        assert answer.status_code == 400
        page = await browser.open("/callers")
        assert HOSTILE in page.text
        assert f"<code>{escape(HOSTILE)}</code>" in page.answer.text


async def test_it_is_for_who_is_logged_in() -> None:
    async with served("http://127.0.0.1:1", admin_tokens=TOKENS) as (client, _):
        assert (await Browser(client).open("/callers")).status == 401
