"""openapi/oncegate.yaml, held against a running gateway: each problem provoked. Operations: test_openapi_operations.py.

Rules of docs/contract.md: R4.1.
"""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from oncegate.app.gateway.gateway import Gateway
from oncegate.cache.errors import CacheUnavailable, RecordUnreadable
from oncegate.cache.memory.store import MemoryCache
from oncegate.middleware.http.apps.openapi import problem_schema
from oncegate.middleware.outcome.problem_kinds import KINDS
from testing.served import connected, raw, served
from testing.servers import free_port
from testing.upstreams import OK, Upstream, answering, answering_once, closing_after
from tests.app.described import DESCRIPTION, assert_described, conforms, resolved

RESPONSES: dict[str, Any] = DESCRIPTION["components"]["responses"]
KEY = {"Idempotency-Key": "a"}


def assert_problem(answer: httpx.Response, slug: str) -> None:
    response = RESPONSES[slug]
    assert_described(answer, {**response, "headers": response["headers"] | DESCRIPTION_HEADERS})
    assert answer.status_code == answer.json()["status"]


DESCRIPTION_HEADERS = {
    name: {"$ref": f"#/components/headers/{each}"}
    for name, each in (
        ("idempotency-key", "IdempotencyKey"),
        ("idempotent-replayed", "IdempotentReplayed"),
        ("cache-status", "CacheStatus"),
        ("preference-applied", "PreferenceApplied"),
    )
}


def test_each_problem_of_the_gateway_is_described_and_no_other() -> None:
    kinds = {
        slug: kind for slug, kind in KINDS.items() if slug != "caller-failed"
    }  # of apps that name callers themselves
    assert list(RESPONSES) == list(kinds)
    for slug, kind in kinds.items():
        members = RESPONSES[slug]["content"]["application/problem+json"]["schema"]["allOf"][1]["properties"]
        assert (members["code"], members["status"]["const"]) == ({"const": slug}, kind.status)
        assert members["title"] == {"const": kind.title}
        assert members["error"]["properties"] == {"type": {"const": kind.error_type}, "code": {"const": slug}}
        assert members["retryable"] in ({"const": kind.retryable}, {"type": "boolean"})
        assert ("Retry-After" in RESPONSES[slug]["headers"]) is kind.retry_after


def test_what_is_added_to_an_upstreams_description_is_the_same_problem() -> None:
    ours = DESCRIPTION["components"]["schemas"]["Problem"]
    added = problem_schema(list(KINDS))
    assert added["required"] == ours["required"]
    assert set(added["properties"]) == set(ours["properties"])


@pytest.fixture
async def behind() -> AsyncIterator[tuple[httpx.AsyncClient, Gateway]]:
    rules = {"max_request_body": 10, "response_timeout": 20, "max_result": 3}
    routes = [
        {"path": "/strict", "on_missing_key": "reject"},
        {"path": "/known", "require_scope": True},
        {"path": "/whole", "max_result": 100},
    ]
    async with (
        Upstream(answering(OK, OK, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nlarge one", OK)) as upstream,
        served(upstream.url, idempotency=rules, routes=routes, upstream_keepalive=600) as both,
    ):
        yield both


async def test_refusals_are_as_described(behind: tuple[httpx.AsyncClient, Gateway]) -> None:
    client, _ = behind

    requests: dict[str, dict[str, Any]] = {
        "key-missing": {"url": "/strict"},
        "key-invalid": {"url": "/", "headers": {"Idempotency-Key": '"a'}},
        "caller-missing": {"url": "/known", "headers": KEY},
        "payload-too-large": {"url": "/", "headers": KEY, "content": b"x" * 11},
        "upgrade-unsupported": {"url": "/", "headers": {"Upgrade": "websocket", "Connection": "upgrade"}},
    }
    for slug, request in requests.items():
        answer = await client.post(**request)
        assert_problem(answer, slug)
    unfinished = b"POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: a\r\nContent-Length: 5\r\n\r\n1"
    async with served(f"http://127.0.0.1:{free_port()}", body_timeout=0.2) as (hasty, _):
        head, _, body = (await raw(hasty, unfinished)).partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    pairs = [(name, value.strip()) for name, _, value in (field.partition(":") for field in fields)]
    assert_problem(httpx.Response(int(line.split()[1]), headers=pairs, content=body), "request-timeout")


async def test_what_becomes_of_a_key_is_as_described(behind: tuple[httpx.AsyncClient, Gateway]) -> None:
    client, _ = behind
    raising = {**KEY, "Idempotency-Raise-On-Duplicate": "?1"}
    assert (await client.post("/", headers=KEY)).status_code == 200
    assert_problem(await client.post("/", headers=KEY, content=b"x"), "key-reused")
    assert_problem(await client.post("/", headers=raising), "duplicate")
    large = {"Idempotency-Key": '"large"'}
    await client.post("/whole", headers=large)
    assert (await client.post("/", headers={"Idempotency-Key": "b"})).text == "large one"
    omitted = await client.post("/", headers={"Idempotency-Key": "b"})
    assert_problem(omitted, "duplicate")
    assert omitted.json()["original_result"]["body_omitted"] is True
    replay = await client.post("/whole", headers=large)
    for name, header in DESCRIPTION_HEADERS.items():
        if name != "preference-applied":
            conforms(replay.headers[name], resolved(header)["schema"])


async def test_failures_of_the_upstream_are_as_described() -> None:
    async with served(f"http://127.0.0.1:{free_port()}") as (client, _):
        assert_problem(await client.post("/", headers=KEY), "upstream-unreachable")
    async with Upstream(closing_after(b"")) as upstream, served(upstream.url) as (client, _):
        assert_problem(await client.post("/", headers=KEY), "upstream-failed")
        assert_problem(await client.post("/", headers=KEY), "outcome-unknown")
    settings: dict[str, Any] = {"idempotency": {"response_timeout": 0.05}, "max_in_flight": 1}
    async with Upstream(answering_once) as upstream, served(upstream.url, **settings) as (client, _):
        await connected(client)
        assert_problem(await client.post("/", headers=KEY), "upstream-timeout")
        waited = await client.post("/", headers={**KEY, "Prefer": "wait=1"})
        assert_problem(waited, "in-flight")
        assert waited.headers["preference-applied"] == "wait=1"
        assert_problem(await client.post("/", headers={"Idempotency-Key": "b"}), "overloaded")
        upstream.peers[-1].reset()


@pytest.mark.parametrize(
    ("error", "slug"),
    [(CacheUnavailable("away"), "cache-unavailable"), (RecordUnreadable("newer"), "record-unreadable")],
)
async def test_failures_of_the_cache_are_as_described(
    error: Exception, slug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def move(*args: Any, **kwargs: Any) -> Any:
        raise error

    monkeypatch.setattr(MemoryCache, "_move", move)
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        assert_problem(await client.post("/", headers=KEY), slug)
        assert upstream.arrivals == 0


async def test_what_is_not_there_and_not_allowed_is_as_described() -> None:
    schema = {"$ref": "#/components/schemas/OperationProblem"}
    async with served(f"http://127.0.0.1:{free_port()}") as (client, _):
        conforms((await client.get("/_oncegate/nothing")).json(), schema)
        conforms((await client.post("/_oncegate/healthz")).json(), schema)
        ready = await client.get("/_oncegate/readyz")
        assert ready.status_code == 503
        conforms(
            ready.json(),
            DESCRIPTION["paths"]["/readyz"]["get"]["responses"]["503"]["content"]["application/json"]["schema"],
        )
