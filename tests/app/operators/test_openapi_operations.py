"""The operations of openapi/oncegate.yaml: those that the gateway serves, no more and no fewer, answered as described."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from oncegate.app.operators.pages.api import routers
from oncegate.app.operators.pages.operations import CHOSEN, FOR_OPERATORS, PUBLIC
from oncegate.app.operators.records.records import Records
from oncegate.cache.errors import CacheUnavailable, RecordUnreadable
from testing.command_line import forked, invoke
from testing.served import served
from testing.servers import RedisServer, free_port
from tests.app.described import DESCRIPTION, as_described, assert_described
from tests.app.probing import probe
from tests.app.submitted import TOKEN as COMMANDS_TOKEN
from tests.app.submitted import serving

TOKEN = "the-operators-token"
OPERATOR = {"authorization": f"Bearer {TOKEN}"}
NOBODY = f"{'a' * 20}:{'b' * 20}"


def test_who_may_call_is_said_of_each_path() -> None:
    """What is in none of these lists would be open to whoever reaches the port."""
    opened_by_choice = {path for paths in CHOSEN.values() for path in paths}
    paths = [route.path for router in routers() for route in router.routes if isinstance(route, APIRoute)]
    named = [*FOR_OPERATORS, *PUBLIC, *opened_by_choice]
    assert {path.split("/")[1] for path in paths} == set(named)
    assert len(named) == len(set(named))


async def test_each_operation_that_is_served_is_described_and_no_other(
    redis_server: RedisServer, tmp_path: Path
) -> None:
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
    async with serving(redis_server, ops_database=database(tmp_path)) as submitted:
        submitted.client.headers["authorization"] = f"Bearer {COMMANDS_TOKEN}"
        for method, path in described:
            where = f"/_oncegate{path.replace('{id}', NOBODY)}"
            answer = await submitted.client.request(method, where)
            assert "No such operation" not in answer.text, path
            other = await submitted.client.delete(where)
            allowed = "GET, HEAD" if method == "get" else "POST"
            assert (other.status_code, other.headers["allow"]) == (405, allowed)


def database(folder: Path) -> str:
    """A database with all tables, in which nothing waits."""
    url = f"sqlite:///{folder}/shop.db"
    for group in ("inbox", "outbox", "projections"):
        assert invoke(group, "create", "--database", url).returncode == 0
    return url


# -- schemathesis: what it can think of, against the gateway as a process ---------------------------------------------


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with forked("demo", "--port", "0") as demo:
        yield demo.wait_for(r"oncegate in front of it on (http://[^ ]+?)\.?\n")[1]


@pytest.fixture(scope="module", params=["under the prefix", "on a port of their own"])
def operations(
    upstream: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Where the operations of a gateway are."""
    own_port = free_port() if request.param == "on a port of their own" else 0
    environment = {"ONCEGATE_ADMIN_TOKEN": TOKEN, "ONCEGATE_OPS_PORT": str(own_port)}
    environment["ONCEGATE_OPS_DATABASE"] = database(tmp_path_factory.mktemp("shop"))
    with forked("serve", "--upstream", upstream, "--port", "0", **environment) as gateway:
        url = gateway.url()
        yield f"http://127.0.0.1:{own_port}/_oncegate" if own_port else f"{url}/_oncegate"


@pytest.mark.parametrize(
    ("operations", "examples"), [("under the prefix", 5), ("on a port of their own", 1)], indirect=["operations"]
)
@pytest.mark.timeout(300)  # hundreds of requests, each of which is thought of anew
def test_what_an_operator_gets_is_as_described(operations: str, examples: int) -> None:
    """(401 is among it: schemathesis leaves the token out at times.) On either port they are the same operations."""
    assert probe(DESCRIPTION, operations, examples, always=OPERATOR) == {200, 400, 401, 404, 409}


@pytest.mark.parametrize("operations", ["under the prefix"], indirect=True)  # the same operations on either port
def test_what_everybody_else_gets_is_as_described(operations: str) -> None:
    assert probe(DESCRIPTION, operations, 3) == {200, 401, 404}


@pytest.mark.parametrize(
    ("error", "status"), [(CacheUnavailable("it is away"), 503), (RecordUnreadable("it is damaged"), 500)]
)
async def test_what_a_failing_cache_makes_of_it_is_as_described(
    error: Exception, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(What records answer otherwise: test_records.py.)"""

    async def failing(*_: Any, **__: Any) -> Any:
        raise error

    for method in ("show", "resolve"):
        monkeypatch.setattr(Records, method, failing)
    where = f"/_oncegate/records/{NOBODY}"
    async with served(f"http://127.0.0.1:{free_port()}", admin_token=TOKEN) as (client, _):
        client.headers.update(OPERATOR)
        for answer in (await client.get(where), await client.post(f"{where}/release", json={})):
            assert as_described(answer).status_code == status


async def test_metrics_come_in_both_formats_that_are_described() -> None:
    described = DESCRIPTION["paths"]["/metrics"]["get"]["responses"]["200"]
    async with served(f"http://127.0.0.1:{free_port()}") as (client, _):
        for accepted in described["content"]:
            answer = await client.get("/_oncegate/metrics", headers={"accept": accepted})
            assert answer.headers["content-type"].startswith(accepted)
            assert_described(answer, described)
