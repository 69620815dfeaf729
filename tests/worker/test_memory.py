"""A Redis whose memory is full, or nearly: what was accepted is executed, and what can't be is not accepted.

Rules of docs/contract.md: R8.8.
"""

import asyncio
import os
from contextlib import suppress
from typing import Any

import httpx
from redis.exceptions import OutOfMemoryError

from oncegate.app.cli.check.findings import examine
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.middleware.rules.settings import Route
from testing.servers import RedisServer
from testing.waiting import wait_until
from tests.worker.shop import DEADLINE, Shop

ROUTES = [{"path": "/bookings", "mode": "async", "on_missing_key": "reject"}]
PADDING = "x" * 10_000


def used(shop: Shop) -> int:
    info: Any = shop.redis.info("memory")
    return int(info["used_memory"])


def limit(own_redis: RedisServer, most: int) -> None:
    own_redis.command("CONFIG", "SET", "maxmemory", str(most))


def fill(shop: Shop) -> list[str]:
    """Somebody else takes all the memory that is left."""
    keys: list[str] = []
    with suppress(OutOfMemoryError):
        while len(keys) < 100_000:
            keys.append(f"filling-{len(keys)}")
            shop.redis.set(keys[-1], os.urandom(2000))
    return keys


def check(url: str, namespace: str) -> list[str]:
    """What ``oncegate check`` finds about the stream."""
    routes = tuple(map(Route.model_validate, ROUTES))
    settings = GatewaySettings(upstream="http://127.0.0.1:1", cache=url, namespace=namespace, routes=routes)
    return [each.text for each in asyncio.run(examine(settings)) if each.area == "stream"]


def submit(client: httpx.Client, key: str, payload: dict[str, Any]) -> httpx.Response:
    return client.post("/bookings", json=payload, headers={"idempotency-key": key})


def test_what_was_accepted_before_redis_was_full_is_executed(own_shop: Shop, own_redis: RedisServer) -> None:
    _, url = own_shop.serve(ROUTES)
    limit(own_redis, used(own_shop) + 3_000_000)
    accepted = []
    with httpx.Client(base_url=url, timeout=DEADLINE, trust_env=False, verify=False) as client:
        for number in range(1000):
            do = "reject" if number % 10 == 3 else "book"
            answer = submit(client, f"k-{number}", {"do": do, "padding": PADDING})
            if answer.status_code != 202:
                break
            accepted.append((f"k-{number}", do))
        refused = answer.json()
        assert (answer.status_code, refused["code"], refused["retryable"]) == (503, "overloaded", True)
        assert "needed to execute" in refused["detail"]
        assert own_shop.redis.xlen(own_shop.stream) == len(accepted) > 20, "nothing was appended"
        filling = fill(own_shop)
        findings = "\n".join(check(own_redis.url, own_shop.namespace))
        assert "submissions are refused from" in findings
        assert "are kept for what was accepted, so submissions are refused" in findings
        assert submit(client, "k-late", {}).status_code == 503
        own_shop.work(concurrency=4)
        assert [key for key, do in accepted if own_shop.effects(key) != (do == "book")] == []
        letters = own_shop.letters()
        assert sorted(letter["key"] for letter in letters) == sorted(key for key, do in accepted if do == "reject")
        assert own_shop.redis.xlen(own_shop.stream) == 0
        own_shop.redis.delete(*filling)
        wait_until(lambda: submit(client, "k-late", {}).status_code == 202, "there is room again")
        own_shop.done()
        assert own_shop.effects("k-late") == 1


def test_a_full_redis_takes_the_worker_s_outcomes_and_its_dead_letters(own_shop: Shop, own_redis: RedisServer) -> None:
    gates = [own_shop.folder / f"gate-of-{name}" for name in ("good", "bad")]
    own_shop.submit("good", {"do": "wait", "gate": str(gates[0])})
    own_shop.submit("bad", {"do": "wait", "gate": str(gates[1]), "then": "reject"})
    own_shop.submit("retried", {"do": "fail-once"})
    own_shop.start(concurrency=2)
    wait_until(lambda: len(list(own_shop.folder.glob("gate-of-*.*"))) == 2, "both are executed")
    limit(own_redis, 1_000_000)
    for gate in gates:
        gate.touch()
    own_shop.done()
    assert (own_shop.effects("good"), own_shop.effects("bad"), own_shop.effects("retried")) == (1, 0, 1)
    assert [letter["key"] for letter in own_shop.letters()] == ["bad"]


def test_where_redis_evicts_nothing_is_refused_for_its_memory(own_shop: Shop, own_redis: RedisServer) -> None:
    own_redis.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    _, url = own_shop.serve(ROUTES)
    limit(own_redis, used(own_shop) + 4_000_000)
    for number in range(4000):
        own_shop.redis.set(f"evicted-{number}", os.urandom(2000))
    with httpx.Client(base_url=url, timeout=DEADLINE, trust_env=False, verify=False) as client:
        assert submit(client, "k", {}).status_code == 202


def test_a_user_who_may_not_ask_for_memory_submits_as_before(own_shop: Shop, own_redis: RedisServer) -> None:
    own_redis.command("ACL", "SETUSER", "default", "-info")
    _, url = own_shop.serve(ROUTES)
    with httpx.Client(base_url=url, timeout=DEADLINE, trust_env=False, verify=False) as client:
        assert submit(client, "k", {}).status_code == 202
