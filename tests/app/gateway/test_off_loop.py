"""What takes long to encrypt or to decrypt is done in a thread: the event loop serves others meanwhile.

Rule of docs/contract.md: R6.23.
"""

import base64
import os
import threading
from collections.abc import Iterator
from typing import Any, cast
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives.ciphers import aead

from oncegate import IdempotencyMiddleware, MemoryCache, RedisCache, Subscription
from oncegate.app.commands.handler import Handler
from oncegate.app.commands.processing import Processing
from oncegate.app.commands.submission_life import SubmissionLife
from oncegate.cache.backoff import Backoff
from oncegate.cache.encryption import OFF_LOOP_BYTES, Encryption
from oncegate.cache.redis.streams.encrypted import encrypted
from oncegate.cache.redis.streams.stream import Command
from oncegate.middleware.rules.keys.key import record_key
from testing.asgi_client import Client
from testing.served import served
from testing.upstreams import OK, Upstream, answering
from tests.middleware.door import Answering

KEYS = (f"k:{base64.b64encode(os.urandom(32)).decode()}",)
LARGE = b"x" * (OFF_LOOP_BYTES + 1000)
LARGE_OK = b"HTTP/1.1 201 Created\r\ncontent-length: %d\r\n\r\n%b" % (len(LARGE), LARGE)
OF_TAG = 16
Calls = list[tuple[int, bool]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """How many bytes were encrypted or decrypted by each call, and whether that held the event loop of the test."""
    seen: Calls = []
    loop, cipher = threading.get_ident(), aead.AESGCM

    class Noted:
        def __init__(self, key: bytes) -> None:
            self._cipher = cipher(key)

        def encrypt(self, nonce: bytes, plain: bytes, address: bytes) -> bytes:
            seen.append((len(plain), threading.get_ident() == loop))
            return self._cipher.encrypt(nonce, plain, address)

        def decrypt(self, nonce: bytes, encrypted: bytes, address: bytes) -> bytes:
            seen.append((len(encrypted) - OF_TAG, threading.get_ident() == loop))
            return self._cipher.decrypt(nonce, encrypted, address)

    monkeypatch.setattr(aead, "AESGCM", Noted)
    yield seen
    assert seen


def large(calls: Calls) -> list[bool]:
    """Whether the large ones have held the loop."""
    return [held for size, held in calls if size > OFF_LOOP_BYTES]


async def test_in_the_gateway(redis_url: str, calls: Calls) -> None:
    where: dict[str, Any] = {"cache": redis_url, "cache_timeout": 10, "namespace": uuid4().hex}
    async with Upstream(answering(LARGE_OK)) as upstream:
        async with served(upstream.url, encryption_keys=KEYS, **where) as (client, _):
            answers = [await client.post("/x", headers={"Idempotency-Key": "k"}, content=LARGE) for _ in range(3)]
        assert [answer.content == LARGE for answer in answers] == [True] * 3
        assert [answer.headers.get("idempotent-replayed") for answer in answers] == [None, "true", "true"]
        assert upstream.arrivals == 1
    assert large(calls) == [False] * 3  # the outcome, and two replays


async def test_what_is_small_is_done_at_once(redis_url: str, calls: Calls) -> None:
    """The way to a thread would take longer."""
    async with (
        Upstream(answering(OK)) as upstream,
        served(upstream.url, encryption_keys=KEYS, cache=redis_url) as (client, _),
    ):
        key = {"Idempotency-Key": uuid4().hex}
        assert [(await client.post("/x", headers=key)).status_code for _ in range(2)] == [200, 200]
    assert all(held for _, held in calls)


async def test_what_can_t_be_opened_is_still_unreadable(redis_url: str, calls: Calls) -> None:
    where: dict[str, Any] = {"cache": redis_url, "cache_timeout": 10, "namespace": uuid4().hex}
    async with Upstream(answering(LARGE_OK)) as upstream:
        for key in (KEYS[0], f"k:{base64.b64encode(os.urandom(32)).decode()}"):
            async with served(upstream.url, encryption_keys=(key,), **where) as (client, _):
                answer = await client.post("/x", headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (500, "record-unreadable")
    assert large(calls) == [False]


async def test_in_an_app_and_for_operators(redis_url: str, calls: Calls) -> None:
    cache = RedisCache.from_url(redis_url, timeout=10, encryption_keys=KEYS)
    app, namespace = Answering(body=LARGE), uuid4().hex
    middleware = IdempotencyMiddleware(app, cache=cache, namespace=namespace)
    for _ in range(2):
        assert (await Client("POST", b"/x", [(b"idempotency-key", b"k")]).call(middleware)).body == LARGE
    held = await cache.get(record_key(namespace, "k", None))
    assert held is not None
    assert held.record.response is not None
    assert held.record.response.body == LARGE
    await cache.close()
    assert large(calls) == [False] * 3


async def test_in_a_stream(redis_url: str, calls: Calls) -> None:
    routes = [{"path": "/x", "mode": "async", "on_missing_key": "reject"}]
    where: dict[str, Any] = {"cache": redis_url, "cache_timeout": 10, "namespace": uuid4().hex, "routes": routes}
    async with served("http://127.0.0.1:9", encryption_keys=KEYS, **where) as (client, _):
        for key in ("first", "with Redis's memory known"):
            answer = await client.post("/x", headers={"Idempotency-Key": f'"{key}"'}, content=LARGE)
            assert answer.status_code == 202
    assert large(calls) == [False] * 2


async def test_in_a_worker(calls: Calls) -> None:
    async def book(payload: Any) -> None:
        assert payload == LARGE

    encryption, pauses = Encryption(KEYS), Backoff(1.0, 1.0)
    executor = Handler(book, threads=1)
    processing = Processing(
        Subscription("ledger", cache=MemoryCache()),
        executor,
        pauses,
        recheck=pauses,
        worker="w",
        life=cast(SubmissionLife, Tied()),
        encryption=encryption,
    )
    command = Command("k" * 20 + ":" + "s" * 20, "k", bytes(16), "POST", "/pay", "*", LARGE)
    entry = encrypted(command.fields(), encryption)
    calls.clear()
    assert (await processing.process(b"1-0", entry, 1)).again is None
    await executor.close()
    assert large(calls) == [False]


class Tied:
    async def tie(self, command: Command, entry: str) -> None:
        """What is over is nobody's here."""
