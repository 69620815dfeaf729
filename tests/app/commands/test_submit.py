"""Submission through a gateway on a real Redis: what is answered, what is in the stream, and what happens when it can't be.

Rules of docs/contract.md: R4.25, R8.1, R8.3, R8.8, R8.9.
"""

import asyncio
import json
from typing import Any
from uuid import uuid4

import httpx
import pytest

from oncegate.cache.redis.streams.stream import Command, stream_key
from oncegate.middleware.rules.keys.key import record_id, record_key, scope_parts
from testing.served import served
from testing.servers import RedisServer
from testing.upstreams import Upstream, answering

ROUTES = [
    {"path": "/reports", "mode": "async", "on_missing_key": "reject"},
    {"path": "/payments/*", "mode": "either", "stream": "payments"},
]
CALLER = b"Bearer secret-of-alice"
HEADERS = {"idempotency-key": '"k 1"', "authorization": CALLER.decode()}
OK = b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok"
PATIENT: dict[str, Any] = {"cache_timeout": 10.0, "routes": ROUTES}


@pytest.fixture
def namespace() -> str:
    return uuid4().hex


def _entries(server: RedisServer, namespace: str, name: str = "commands") -> list[tuple[str, Command]]:
    found = server.client().xrange(stream_key(namespace, name))
    return [(entry.decode(), Command.read(fields)) for entry, fields in found]  # type: ignore[union-attr, arg-type]  # the shapes of other commands


async def _submit(client: httpx.AsyncClient, path: str = "/reports", key: str = "k-1", **more: Any) -> httpx.Response:
    headers = HEADERS | {"idempotency-key": key} | more.pop("headers", {})
    return await client.post(path, content=more.pop("body", b"{}"), headers=headers)


async def test_a_command_is_in_the_stream_with_all_that_travels_along(
    redis_server: RedisServer, namespace: str
) -> None:
    async with (
        Upstream(answering(OK)) as upstream,
        served(upstream.url, cache=redis_server.url, namespace=namespace, **PATIENT) as (client, _),
    ):
        headers = {
            "content-type": "application/json",
            "x-request-id": "r-1",
            "traceparent": "00-11111111111111111111111111111111-2222222222222222-01",
            "cookie": "secret-cookie",
        }
        answer = await _submit(client, "/reports?a=%20b", '"k 1"', headers=headers, body=b'{"a": 1}')
        assert upstream.arrivals == 0
    ((entry, command),) = _entries(redis_server, namespace)
    identifier = record_id(record_key(namespace, "k 1", scope_parts({b"authorization": [CALLER]}, (b"authorization",))))
    assert answer.status_code == 202
    assert answer.json() == {"status": "accepted", "position": entry, "command": identifier}
    assert answer.headers["location"] == f"/_oncegate/commands/{identifier}"
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["idempotency-key"] == '"k 1"'
    assert answer.headers["date"]
    assert (command.command, command.key, command.method) == (identifier, "k 1", "POST")
    assert (command.target, command.route) == ("/reports?a=%20b", "/reports")
    assert (command.body, command.content_type) == (b'{"a": 1}', "application/json")
    assert (command.correlation, command.traceparent) == ("r-1", headers["traceparent"])
    raw = redis_server.client().xrange(stream_key(namespace, "commands"))
    assert b"secret" not in repr(raw).encode(), "a credential is in the stream"


async def test_of_a_header_that_comes_twice_the_first_line_counts(redis_server: RedisServer, namespace: str) -> None:
    lines = [*HEADERS.items(), ("x-correlation-id", "c-1"), ("x-correlation-id", "c-2"), ("x-request-id", "r-1")]
    async with served("http://127.0.0.1:1", cache=redis_server.url, namespace=namespace, **PATIENT) as (client, _):
        answer = await client.post("/reports", content=b"{}", headers=lines)
    assert answer.status_code == 202
    ((_, command),) = _entries(redis_server, namespace)
    assert command.correlation == "c-1"


async def test_a_retry_gets_the_same_202_byte_for_byte_and_appends_nothing(
    redis_server: RedisServer, namespace: str
) -> None:
    options: dict[str, Any] = {"cache": redis_server.url, "namespace": namespace, **PATIENT}
    async with (
        served("http://127.0.0.1:1", **options) as (one, _),
        served("http://127.0.0.1:1", **options) as (other, _),
    ):
        first = await _submit(one)
        retry = await _submit(other)
    assert (retry.status_code, retry.content) == (202, first.content)
    kept = ("location", "content-type", "content-length")
    assert [retry.headers[name] for name in kept] == [first.headers[name] for name in kept]
    assert retry.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert len(_entries(redis_server, namespace)) == 1


async def test_of_many_at_once_one_is_appended(redis_server: RedisServer, namespace: str) -> None:
    options: dict[str, Any] = {"cache": redis_server.url, "namespace": namespace, **PATIENT}
    async with (
        served("http://127.0.0.1:1", **options) as (one, _),
        served("http://127.0.0.1:1", **options) as (other, _),
    ):
        answers = await asyncio.gather(
            *[_submit(client, headers={"prefer": "wait=20"}) for client in (one, other) for _ in range(20)]
        )
    assert {(answer.status_code, answer.content) for answer in answers} == {(202, answers[0].content)}
    assert len(_entries(redis_server, namespace)) == 1


async def test_either_is_both_and_each_route_has_its_stream(redis_server: RedisServer, namespace: str) -> None:
    async with (
        Upstream(answering(OK)) as upstream,
        served(upstream.url, cache=redis_server.url, namespace=namespace, **PATIENT) as (client, _),
    ):
        executed = await _submit(client, "/payments/1", "k-1")
        accepted = await _submit(client, "/payments/1", "k-2", headers={"prefer": "respond-async"})
        keyless = await client.post("/payments/1", headers={"prefer": "respond-async"})
    assert [each.status_code for each in (executed, accepted, keyless)] == [201, 202, 201]
    assert accepted.headers["preference-applied"] == "respond-async"
    assert [command.key for _, command in _entries(redis_server, namespace, "payments")] == ["k-2"]
    assert _entries(redis_server, namespace) == []


async def test_another_payload_under_the_key_of_a_submission_is_422(redis_server: RedisServer, namespace: str) -> None:
    async with served("http://127.0.0.1:1", cache=redis_server.url, namespace=namespace, **PATIENT) as (client, _):
        await _submit(client)
        assert (await _submit(client, body=b"[]")).status_code == 422
        assert (await _submit(client, headers={"authorization": "Bearer other"})).status_code == 202


async def test_a_full_stream_is_503_and_keeps_nothing_until_there_is_room(
    redis_server: RedisServer, namespace: str
) -> None:
    redis = redis_server.client()
    options = PATIENT | {"stream_limit": 2, "cache": redis_server.url, "namespace": namespace}
    async with served("http://127.0.0.1:1", **options) as (client, _):
        for number in range(2):
            assert (await _submit(client, key=f"k-{number}")).status_code == 202
        refused = await _submit(client, key="k-2")
        assert (refused.status_code, refused.json()["code"], refused.json()["retryable"]) == (503, "overloaded", True)
        assert refused.headers["retry-after"]
        assert (await _submit(client, key="k-0")).status_code == 202, "a replay needs no room"
        assert refused.json()["record"]
        assert not redis.exists(f"{namespace}:{refused.json()['record']}")

        stream = stream_key(namespace, "commands")
        redis.xgroup_create(stream, "commands", "0")
        redis.xreadgroup("commands", "reader", {stream: ">"}, count=1)
        assert (await _submit(client, key="k-2")).status_code == 503, "read, and not acknowledged"
        redis.xack(stream, "commands", _entries(redis_server, namespace)[0][0])
        assert (await _submit(client, key="k-2")).status_code == 202
        metrics = (await client.get("/_oncegate/metrics")).text
    assert 'oncegate_submissions_total{outcome="accepted",route="/reports"} 3.0' in metrics
    assert 'oncegate_submissions_total{outcome="full",route="/reports"} 2.0' in metrics
    assert [command.key for _, command in _entries(redis_server, namespace)] == ["k-1", "k-2"]


async def test_a_stream_that_redis_refuses_is_503_and_the_key_is_free(
    redis_server: RedisServer, namespace: str
) -> None:
    redis = redis_server.client()
    redis.set(stream_key(namespace, "commands"), "not a stream")
    async with served("http://127.0.0.1:1", cache=redis_server.url, namespace=namespace, **PATIENT) as (client, _):
        refused = await _submit(client)
        assert (refused.status_code, refused.json()["code"]) == (503, "cache-unavailable")
        assert refused.headers["retry-after"]
        assert "Nothing was accepted" in refused.json()["detail"]
        redis.delete(stream_key(namespace, "commands"))
        accepted = await _submit(client)
        assert (accepted.status_code, "idempotent-replayed" in accepted.headers) == (202, False)


async def test_the_prefix_is_the_gateways(redis_server: RedisServer, namespace: str) -> None:
    options = PATIENT | {"prefix": "/ops/gate", "cache": redis_server.url, "namespace": namespace}
    async with served("http://127.0.0.1:1", **options) as (client, _):
        answer = await _submit(client)
    assert answer.headers["location"] == f"/ops/gate/commands/{json.loads(answer.content)['command']}"


async def test_an_upload_in_pieces_is_one_command(redis_server: RedisServer, namespace: str) -> None:
    async def pieces() -> Any:
        yield b"one "
        yield b"two"

    async with served("http://127.0.0.1:1", cache=redis_server.url, namespace=namespace, **PATIENT) as (client, _):
        answer = await client.post("/reports", content=pieces(), headers=HEADERS)
    assert answer.status_code == 202
    assert [command.body for _, command in _entries(redis_server, namespace)] == [b"one two"]
