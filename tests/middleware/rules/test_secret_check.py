"""A forgotten secret starts nothing: with another one, no record is found and each retry would be executed again.

Rules of docs/contract.md: R6.25.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oncegate import IdempotencyMiddleware, MemoryCache
from oncegate.app.factory import create_gateway
from oncegate.app.gateway.lifespan import StartRefused
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.cache.redis.store import RedisCache
from oncegate.middleware.rules.checks.secret_check import OtherSecret, check_secret, is_under_another_secret
from oncegate.middleware.rules.keys.digests import Secrets, given_digests
from testing.command_line import invoke
from testing.servers import RedisServer
from tests.middleware.door import Answering, Door

OLD, NEW, THIRD = "o" * 32, "n" * 32, "t" * 32


@pytest.fixture
async def cache(redis_server: RedisServer) -> AsyncIterator[RedisCache]:
    cache = RedisCache.from_url(redis_server.url, timeout=30)
    yield cache
    await cache.close()


async def starts(cache: Any, namespace: str, secret: Secrets) -> bool:
    try:
        await check_secret(cache, namespace, given_digests(secret))
    except OtherSecret:
        return False
    return True


@pytest.mark.parametrize(("first", "other"), [(OLD, NEW), (OLD, None), (None, OLD)])
async def test_another_secret_starts_nothing(
    cache: RedisCache, namespace: str, first: str | None, other: str | None
) -> None:
    assert await starts(cache, namespace, first)
    assert await starts(cache, namespace, first)
    with pytest.raises(OtherSecret, match=f"namespace {namespace} are under another secret") as refusal:
        await check_secret(cache, namespace, given_digests(other))
    assert not any(each in str(refusal.value) for each in (OLD, NEW, THIRD))
    assert await is_under_another_secret(cache, namespace, given_digests(other))
    assert not await is_under_another_secret(cache, namespace, given_digests(first))
    assert await starts(cache, f"{namespace}-2", other), "another namespace"


async def test_a_secret_is_replaced_by_way_of_two_and_not_rolled_back(cache: RedisCache, namespace: str) -> None:
    for secret, goes in [
        (OLD, True),
        (NEW, False),
        ([OLD, NEW], True),
        (OLD, True),  # one that is replaced later
        ([NEW, OLD], True),
        ([THIRD, OLD], True),  # of those in use, one is enough
        ([NEW, OLD], True),
        (NEW, True),
        (OLD, False),
        ([OLD, NEW], True),  # rolled back by way of two
        (OLD, True),
    ]:
        assert await starts(cache, namespace, secret) == goes, secret


async def test_it_is_no_record_and_holds_no_secret(
    cache: RedisCache, namespace: str, redis_server: RedisServer
) -> None:
    await check_secret(cache, namespace, given_digests([NEW, OLD]))
    assert (await cache.scan(namespace)).keys == ()
    held = redis_server.command("GET", f"{{{namespace}:secret}}")
    assert len(held.split()) == 2
    assert OLD.encode() not in held


async def test_a_cache_of_one_process_keeps_none() -> None:
    cache = MemoryCache()
    assert await starts(cache, "n", OLD)
    assert await starts(cache, "n", NEW)


def gateway_settings(redis_server: RedisServer, namespace: str, secret: str) -> GatewaySettings:
    return GatewaySettings(
        upstream="http://127.0.0.1:9", cache=redis_server.url, namespace=namespace, secret=secret, cache_timeout=10
    )


async def test_a_gateway_that_has_forgotten_its_secret_does_not_start(
    redis_server: RedisServer, namespace: str
) -> None:
    first = create_gateway(gateway_settings(redis_server, namespace, OLD))
    await first.lifespan.start()
    await first.lifespan.stop()
    with pytest.raises(StartRefused, match="under another secret"):
        await create_gateway(gateway_settings(redis_server, namespace, "")).lifespan.start()


async def test_nor_does_an_app(cache: RedisCache, namespace: str) -> None:
    async def lifespan(secret: Secrets) -> list[str]:
        sent: list[str] = []
        messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

        async def app(_: Any, receive: Any, send: Any) -> None:
            for end in ("startup", "shutdown"):
                assert (await receive())["type"] == f"lifespan.{end}"
                await send({"type": f"lifespan.{end}.complete"})

        async def receive() -> Any:
            return next(messages)

        async def send(message: Any) -> None:
            sent.append(message["type"])

        made = IdempotencyMiddleware(app, cache=cache, namespace=namespace, secret=secret)
        await made({"type": "lifespan"}, receive, send)
        return sent

    assert await lifespan(OLD) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert await lifespan(None) == ["lifespan.startup.failed"]


async def test_the_command_line_says_so(cache: RedisCache, namespace: str, redis_server: RedisServer) -> None:
    there = Door(Answering(201), cache, namespace, secret=OLD)
    await check_secret(cache, namespace, given_digests(OLD))
    await there.send(key="k")
    where = ["--cache", redis_server.url, "--namespace", namespace]
    done = await asyncio.to_thread(invoke, "keys", "show", "k", *where)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "under another secret" in done.stderr
    found = await asyncio.to_thread(invoke, "keys", "show", "k", *where, ONCEGATE_SECRET=OLD)
    assert found.returncode == 0
    none = await asyncio.to_thread(invoke, "keys", "show", "other", *where, ONCEGATE_SECRET=OLD)
    assert "never made" in none.stderr
