"""healthz and readyz: what they say, what they cost, and that nothing under the prefix reaches the upstream.

Rules of docs/contract.md: R11.1, R11.2, R11.7.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from oncegate.app.operators.pages.api import create_app
from oncegate.app.operators.pages.operations import Operations
from oncegate.app.operators.readiness import Readiness
from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.memory.store import MemoryCache
from oncegate.middleware.outcome.errors import NotProcessed
from testing.asgi_client import Client
from testing.served import served
from testing.servers import RedisServer, free_port
from testing.upstreams import OK, Upstream, answering


class Away(MemoryCache):
    """A cache that can't be reached."""

    async def check(self) -> list[str]:
        raise CacheUnavailable("no connection")


def ready(probe: Callable[[], Awaitable[object]], cache: MemoryCache, **options: Any) -> Operations:
    readiness = Readiness(probe=probe, cache=cache, **options)
    create = partial(create_app, readiness=readiness, metrics=lambda _: (b"", ""), policy=lambda: b"")
    return Operations("/_oncegate", readiness, create)


async def readiness_of(operations: Operations) -> Client:
    client = Client("GET", b"/_oncegate/readyz")
    await client.call(operations)
    return client


async def test_health_is_up_even_without_an_upstream() -> None:
    async with served(f"http://127.0.0.1:{free_port()}") as (client, _):
        answer = await client.get("/_oncegate/healthz")
        assert (answer.status_code, answer.json()) == (200, {"status": "up"})
        assert "date" in answer.headers
        assert (await client.head("/_oncegate/healthz")).status_code == 200


async def test_ready_follows_the_upstream() -> None:
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        answer = await client.get("/_oncegate/readyz")
        assert answer.status_code == 200
        assert answer.json() == {"status": "ready", "upstream": "reachable", "cache": "available"}
        assert upstream.arrivals == 0
    async with served(f"http://127.0.0.1:{free_port()}") as (client, _):
        answer = await client.get("/_oncegate/readyz")
        assert answer.status_code == 503
        assert answer.json() == {"status": "not ready", "upstream": "unreachable", "cache": "available"}


async def test_not_ready_while_draining() -> None:
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, gateway):
        gateway.lasting.readiness.draining = True
        answer = await client.get("/_oncegate/readyz")
        assert (answer.status_code, answer.json()["status"]) == (503, "draining")
        assert (await client.get("/_oncegate/healthz")).status_code == 200


@pytest.mark.parametrize(("needs_cache", "status"), [(False, 200), (True, 503)])
async def test_the_cache_counts_only_where_it_is_asked_to(needs_cache: bool, status: int) -> None:
    async def probe() -> None: ...

    client = await readiness_of(ready(probe, Away(), needs_cache=needs_cache))
    assert client.status == status
    assert b'"cache":"unavailable"' in client.body


@pytest.mark.parametrize("path", ["", "/", "/x", "/records/abc", "/healthz/x", "/metrics"])
async def test_nothing_under_the_prefix_is_forwarded(path: str) -> None:
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        answer = await client.post(f"/_oncegate{path}", headers={"Idempotency-Key": "a"})
        assert answer.status_code in (404, 405)
        assert answer.headers["content-type"] == "application/problem+json"
        assert upstream.arrivals == 0
        assert (await client.get("/_oncegateway")).status_code == 200
        assert upstream.arrivals == 1


async def test_an_operation_is_for_reading() -> None:
    async with served(f"http://127.0.0.1:{free_port()}") as (client, _):
        answer = await client.post("/_oncegate/healthz")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_many_who_ask_cost_one_probe() -> None:
    probes: list[None] = []
    begun, answered = asyncio.Event(), asyncio.Event()

    async def probe() -> None:
        probes.append(None)
        begun.set()
        await answered.wait()

    operations = ready(probe, MemoryCache())
    first = asyncio.create_task(readiness_of(operations))
    await begun.wait()
    others = [asyncio.create_task(readiness_of(operations)) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()  # its client gave up: the others still get the answer
    await asyncio.sleep(0)
    answered.set()
    assert [client.status for client in await asyncio.gather(*others)] == [200] * 5
    assert (await readiness_of(operations)).status == 200
    assert len(probes) == 1


async def test_a_state_is_asked_for_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncegate.app.operators.readiness.KEEP_SECONDS", 0.0)
    answers: list[Exception | None] = [None, NotProcessed("refused"), TimeoutError(), OSError(), None]

    async def probe() -> None:
        answer = answers.pop(0)
        if answer:
            raise answer

    operations = ready(probe, MemoryCache())
    assert [(await readiness_of(operations)).status for _ in range(5)] == [200, 503, 503, 503, 200]


async def test_a_probe_that_hangs_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncegate.app.operators.readiness.PROBE_SECONDS", 0.01)
    never = asyncio.Event()

    async def probe() -> Any:
        await never.wait()

    assert (await readiness_of(ready(probe, MemoryCache()))).status == 503


async def test_reading_is_told_from_writing() -> None:
    """A Redis that is full, a replica, or without replicas, answers replays and refuses new keys."""
    for needs_cache, status in ((False, 200), (True, 503)):
        with RedisServer(config={"min-replicas-to-write": "1"}) as redis:
            settings: dict[str, Any] = {"cache": redis.url, "ready_needs_cache": needs_cache, "cache_timeout": 10}
            async with Upstream(answering(OK)) as upstream, served(upstream.url, **settings) as (client, _):
                answer = await client.get("/_oncegate/readyz")
                assert (answer.status_code, answer.json()["cache"]) == (status, "read-only")
                shown = (await client.get("/_oncegate/metrics")).text
                assert "oncegate_cache_readable 1.0" in shown
                assert "oncegate_cache_writable 0.0" in shown


async def test_probes_write_to_the_cache_now_and_then_and_leave_nothing() -> None:
    with RedisServer() as redis:
        settings: dict[str, Any] = {"cache": redis.url, "cache_timeout": 10}
        async with Upstream(answering(OK)) as upstream, served(upstream.url, **settings) as (client, _):
            assert (await client.get("/_oncegate/readyz")).json()["cache"] == "available"
            before = redis.calls("evalsha")
            for _ in range(5):
                assert (await client.get("/_oncegate/readyz")).json()["cache"] == "available"
            assert redis.calls("evalsha") - before <= 3, "one probe more at most, on a machine that took its time"
            assert "oncegate_cache_writable 1.0" in (await client.get("/_oncegate/metrics")).text
            kept = [b"{default:%b:secret}" % rule for rule in (b"header", b"routes", b"scope")]
            assert sorted(redis.command("KEYS", "*")) == [*kept, b"{default:secret}"], (
                "what their addresses are made by"
            )
