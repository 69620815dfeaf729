"""openapi/oncegate.yaml, held against a running gateway: each problem provoked, each operation probed by schemathesis."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from jsonschema import Draft202012Validator

from oncegate.app.gateway import Gateway
from oncegate.cache.errors import CacheUnavailable, RecordUnreadable
from oncegate.cache.memory import MemoryCache
from oncegate.middleware.openapi import problem_schema
from oncegate.middleware.problems import KINDS
from tests.app.cli import running
from tests.app.probing import probe
from tests.app.served import raw, served
from tests.servers import free_port
from tests.upstreams import OK, Upstream, answering, closing_after, hanging

ROOT = Path(__file__).parent.parent.parent
DESCRIPTION: dict[str, Any] = yaml.safe_load((ROOT / "openapi/oncegate.yaml").read_text("utf-8"))
RESPONSES: dict[str, Any] = DESCRIPTION["components"]["responses"]
KEY = {"Idempotency-Key": "a"}


def conforms(value: Any, schema: dict[str, Any]) -> None:
    whole = {**schema, "components": DESCRIPTION["components"]}
    Draft202012Validator(whole, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(value)


def resolved(value: dict[str, Any]) -> dict[str, Any]:
    found: Any = DESCRIPTION
    for part in value["$ref"].removeprefix("#/").split("/") if "$ref" in value else []:
        found = found[part]
    return found if "$ref" in value else value


def assert_described(answer: httpx.Response, slug: str) -> None:
    described = RESPONSES[slug]
    assert answer.headers["content-type"] in described["content"]
    conforms(answer.json(), described["content"][answer.headers["content-type"]]["schema"])
    assert answer.status_code == answer.json()["status"]
    for name, header in {**described["headers"], **DESCRIPTION_HEADERS}.items():
        header = resolved(header)
        value = answer.headers.get(name)
        assert value is not None or not header.get("required"), name
        if value is not None:
            conforms(int(value) if header["schema"].get("type") == "integer" else value, header["schema"])


DESCRIPTION_HEADERS = {
    name: {"$ref": f"#/components/headers/{each}"}
    for name, each in (
        ("idempotency-key", "IdempotencyKey"),
        ("idempotent-replayed", "IdempotentReplayed"),
        ("cache-status", "CacheStatus"),
        ("preference-applied", "PreferenceApplied"),
    )
}


def test_each_problem_of_the_code_is_described_and_no_other() -> None:
    assert list(RESPONSES) == list(KINDS)
    for slug, kind in KINDS.items():
        members = RESPONSES[slug]["content"]["application/problem+json"]["schema"]["allOf"][1]["properties"]
        assert (members["code"], members["status"]["const"]) == ({"const": slug}, kind.status)
        assert members["title"] == {"const": kind.title}
        assert members["retryable"] in ({"const": kind.retryable}, {"type": "boolean"})
        assert ("Retry-After" in RESPONSES[slug]["headers"]) is kind.retry_after


def test_what_is_added_to_an_upstreams_description_is_the_same_problem() -> None:
    ours = DESCRIPTION["components"]["schemas"]["Problem"]
    added = problem_schema(list(KINDS))
    assert added["required"] == ours["required"]
    assert set(added["properties"]) == set(ours["properties"])


@pytest.fixture
async def behind() -> AsyncIterator[tuple[httpx.AsyncClient, Gateway]]:
    rules = {"max_request_body": 10, "response_timeout": 20, "max_response_body": 3}
    routes = [
        {"path": "/strict", "require_key": True},
        {"path": "/known", "require_scope": True},
        {"path": "/whole", "max_response_body": 100},
    ]
    async with (
        Upstream(answering(OK, OK, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nlarge one", OK)) as upstream,
        served(upstream.url, idempotency=rules, routes=routes, body_timeout=0.2) as both,
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
        assert_described(answer, slug)
    unfinished = b"POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: a\r\nContent-Length: 5\r\n\r\n1"
    head, _, body = (await raw(client, unfinished)).partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    pairs = [(name, value.strip()) for name, _, value in (field.partition(":") for field in fields)]
    assert_described(httpx.Response(int(line.split()[1]), headers=pairs, content=body), "request-timeout")


async def test_what_becomes_of_a_key_is_as_described(behind: tuple[httpx.AsyncClient, Gateway]) -> None:
    client, _ = behind
    raising = {**KEY, "Idempotency-Raise-On-Duplicate": "?1"}
    assert (await client.post("/", headers=KEY)).status_code == 200
    assert_described(await client.post("/", headers=KEY, content=b"x"), "key-reused")
    assert_described(await client.post("/", headers=raising), "duplicate")
    large = {"Idempotency-Key": '"large"'}
    await client.post("/whole", headers=large)
    assert (await client.post("/", headers={"Idempotency-Key": "b"})).text == "large one"
    omitted = await client.post("/", headers={"Idempotency-Key": "b"})
    assert_described(omitted, "duplicate")
    assert omitted.json()["original_result"]["body_omitted"] is True
    replay = await client.post("/whole", headers=large)
    for name, header in DESCRIPTION_HEADERS.items():
        if name != "preference-applied":
            conforms(replay.headers[name], resolved(header)["schema"])


async def test_failures_of_the_upstream_are_as_described() -> None:
    async with served(f"http://127.0.0.1:{free_port()}") as (client, _):
        assert_described(await client.post("/", headers=KEY), "upstream-unreachable")
    async with Upstream(closing_after(b"")) as upstream, served(upstream.url) as (client, _):
        assert_described(await client.post("/", headers=KEY), "upstream-failed")
        assert_described(await client.post("/", headers=KEY), "outcome-unknown")
    rules = {"response_timeout": 0.05}
    async with (
        Upstream(hanging) as upstream,
        served(upstream.url, idempotency=rules, max_in_flight=1) as (client, _),
    ):
        assert_described(await client.post("/", headers=KEY), "upstream-timeout")
        waited = await client.post("/", headers={**KEY, "Prefer": "wait=1"})
        assert_described(waited, "in-flight")
        assert waited.headers["preference-applied"] == "wait=1"
        assert_described(await client.post("/", headers={"Idempotency-Key": "b"}), "overloaded")
        upstream.peers[0].reset()


@pytest.mark.parametrize(
    ("error", "slug"),
    [(CacheUnavailable("away"), "cache-unavailable"), (RecordUnreadable("newer"), "record-unreadable")],
)
async def test_failures_of_the_cache_are_as_described(
    error: Exception, slug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claim(*args: Any, **kwargs: Any) -> Any:
        raise error

    monkeypatch.setattr(MemoryCache, "claim", claim)
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        assert_described(await client.post("/", headers=KEY), slug)
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


# -- schemathesis: what it can think of, against the gateway as a process ---------------------------------------------


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    """In front of the demo's payments service."""
    with running("demo", "--port", "0") as demo:
        yield demo.wait_for(r"oncegate in front of it on (http://[^ ]+?)\.?\n")[1]


def test_what_the_gateway_serves_is_as_described(gateway: str) -> None:
    assert probe(DESCRIPTION, f"{gateway}/_oncegate", 5) == {200}
