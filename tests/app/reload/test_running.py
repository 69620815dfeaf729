"""What a reload replaces in a process, and what lasts: limits, counts, attempts, connections, the keys of tokens.

Rules of docs/contract.md: R10.13, R10.14.
"""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from oncegate.app.gateway_server import server_config
from oncegate.app.policies import gateway_policies, labels_of
from oncegate.app.reload.running import Running
from oncegate.app.reload.worker import OwnReload
from oncegate.app.server.accept import bind
from oncegate.app.settings.admin_tokens import AdminToken
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import ConfigurationError
from oncegate.app.settings.together import FORWARDED_METHODS
from oncegate.app.telemetry.metrics import SPARE_COLUMNS
from testing.issuer import Issuer, JwksServer
from testing.running import running
from testing.servers import RedisServer
from testing.upstreams import OK, PATIENCE, Upstream, answering
from testing.waiting import until

AUTHORIZED = {"Authorization": "Bearer a"}
TOO_MANY = "routes: more of them have come since the start than can be counted: a restart is needed"


class Written:
    """What ``read`` reads: settings, as a test writes them; or an error."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def write(self, **settings: Any) -> None:
        self.settings = {"upstream": self.settings["upstream"], **settings}

    def read(self) -> GatewaySettings:
        return GatewaySettings(**{"public": ["metrics", "policy"], **self.settings})


@asynccontextmanager
async def reloadable(
    upstream: str, *, parts: Any = (), **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, OwnReload, Running, Written]]:
    """A gateway in this event loop, as in a process that is alone."""
    written = Written(upstream=upstream, **settings)
    gateway = Running(written.read(), admin_token="t" * 20, read=written.read, parts=parts)
    own = OwnReload(gateway)
    own.start()
    sockets = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    async with (
        running(server_config(gateway), sockets),
        httpx.AsyncClient(base_url=url, timeout=PATIENCE, verify=False, headers=AUTHORIZED) as client,
    ):
        yield client, own, gateway, written


async def post(client: httpx.AsyncClient, key: str, path: str = "/p", **headers: str) -> httpx.Response:
    return await client.post(path, headers={"Idempotency-Key": key, **headers}, content=b"{}")


async def test_a_record_from_before_is_found_in_memory() -> None:
    async with (
        Upstream(answering(OK)) as upstream,
        reloadable(upstream.url) as (client, own, _, written),
    ):
        await post(client, "k-1")
        written.write(via=False)
        assert (await own.reload()).refusal == ""
        assert (await post(client, "k-1")).headers["idempotent-replayed"] == "true"
        assert len(upstream.requests) == 1


async def test_limits_count_what_runs_since_before() -> None:
    """Of the process and of a caller: lower ones refuse at once, higher ones take at once; what ran frees its slot there."""
    go_on = asyncio.Event()
    async with (
        Upstream(answering(OK, after=go_on)) as upstream,
        reloadable(upstream.url, max_in_flight=2) as (client, own, _, written),
    ):
        running_since = [asyncio.create_task(post(client, f"k-{number}")) for number in range(2)]
        await upstream.received(2)
        written.write(max_in_flight=3)
        await own.reload()
        running_since.append(asyncio.create_task(post(client, "k-2")))
        await upstream.received(3)
        assert (await post(client, "k-3")).json()["code"] == "overloaded"
        written.write(max_in_flight=4, max_in_flight_per_caller=1)
        await own.reload()
        running_since.append(asyncio.create_task(post(client, "k-4")))
        await upstream.received(4)
        written.write(max_in_flight=5, max_in_flight_per_caller=1)
        await own.reload()
        assert (await post(client, "k-5")).json()["code"] == "too-many-keys"
        written.write(max_in_flight=5)
        await own.reload()
        running_since.append(asyncio.create_task(post(client, "k-6")))
        await upstream.received(5)
        assert (await post(client, "k-7")).json()["code"] == "overloaded"
        go_on.set()
        assert {(await each).status_code for each in running_since} == {200}
        at_once = [post(client, f"late-{number}") for number in range(5)]
        assert [each.status_code for each in await asyncio.gather(*at_once)] == [200] * 5, "each slot is free again"
        metrics = (await client.get("/_oncegate/metrics")).text
        assert "oncegate_attempts_limit 5.0" in metrics
        assert "oncegate_attempts_in_flight 0.0" in metrics


async def test_the_connection_by_which_operators_see_commands_lasts_and_is_closed_in_the_end() -> None:
    routes: Any = [{"path": "/reports", "mode": "either"}]
    with RedisServer() as redis:
        kept = {"cache": redis.url, "cache_timeout": 10.0, "routes": routes}
        async with reloadable("http://127.0.0.1:9", **kept) as (client, own, _, written):
            streams = partial(client.get, "/_oncegate/streams/", headers={"Authorization": "Bearer " + "t" * 20})
            without = redis.connections()
            assert (await streams()).status_code == 200
            there = redis.connections()
            assert there > without
            written.write(**kept, via=False)
            assert (await own.reload()).refusal == ""
            assert (await streams()).status_code == 200
            assert redis.connections() == there
        await until(lambda: redis.connections() == 0)


async def test_routes_that_come_are_counted_and_those_that_go_stay_counted() -> None:
    async with (
        Upstream(answering(OK)) as upstream,
        reloadable(upstream.url, routes=[{"path": "/a"}]) as (client, own, _, written),
    ):
        await post(client, "k-1", "/a")
        written.write(routes=[{"path": "/b", "methods": ["PUT"]}])
        await own.reload()
        await client.put("/b", headers={"Idempotency-Key": "k-2"}, content=b"{}")
        await post(client, "k-3", "/a")
        page = (await client.get("/_oncegate/metrics")).text
        counted = 'oncegate_requests_total{{decision="first",method="{}",mode="enforced",route="{}"}} 1.0'
        for method, route in (("POST", "/a"), ("PUT", "/b"), ("POST", "*")):
            assert counted.format(method, route) in page


async def test_more_routes_than_can_be_counted_are_refused() -> None:
    async with reloadable("http://127.0.0.1:1") as (client, own, _, written):
        methods = sorted(FORWARDED_METHODS)
        written.write(routes=[{"path": f"/r/{number}", "methods": methods} for number in range(100)])
        reloaded = await own.reload()
        assert reloaded.refusal == TOO_MANY
        assert (await client.get("/_oncegate/healthz")).status_code == 200


async def test_more_ways_to_list_known_routes_than_can_be_counted_are_refused() -> None:
    """Whether each was matched is counted, too: by its pattern and all of its methods."""
    both = [{"path": "/a", "methods": ["POST", "PUT"]}]
    alone = [{"path": "/a", "methods": ["POST"]}, {"path": "/a", "methods": ["PUT"]}]
    async with (
        Upstream(answering(OK)) as upstream,
        reloadable(upstream.url, routes=both) as (client, own, running, written),
    ):
        metrics, routes = running.gateway.lasting.metrics, labels_of(gateway_policies(written.read()))[0]
        metrics.serve("0", routes, (), {}, {}, [*routes[:-1], *[("/b", ("POST",))] * (SPARE_COLUMNS - 2)])
        written.write(routes=alone)
        reloaded = await own.reload()
        assert reloaded.refusal == TOO_MANY
        assert (await post(client, "k-1", "/a")).status_code == 200
        written.write(routes=alone[:1])
        assert (await own.reload()).refusal == "", "there is room for one"
        assert (await post(client, "k-2", "/a")).status_code == 200
        page = (await client.get("/_oncegate/metrics")).text
        assert 'oncegate_route_matched{methods="POST",route="/a"} 1.0' in page


async def test_another_upstream_gets_what_begins_from_then_on() -> None:
    async with (
        Upstream(answering(OK)) as first,
        Upstream(answering(OK)) as second,
        reloadable(first.url) as (client, own, _, written),
    ):
        await client.get("/")
        written.settings = {"upstream": second.url}
        await own.reload()
        await client.get("/")
        await post(client, "k-1")
        assert (len(first.requests), len(second.requests)) == (1, 2)
        await first.gone()


async def test_operators_tokens_come_and_go() -> None:
    alice = AdminToken.of("alice", "a" * 20).setting()
    async with reloadable("http://127.0.0.1:1", admin_tokens=[alice]) as (client, own, _, written):
        brought = {"Authorization": "Bearer " + "a" * 20}
        assert (await client.get("/_oncegate/records/", headers=brought)).status_code == 200
        written.write(admin_tokens=[])
        await own.reload()
        assert (await client.get("/_oncegate/records/", headers=brought)).status_code == 401


async def test_an_issuer_that_is_away_is_in_the_way_of_new_keys_alone() -> None:
    """Its last good keys go on counting, also behind a reload; keys from elsewhere have to be there first."""
    issuer = Issuer()
    scope = {"idempotency": {"scope": ["jwt:sub"]}}
    with JwksServer(issuer.jwks()) as server, JwksServer(issuer.jwks()) as other:
        async with (
            Upstream(answering(OK)) as upstream,
            reloadable(upstream.url, jwt={"jwks": server.url}, **scope) as (client, own, _, written),
        ):
            token = {"Authorization": f"Bearer {issuer.token(sub='alice')}"}
            assert (await post(client, "k-1", **token)).status_code == 200
            server.status = other.status = 500
            written.write(jwt={"jwks": server.url}, max_in_flight=5, **scope)
            assert (await own.reload()).refusal == ""
            assert (await post(client, "k-1", **token)).headers["idempotent-replayed"] == "true"
            written.write(jwt={"jwks": other.url}, **scope)
            assert (await own.reload()).refusal == "jwt: jwks: answered 500"
            other.status = 200
            assert (await own.reload()).refusal == ""
            assert (await post(client, "k-1", **token)).headers["idempotent-replayed"] == "true"


async def test_a_part_that_cannot_be_prepared_keeps_all_as_it_was() -> None:
    """The place where others register: prepared before anything changes, put in place with all else."""
    placed: list[int] = []

    def prepare(settings: GatewaySettings) -> Any:
        if settings.max_in_flight == 13:
            raise ConfigurationError("tls_cert: is no certificate")
        return lambda: placed.append(settings.max_in_flight)

    async with reloadable("http://127.0.0.1:1", parts=[prepare]) as (client, own, gateway, written):
        written.write(max_in_flight=13)
        before = gateway.digest
        assert (await own.reload()).refusal == "tls_cert: is no certificate"
        assert (gateway.digest, gateway.settings.max_in_flight, placed) == (before, 1000, [])
        written.write(max_in_flight=12)
        reloaded = await own.reload()
        assert (reloaded.digest, placed) == (gateway.digest, [12])
        assert (await client.get("/_oncegate/policy")).json()["configuration"] == reloaded.digest


async def test_a_fault_of_ours_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(_: GatewaySettings) -> Any:
        raise ZeroDivisionError

    async with reloadable("http://127.0.0.1:1", parts=[prepare]) as (client, own, _, __):
        assert (await own.reload()).refusal == "a fault of the gateway's own: ZeroDivisionError"
        assert (await client.get("/_oncegate/healthz")).status_code == 200


async def test_a_scope_that_changes_is_warned_of_where_the_cache_cannot_tell(caplog: pytest.LogCaptureFixture) -> None:
    async with reloadable("http://127.0.0.1:1") as (_, own, __, written):
        written.write(idempotency={"scope": ["header:X-User"]})
        await own.reload()
        assert "not as at the last start: scope" in caplog.text


async def test_gateways_of_before_are_gone() -> None:
    """Also with a connection that is open since then: a hundred reloads need no more memory than one."""
    async with (
        Upstream(answering(OK)) as upstream,
        reloadable(upstream.url) as (client, own, gateway, written),
    ):
        await post(client, "k-0")
        seen = []
        for number in range(3):
            written.write(max_in_flight=10 + number)
            await own.reload()
            await post(client, f"k-{number}")
            await client.get("/")
            seen.append(weakref.ref(gateway.gateway))

        def gone() -> bool:
            gc.collect()
            return [each() is None for each in seen] == [True, True, False]

        await until(gone, "only the last one is there")
