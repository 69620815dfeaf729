"""The operations of openapi/oncegate.yaml: those that the gateway serves, no more and no fewer, answered as described."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from oncegate.app.operators.api import MOST_BYTES, routers
from oncegate.app.operators.records import Records
from oncegate.cache.errors import CacheUnavailable, RecordUnreadable
from testing.command_line import forked
from testing.served import served
from testing.servers import free_port
from testing.upstreams import Upstream, resetting_after
from tests.app.described import DESCRIPTION, assert_described
from tests.app.probing import probe
from tests.app.submitted import TOKEN as COMMANDS_TOKEN
from tests.app.submitted import Submitted

TOKEN = "the-operators-token"
OPERATOR = {"authorization": f"Bearer {TOKEN}"}
RECORDS = "/_oncegate/records/"
NOBODY = f"{'a' * 20}:{'b' * 20}"


async def test_each_operation_that_is_served_is_described_and_no_other(submitted: Submitted) -> None:
    """The description is made of the same routers (a generated page: tests/docs), by which a gateway with all of them serves."""
    described = {(method, path) for path, item in DESCRIPTION["paths"].items() for method in item}
    served = {
        (method.lower(), route.path)
        for router in routers()
        for route in router.routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods or ()
    }
    assert described == served
    for method, path in described:
        where = f"/_oncegate{path.replace('{id}', NOBODY)}"
        answer = await submitted.client.request(method, where, headers={"authorization": f"Bearer {COMMANDS_TOKEN}"})
        assert "No such operation" not in answer.text, path
        other = await submitted.client.delete(where, headers={"authorization": f"Bearer {COMMANDS_TOKEN}"})
        allowed = "GET, HEAD" if method == "get" else "POST"
        assert (other.status_code, other.headers["allow"]) == (405, allowed)


# -- schemathesis: what it can think of, against the gateway as a process ---------------------------------------------


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with forked("demo", "--port", "0") as demo:
        yield demo.wait_for(r"oncegate in front of it on (http://[^ ]+?)\.?\n")[1]


@pytest.fixture(scope="module", params=["under the prefix", "on a port of their own"])
def operations(upstream: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the operations of a gateway are."""
    own_port = free_port() if request.param == "on a port of their own" else 0
    environment = {"ONCEGATE_ADMIN_TOKEN": TOKEN, "ONCEGATE_OPS_PORT": str(own_port)}
    with forked("serve", "--upstream", upstream, "--port", "0", **environment) as gateway:
        url = gateway.url()
        yield f"http://127.0.0.1:{own_port}/_oncegate" if own_port else f"{url}/_oncegate"


def test_what_an_operator_gets_is_as_described(operations: str) -> None:
    """(401 is among it: schemathesis leaves the token out at times.)"""
    assert probe(DESCRIPTION, operations, 5, always=OPERATOR) == {200, 400, 401, 404}


@pytest.mark.parametrize("operations", ["under the prefix"], indirect=True)  # the same operations on either port
def test_what_everybody_else_gets_is_as_described(operations: str) -> None:
    assert probe(DESCRIPTION, operations, 3) == {200, 401, 404}


# -- records that are there: what schemathesis can't come by ----------------------------------------------------------


def assert_as_described(answer: httpx.Response, status: int) -> Any:
    """The answer's content, once it was held against the operation that it comes from."""
    assert answer.status_code == status, answer.text
    path = answer.request.url.path.removeprefix("/_oncegate")
    for identifier in path.split("/"):
        path = path.replace(identifier, "{id}") if ":" in identifier else path
    operation = DESCRIPTION["paths"][path][answer.request.method.lower()]
    assert_described(answer, operation["responses"][str(status)])
    return answer.json()


async def test_a_record_is_told_and_resolved_as_described() -> None:
    async with Upstream(resetting_after()) as upstream, served(upstream.url, admin_token=TOKEN) as (client, _):
        record = (await client.post("/", headers={"Idempotency-Key": "k"})).json()["record"]
        client.headers.update(OPERATOR)
        for query in ({}, {"state": "unknown"}, {"limit": "1"}):
            (listed,) = assert_as_described(await client.get(RECORDS, params=query), 200)["records"]
            assert (listed["id"], listed["state"]) == (record, "unknown")
        assert assert_as_described(await client.post(f"{RECORDS}find", json={"key": "k"}), 200) == {"ids": [record]}
        assert assert_as_described(await client.get(f"{RECORDS}{record}"), 200)["response"] is None
        resolve = {"as": "succeeded", "status": 201, "headers": [["x", "y"]], "body": "{}", "attempt": 1}
        other = assert_as_described(await client.post(f"{RECORDS}{record}/resolve", json=resolve | {"attempt": 2}), 409)
        assert other["resolution"] == "other-attempt"
        assert (
            assert_as_described(await client.post(f"{RECORDS}{record}/resolve", json=resolve), 200)["state"]
            == "succeeded"
        )
        assert assert_as_described(await client.get(f"{RECORDS}{record}"), 200)["response"]["body"] == {}
        assert_as_described(await client.get(RECORDS), 200)
        assert assert_as_described(await client.post(f"{RECORDS}{record}/release"), 409)["resolution"] == "settled"
        gone = assert_as_described(await client.post(f"{RECORDS}{NOBODY}/release", json={}), 404)
        assert gone["resolution"] == "absent"
        assert_as_described(await client.post(f"{RECORDS}find", content=b" " * (MOST_BYTES + 1)), 413)


@pytest.mark.parametrize(
    ("error", "status"), [(CacheUnavailable("it is away"), 503), (RecordUnreadable("it is damaged"), 500)]
)
async def test_a_failing_cache_is_told_as_described(
    error: Exception, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: Any, **__: Any) -> Any:
        raise error

    for method in ("show", "resolve"):
        monkeypatch.setattr(Records, method, failing)
    async with served(f"http://127.0.0.1:{free_port()}", admin_token=TOKEN) as (client, _):
        client.headers.update(OPERATOR)
        assert_as_described(await client.get(f"{RECORDS}{NOBODY}"), status)
        assert_as_described(await client.post(f"{RECORDS}{NOBODY}/release", json={}), status)


async def test_metrics_come_in_both_formats_that_are_described() -> None:
    described = DESCRIPTION["paths"]["/metrics"]["get"]["responses"]["200"]
    async with served(f"http://127.0.0.1:{free_port()}") as (client, _):
        for accepted in described["content"]:
            answer = await client.get("/_oncegate/metrics", headers={"accept": accepted})
            assert answer.headers["content-type"].startswith(accepted)
            assert_described(answer, described)
