"""What docs/faq.md says to set is what helps: each block of configuration, with the fault that its question is about.

Rules of docs/contract.md: R2.12, R4.13.
"""

import logging
import re
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.pages import BLOCK
from testing.served import served
from testing.upstreams import OK, Upstream, answering

PAGE = (Path(__file__).parents[2] / "docs/faq.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
ANSWER = b"HTTP/1.1 %d A\r\ncontent-length: 2\r\n\r\nok"


def advised(question: str) -> dict[str, Any]:
    """The configuration that the page shows under ``question``."""
    (found,) = [block for kind, block in BLOCK.findall(SECTIONS[question]) if kind == "toml"]
    return tomllib.loads(found)


def pay(client: httpx.AsyncClient, path: str = "/x", key: str | None = "k", **more: Any) -> Any:
    headers = ({"Idempotency-Key": key} if key else {}) | more.pop("headers", {})
    return client.post(path, headers=headers, **{"content": b"a"} | more)


async def test_browsers_that_a_cookie_names_are_served_once_the_scope_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = advised("Why do browsers get 401 `caller-missing`?")
    alice, bob = ({"Cookie": f"session={name}"} for name in ("alice", "bob"))
    async with Upstream(answering(OK)) as upstream:
        async with served(upstream.url) as (client, _):
            with caplog.at_level(logging.WARNING, "oncegate.http"):
                refused = [await pay(client, headers=alice) for _ in range(2)]
            assert [(each.status_code, each.json()["code"]) for each in refused] == [(401, "caller-missing")] * 2
            assert upstream.arrivals == 0
        assert len([each for each in caplog.records if "header:Cookie" in each.getMessage()]) == 1
        async with served(upstream.url, **settings) as (client, _):
            for headers in (alice, bob, alice):
                assert (await pay(client, headers=headers)).status_code == 200
            assert upstream.arrivals == 2


async def test_a_large_upload_is_taken_with_a_key_where_the_route_says_so() -> None:
    settings = advised("Why is my upload refused only with a key?")
    upload: dict[str, Any] = {"content": b"a" * (1 << 20) + b"a"}
    async with Upstream(answering(OK)) as upstream:
        async with served(upstream.url) as (client, _):
            assert (await pay(client, "/uploads/1", None, **upload)).status_code == 200
            refused = await pay(client, "/uploads/1", **upload)
            assert (refused.status_code, refused.json()["code"]) == (413, "payload-too-large")
        async with served(upstream.url, **settings) as (client, _):
            first, retry = [await pay(client, "/uploads/1", **upload) for _ in range(2)]
            assert (first.status_code, retry.headers["idempotent-replayed"]) == (200, "true")
            assert (await pay(client, "/payments", "other", **upload)).status_code == 413
        assert upstream.arrivals == 2


async def test_the_order_of_members_counts_until_the_fingerprint_is_of_json() -> None:
    settings = advised("Why do I get 422 for what is the same request?")
    bodies = [b'{"a": 1, "b": 2}', b'{"b":2,"a":1}']
    async with Upstream(answering(OK)) as upstream:
        for given, last in (({}, 422), (settings, 200)):
            async with served(upstream.url, **given) as (client, _):
                answers = [(await pay(client, content=body)).status_code for body in bodies]
                assert answers == [200, last]


async def test_a_declined_payment_is_executed_again_until_it_is_a_result() -> None:
    settings = advised("A declined payment is 402. Should a retry be executed?")
    for given, executed in (({}, 2), (settings, 1)):
        async with Upstream(answering(ANSWER % 402)) as upstream, served(upstream.url, **given) as (client, _):
            assert [(await pay(client, "/payments/1")).status_code for _ in range(2)] == [402, 402]
            assert upstream.arrivals == executed


async def test_one_route_alone_is_enforced() -> None:
    settings = advised("Can it be for one route only?")
    for given, executed in (({}, 2), (settings, 3)):
        async with Upstream(answering(OK)) as upstream, served(upstream.url, **given) as (client, _):
            for path in ("/payments/1", "/payments/1", "/webhook", "/webhook"):
                await pay(client, path, f"key-{path}")
            assert upstream.arrivals == executed


async def test_scripts_can_read_a_problem_where_their_origin_is_named() -> None:
    settings = advised("Can scripts in browsers call it?")
    for given, allowed in (({}, None), (settings, "https://shop.example")):
        async with Upstream(answering(OK)) as upstream, served(upstream.url, **given) as (client, _):
            answer = await pay(client, key='"', headers={"Origin": "https://shop.example"})
            assert (answer.status_code, answer.headers.get("access-control-allow-origin")) == (400, allowed)


def test_every_configuration_of_the_page_is_followed() -> None:
    shown = {name for name, text in SECTIONS.items() if any(kind == "toml" for kind, _ in BLOCK.findall(text))}
    followed = set(re.findall(r'= advised\("(.*)"\)$', Path(__file__).read_text("utf-8"), re.M))
    assert followed == shown
