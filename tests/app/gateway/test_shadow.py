"""A gateway that observes: what its own wire, metrics and pages have of it.

Rules of docs/contract.md: R7.21, R7.23.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from oncegate.app.settings.advice import settings_advice
from oncegate.app.settings.gateway import GatewaySettings
from testing.served import raw, served
from testing.servers import free_port
from testing.upstreams import OK, PATIENCE, Behaviour, Peer, Upstream, answering
from testing.waiting import until

SHADOW: dict[str, Any] = {"idempotency": {"enforce": 0, "shadow": True}, "via": False}


async def decided(client: httpx.AsyncClient) -> dict[tuple[str, str], float]:
    """How often what was decided, by mode."""
    page = (await client.get("/_oncegate/metrics")).text
    return {
        (sample.labels["mode"], sample.labels["decision"]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "oncegate_requests_total" and sample.value
    }


async def observes(client: httpx.AsyncClient, **decisions: float) -> None:
    """Waits until so much was observed, and nothing else decided."""
    wanted = {("shadow", name.replace("_", "-")): count for name, count in decisions.items()}
    found: dict[tuple[str, str], float] = {}

    async def has_come() -> bool:
        nonlocal found
        found = await decided(client)
        return sum(found.values()) >= sum(wanted.values())

    await until(has_come, f"{wanted} was observed")
    assert found == wanted


def post(key: str = "k-1", body: bytes = b"{}", *fields: bytes) -> bytes:
    lines = [b"POST /payments HTTP/1.1", b"host: a", b"idempotency-key: %b" % key.encode(), *fields]
    return b"\r\n".join([*lines, b"content-length: %d" % len(body), b"connection: close", b"", b""]) + body


RESPONSES = {
    "small": OK,
    "empty": b"HTTP/1.1 204 No\r\nx-a: 1\r\n\r\n",
    "nothing": b"HTTP/1.1 201 Made\r\ncontent-length: 0\r\nx-a: 1\r\nx-a: 2\r\n\r\n",
    "large": b"HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n" + b"x" * 3_000_000,
    "ours": b"HTTP/1.1 200 OK\r\nidempotent-replayed: true\r\ncache-status: a; hit\r\nidempotency-key: b\r\n"
    b"content-length: 0\r\n\r\n",
}


@pytest.mark.parametrize("name", RESPONSES)
async def test_what_the_upstream_has_sent_is_what_comes(name: str) -> None:
    """The very bytes, but for the fields of the connection, and a Date, which whoever forwards has to add."""
    response = RESPONSES[name]
    async with Upstream(answering(response)) as upstream, served(upstream.url, **SHADOW) as (client, _):
        for _ in range(2):
            head, _, body = (await raw(client, post())).partition(b"\r\n\r\n")
            lines = [line for line in head.split(b"\r\n")[1:] if not line.startswith((b"date:", b"connection:"))]
            theirs, _, sent = response.partition(b"\r\n\r\n")
            assert lines == theirs.split(b"\r\n")[1:]
            assert body == sent
        assert upstream.arrivals == 2
        assert [request.value("idempotency-attempt") for request in upstream.requests] == [None, None]
        await observes(client, first=1, **{"duplicate" if name == "large" else "replayed": 1})


def slowly(seconds: float) -> Behaviour:
    async def behave(peer: Peer) -> None:
        while True:
            await peer.request()
            await asyncio.sleep(seconds)
            await peer.send(OK)

    return behave


async def test_a_response_that_takes_longer_than_response_timeout_comes() -> None:
    """Enforcement would answer `upstream-timeout` then, and so would what passes; its attempt would go on, and be kept."""
    settings = {**SHADOW, "idempotency": {"enforce": 0, "shadow": True, "response_timeout": 0.2}}
    async with Upstream(slowly(1.0)) as upstream, served(upstream.url, **settings) as (client, _):
        assert (await raw(client, post())).startswith(b"HTTP/1.1 200")
        await observes(client, upstream_timeout=1)
        assert (await raw(client, post())).startswith(b"HTTP/1.1 200")
        await observes(client, upstream_timeout=1, replayed=1)


async def test_an_upstream_that_is_not_there_is_as_for_what_passes() -> None:
    async with served(f"http://127.0.0.1:{free_port()}", **SHADOW) as (client, _):
        answer = await client.post("/payments", headers={"idempotency-key": "k-1"})
        assert (answer.status_code, answer.json()["code"]) == (502, "upstream-unreachable")
        assert "idempotency-key" not in answer.headers
        await observes(client, upstream_unreachable=1)


async def test_an_upstream_that_breaks_leaves_the_outcome_unknown() -> None:
    async def behave(peer: Peer) -> None:
        await peer.request()
        peer.reset()

    async with Upstream(behave) as upstream, served(upstream.url, **SHADOW) as (client, _):
        for _ in range(2):
            assert (await client.post("/payments", headers={"idempotency-key": "k-1"})).status_code == 502
        assert upstream.arrivals == 2
        await observes(client, upstream_failed=1, outcome_unknown=1)


async def test_an_upstream_that_answers_before_it_has_the_body_holds_up_nobody() -> None:
    """The body, which never comes, is waited for no longer than the cache would be."""

    async def behave(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(b"HTTP/1.1 413 Large\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno")
        await peer.hang()

    async with Upstream(behave) as upstream, served(upstream.url, body_timeout=300, **SHADOW) as (client, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(post(body=b"x" * 1000)[:-500])
        async with asyncio.timeout(PATIENCE):
            assert (await reader.readuntil(b"\r\n\r\nno")).startswith(b"HTTP/1.1 413")
        writer.close()


async def test_a_client_that_leaves_does_not_end_the_first_request() -> None:
    go = asyncio.Event()

    async def behave(peer: Peer) -> None:
        while True:
            await peer.request()
            await go.wait()
            await peer.send(OK)

    async with Upstream(behave) as upstream, served(upstream.url, **SHADOW) as (client, _):
        _, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(post())
        await until(lambda: upstream.arrivals)
        writer.close()
        await writer.wait_closed()
        go.set()
        await observes(client, first=1)
        assert (await raw(client, post())).startswith(b"HTTP/1.1 200")
        await observes(client, first=1, replayed=1)


async def test_what_is_not_under_enforcement_shows() -> None:
    routes = [
        {"path": "/new/*", "enforce": 5, "shadow": True},
        {"path": "/both", "methods": ["POST"], "enforce": 0},
        {"path": "/both", "methods": ["PUT"], "shadow": True},
    ]
    async with Upstream(answering(OK)) as upstream, served(upstream.url, routes=routes) as (client, _):
        page = (await client.get("/_oncegate/metrics")).text
        gauges = {
            line for line in page.splitlines() if line.startswith(("oncegate_enforced_percent", "oncegate_shadowed"))
        }
        assert gauges == {
            'oncegate_enforced_percent{route="/new/*"} 5.0',
            'oncegate_enforced_percent{route="/both"} 0.0',
            'oncegate_enforced_percent{route="*"} 100.0',
            'oncegate_shadowed{route="/new/*"} 1.0',
            'oncegate_shadowed{route="/both"} 1.0',
            'oncegate_shadowed{route="*"} 0.0',
        }
        policy = (await client.get("/_oncegate/policy")).json()
        assert [route["enforced_percent"] for route in policy["routes"]] == [5, 0, 100, 100]


def test_a_log_level_that_hides_what_is_observed_is_advised_against() -> None:
    def advised(**settings: Any) -> Callable[[], bool]:
        made = GatewaySettings(upstream="http://a", **settings)
        return lambda: any("shadow is on" in line for line in settings_advice(made))

    assert advised(log_level="warning", idempotency={"enforce": 0, "shadow": True})()
    assert advised(log_level="error", routes=[{"path": "/a", "enforce": 0, "shadow": True}])()
    assert not advised(log_level="info", idempotency={"enforce": 0, "shadow": True})()
    assert not advised(log_level="warning", idempotency={"shadow": True})()


def test_a_part_of_what_is_submitted_is_refused() -> None:
    rules: dict[str, Any] = {"cache": "redis://a", "idempotency": {"enforce": 5}}
    route: Any = {"path": "/a", "mode": "async", "on_missing_key": "reject"}
    refused = r'routes\.0\.enforce: is 5, and mode = "async".*set enforce = 100 on this route'
    with pytest.raises(ValueError, match=refused):
        GatewaySettings(upstream="http://a", routes=(route,), **rules)
    GatewaySettings(upstream="http://a", routes=(route | {"enforce": 100},), **rules)
