"""What a run leaves in Redis and in logs, searched for all that was said in it.

Rules of docs/contract.md: R6.21, R6.23.
"""

import asyncio
import base64
import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from oncegate import IdempotencyMiddleware, RedisCache
from oncegate.middleware.rules.keys.key import fingerprint, key_digest, scope_digest
from testing.asgi_client import Client
from testing.command_line import invoke
from testing.served import served
from testing.upstreams import Upstream, answering
from tests.middleware.door import Answering
from tests.worker.shop import Shop

TOKEN, CARD, IBAN = "Bearer token-of-alice", "4242424242424242", "iban-of-alice"
KEYS = [f"order-of-alice-{number}" for number in range(4)]
PAID, FAILED, BOOKED, IN_APP = KEYS
PAYLOADS = {key: json.dumps({"name": CARD, "do": "fail" if key == FAILED else "book"}).encode() for key in KEYS}
PATHS = {PAID: b"/pay", FAILED: b"/bookings", BOOKED: b"/bookings", IN_APP: b"/in-app"}
RESPONSE = json.dumps({"account": IBAN}).encode()
OK = (
    b"HTTP/1.1 201 Created\r\nx-account: "
    + IBAN.encode()
    + b"\r\ncontent-length: %d\r\n\r\n" % len(RESPONSE)
    + RESPONSE
)
ON = {
    "secret": "a secret that only we have, of 32 bytes",
    "encryption_keys": [f"k1:{base64.b64encode(b'0123456789abcdef' * 2).decode()}"],
}


def unkeyed() -> list[bytes]:
    """The digests that anybody can make of a guess."""
    names = [scope_digest([b"authorization", b"1", TOKEN.encode()]), *map(key_digest, KEYS)]
    prints = [fingerprint("POST", PATHS[key], b"", PAYLOADS[key]) for key in KEYS]
    return [*(name.encode() for name in names), *prints, *(each.hex().encode() for each in prints)]


READ: dict[bytes, Callable[[redis.Redis, Any], Any]] = {
    b"string": lambda client, name: client.get(name),
    b"stream": lambda client, name: client.xrange(name),
    b"hash": lambda client, name: client.hgetall(name),
    b"list": lambda client, name: client.lrange(name, 0, -1),
    b"set": lambda client, name: client.smembers(name),
    b"zset": lambda client, name: client.zrange(name, 0, -1),
}
"""All that is in a key of each of Redis' kinds."""
NEEDLES = [TOKEN[7:].encode(), CARD.encode(), IBAN.encode(), *(key.encode() for key in KEYS), *unkeyed()]


def all_there_is(client: redis.Redis) -> bytes:
    """Every key and value of the server."""
    found: list[Any] = []
    for name in client.scan_iter():
        kind: Any = client.type(name)
        found += [name, kind, READ[kind](client, name)]
    return b"\n".join(flattened(found))


def flattened(value: Any) -> list[bytes]:
    if isinstance(value, bytes):
        return [value]
    inner = value.items() if isinstance(value, dict) else value
    return [each for some in inner for each in flattened(some)] if not isinstance(value, str) else [value.encode()]


async def run(shop: Shop, on: dict[str, Any]) -> tuple[bytes, str]:
    """All entry points at work, with ``on`` in force: what was in Redis, before the worker and at the end, and its log."""
    routes = [{"path": "/bookings", "mode": "async", "on_missing_key": "reject"}]
    where: dict[str, Any] = {"cache": shop.url, "namespace": shop.namespace, "cache_timeout": 10}
    async with Upstream(answering(OK)) as upstream, served(upstream.url, **where, routes=routes, **on) as (client, _):
        for key in (PAID, PAID, FAILED, BOOKED):
            lines = {"Idempotency-Key": key, "Authorization": TOKEN, "Content-Type": "application/json"}
            answer = await client.post(PATHS[key].decode(), headers=lines, content=PAYLOADS[key])
            assert answer.status_code in (201, 202)
        assert answer.headers.get("idempotent-replayed") is None
        cache = RedisCache.from_url(shop.url, timeout=10, encryption_keys=on.get("encryption_keys", ()))
        app = Answering(body=RESPONSE)
        middleware = IdempotencyMiddleware(app, cache=cache, namespace=shop.namespace, secret=on.get("secret"))
        for _ in range(2):
            sent = [(b"idempotency-key", IN_APP.encode()), (b"authorization", TOKEN.encode())]
            again = await Client("POST", PATHS[IN_APP], sent, pieces=(PAYLOADS[IN_APP],)).call(middleware)
            assert again.body == RESPONSE
        assert app.calls == 1
        await cache.close()
        before = await asyncio.to_thread(all_there_is, shop.redis)
        worker = shop.start(max_attempts=1, settings=on)
        await asyncio.to_thread(shop.done)
    assert (shop.effects(BOOKED), len(shop.letters())) == (1, 1), worker.text() + str(shop.letters())
    return before + await asyncio.to_thread(all_there_is, shop.redis), worker.text()


async def test_who_reads_redis_or_logs_finds_nothing_that_was_said(
    own_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "oncegate")
    kept, log = await run(own_shop, ON)
    written = log.encode() + caplog.text.encode()
    assert [needle for needle in NEEDLES if needle in kept] == []
    assert [needle for needle in NEEDLES if needle in written] == []
    # Who has the keys can read it, and what operators are shown of a record has no more of its request than before.
    environment = {f"ONCEGATE_{name.upper()}": value for name, value in ON.items() if isinstance(value, str)}
    environment |= {
        "ONCEGATE_NAMESPACE": own_shop.namespace,
        "ONCEGATE_ENCRYPTION_KEYS": json.dumps(ON["encryption_keys"]),
    }
    show = partial(invoke, "keys", "show", PAID, "--response", "--json", "--cache", own_shop.url, **environment)
    shown = await asyncio.to_thread(show)
    assert shown.returncode == 0, shown.stderr
    assert IBAN in shown.stdout
    assert [each for each in (TOKEN, CARD, *map(bytes.decode, unkeyed()[:5])) if each in shown.stdout] == []
    listed = partial(invoke, "commands", "list", "--json", "--cache", own_shop.url, **environment)
    assert f"could not book for {CARD}" in (await asyncio.to_thread(listed)).stdout


async def test_without_secret_and_keys_the_same_search_finds_it(own_shop: Shop) -> None:
    """So that the test above can fail."""
    kept, _ = await run(own_shop, {})
    missing = [needle for needle in NEEDLES if needle not in kept]
    # A credential and the other requests' keys are digested at least, and a replay's payload is.
    assert set(missing) <= {TOKEN[7:].encode(), PAID.encode(), IN_APP.encode(), *unkeyed()[5:]}
    assert len(missing) < len(NEEDLES) - 6
