"""Who changes what addresses are made of hears of it at the start, and before: no retry from before finds its record.

Rules of docs/contract.md: R12.70.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from oncegate import IdempotencyMiddleware, IdempotencySettings, MemoryCache, Route
from oncegate.app.factory import create_gateway
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.cache.redis.store import RedisCache
from oncegate.middleware.rules.checks import address_check
from oncegate.middleware.rules.checks.address_check import address_rules, changed_rules, check_addresses
from oncegate.middleware.rules.keys.digests import UNKEYED
from oncegate.middleware.rules.policies import Policies
from oncegate.middleware.rules.policy import TOKEN_HEADER
from testing.command_line import invoke
from testing.servers import RedisServer
from tests.middleware.door import Answering, Door

BY_TENANT = ("header:X-Tenant",)


@pytest.fixture
async def cache(redis_server: RedisServer) -> AsyncIterator[RedisCache]:
    cache = RedisCache.from_url(redis_server.url, timeout=30)
    yield cache
    await cache.close()


@pytest.fixture(autouse=True)
def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_check, "_logged", set())


def rules(
    *routes: Route, by_function: bool = False, token: str = TOKEN_HEADER, **settings: Any
) -> address_check.AddressRules:
    return address_rules(Policies(IdempotencySettings(**settings), routes, token), by_function=by_function)


def first_words(changed: Sequence[str]) -> list[str]:
    return [each.split()[0] for each in changed]


async def change(cache: Any, namespace: str, before: Any, after: Any) -> list[str]:
    """Which rules are seen to have changed by a start with those of ``after``; then by one more."""
    assert await check_addresses(cache, namespace, UNKEYED, before) == []
    assert await check_addresses(cache, namespace, UNKEYED, before) == []
    found = first_words(await changed_rules(cache, namespace, after))
    assert found == first_words(await changed_rules(cache, namespace, after)), "looking changes nothing"
    lines = await check_addresses(cache, namespace, UNKEYED, after)
    assert bool(lines) == bool(found)
    assert await changed_rules(cache, namespace, after) == []
    assert bool(await changed_rules(cache, namespace, before)) == bool(found), "a rollback is a change"
    return found


REFUNDS, SPECIAL = Route(path="/refunds/*", scope=BY_TENANT), Route(path="/refunds/special")


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (rules(), rules(scope=BY_TENANT), ["scope"]),
        (rules(scope=["header:A", "header:B"]), rules(scope=["header:B", "header:A"]), ["scope"]),
        (rules(scope=["jwt:iss", "jwt:sub"]), rules(scope=["jwt:sub"]), ["scope"]),
        (rules(), rules(by_function=True), ["scope"]),
        (rules(scope=["jwt:sub"]), rules(scope=["jwt:sub"], token="X-Token"), ["scope"]),
        (rules(), rules(header="X-Key"), ["header"]),
        (rules(header="X-Key"), rules(header="X-Id", scope=BY_TENANT), ["header", "scope"]),
        (rules(), rules(REFUNDS), ["routes"]),
        (rules(REFUNDS), rules(), ["routes"]),
        (rules(REFUNDS), rules(SPECIAL, REFUNDS), ["routes"]),
        (rules(REFUNDS), rules(Route(path="/refunds/*", header="X-Key")), ["routes"]),
        (rules(REFUNDS), rules(Route(path="/refunds/x/*", scope=BY_TENANT)), ["routes"]),
    ],
)
async def test_a_change_is_named(cache: RedisCache, namespace: str, before: Any, after: Any, found: list[str]) -> None:
    assert await change(cache, namespace, before, after) == found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (rules(), rules(scope=["header:Authorization"])),
        (rules(), rules(scope=["header:authorization"], header="idempotency-key")),
        (rules(), rules(Route(path="/x", ttl=5), Route(path="/y", mode="async"), ttl=60, lease=5, on_error="replay")),
        (rules(), rules(header="X-Key", aliases=["Idempotency-Key"])),
        (rules(header="X-Key", aliases=["Idempotency-Key"]), rules(header="X-Key")),
        (rules(), rules(token="X-Token")),
        (rules(REFUNDS), rules(REFUNDS, SPECIAL, aliases=["X-Key"])),
    ],
)
async def test_what_moves_no_address_is_none(cache: RedisCache, namespace: str, before: Any, after: Any) -> None:
    assert await change(cache, namespace, before, after) == []


async def test_the_line_says_what_and_what_to_do_once_in_a_process(cache: RedisCache, namespace: str) -> None:
    one, other = rules(), rules(scope=BY_TENANT)
    assert await check_addresses(cache, namespace, UNKEYED, one) == []
    (line,) = await check_addresses(cache, namespace, UNKEYED, other)
    for part in (namespace, "scope", "executed again", "while no client retries", "another namespace is no way"):
        assert part in line
    assert "\n" not in line
    for each in (one, other, one):  # two apps in one process that share a namespace
        assert await check_addresses(cache, namespace, UNKEYED, each) == []


async def test_they_are_no_records_and_a_cache_of_one_process_keeps_none(cache: RedisCache, namespace: str) -> None:
    await check_addresses(cache, namespace, UNKEYED, rules())
    assert (await cache.scan(namespace)).keys == ()
    memory = MemoryCache()
    assert await check_addresses(memory, namespace, UNKEYED, rules()) == []
    assert await check_addresses(memory, namespace, UNKEYED, rules(scope=BY_TENANT)) == []


def lines_about(caplog: pytest.LogCaptureFixture, namespace: str) -> list[str]:
    found = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    return [each for each in found if f"namespace {namespace}: not as at the last start" in each]


async def test_a_gateway_logs_it_and_starts(
    redis_server: RedisServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    for scope, times in [(None, 0), (BY_TENANT, 1), (BY_TENANT, 1)]:
        made = create_gateway(
            GatewaySettings(
                upstream="http://127.0.0.1:9",
                cache=redis_server.url,
                namespace=namespace,
                cache_timeout=10,
                idempotency=IdempotencySettings(scope=scope),
            )
        )
        await made.lifespan.start()
        await made.lifespan.stop()
        assert len(lines_about(caplog, namespace)) == times


async def test_so_does_an_app(cache: RedisCache, namespace: str, caplog: pytest.LogCaptureFixture) -> None:
    async def lifespan(**rules: Any) -> list[str]:
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

        await IdempotencyMiddleware(app, cache=cache, namespace=namespace, **rules)({"type": "lifespan"}, receive, send)
        return sent

    both = ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert await lifespan() == both
    assert lines_about(caplog, namespace) == []
    assert await lifespan(caller=lambda scope: "a") == both
    assert len(lines_about(caplog, namespace)) == 1


async def test_check_finds_it_before_it_goes_live_and_keys_show_names_it(
    cache: RedisCache, namespace: str, redis_server: RedisServer, tmp_path: Any
) -> None:
    await Door(Answering(201), cache, namespace).send(key="k")
    await check_addresses(cache, namespace, UNKEYED, rules())
    where = ["--cache", redis_server.url]
    config = tmp_path / "gateway.toml"
    config.write_text(
        f'namespace = "{namespace}"\nupstream = "http://127.0.0.1:9"\n[idempotency]\nscope = ["header:X-Tenant"]\n'
    )
    for _ in range(2):
        done = await asyncio.to_thread(invoke, "check", *where, "--config", str(config))
        assert f"namespace {namespace}: not as at the last start: scope (" in done.stdout
    unset = await asyncio.to_thread(invoke, "keys", "show", "other", *where, "--namespace", namespace)
    assert "never made" in unset.stderr
    assert "scope or header" in unset.stderr
    shown = await asyncio.to_thread(invoke, "keys", "show", "other", *where, "--config", str(config))
    assert (shown.returncode, shown.stderr.count("\n")) == (1, 1)
    assert "last started: scope" in shown.stderr


async def test_check_finds_another_secret_too(cache: RedisCache, namespace: str, redis_server: RedisServer) -> None:
    await check_addresses(cache, namespace, UNKEYED, rules())
    where = ["--cache", redis_server.url, "--upstream", "http://127.0.0.1:9"]
    done = await asyncio.to_thread(invoke, "check", *where, ONCEGATE_SECRET="n" * 32, ONCEGATE_NAMESPACE=namespace)
    assert done.returncode == 1
    assert f"namespace {namespace} are under another secret" in done.stdout


async def test_a_user_who_may_not_read_what_is_kept_gets_advice(namespace: str) -> None:
    with RedisServer() as redis:
        user = ("ACL", "SETUSER", "default", "resetkeys", f"~{namespace}:*")
        redis.command(*user)
        where = ["--cache", redis.url, "--upstream", "http://127.0.0.1:9"]
        done = await asyncio.to_thread(invoke, "check", *where, ONCEGATE_NAMESPACE=namespace)
    assert "!!  cache" in done.stdout
    assert f"records of namespace {namespace} are addressed can't be read" in done.stdout
    assert "takes no records" not in done.stdout
