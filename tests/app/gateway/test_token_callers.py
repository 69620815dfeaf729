"""Callers who are known by what their token claims, at the gateway: forwarded, submitted, and asking for a command's status.

Rules of docs/contract.md: R4.33, R4.35, R6.15, R6.16, R6.17, R6.18, R6.20.
"""

import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from oncegate.app.factory import create_cache
from oncegate.app.operators.records.records import NotARecord
from oncegate.app.operators_factory import create_records
from oncegate.app.serve import serve
from oncegate.app.settings.advice import settings_advice
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import ConfigurationError, load
from oncegate.cache.redis.streams.stream import stream_key
from oncegate.middleware.tokens.settings import JwtSettings
from testing.issuer import ISSUER, Issuer, bearer
from testing.served import served
from testing.servers import RedisServer
from testing.upstreams import Upstream, answering
from tests.app.described import DESCRIPTION, assert_described
from tests.app.fast_path import CREATED
from tests.app.submitted import STATUS, TIMEOUT, TOKEN
from tests.token_callers import INVALID, SCOPE, VALID, Lines, Scene, comes, rotated, rotated_and_away, scene

ROUTES = [{"path": "/reports", "mode": "async", "on_missing_key": "reject"}]


@pytest.fixture
def there() -> Iterator[Scene]:
    with scene() as made:
        yield made


async def sent(client: httpx.AsyncClient, path: str, key: str, lines: Lines) -> tuple[int, str, bool]:
    answer = await client.post(path, content=b"{}", headers=[("idempotency-key", key), *lines])
    problem = answer.headers["content-type"] == "application/problem+json" if answer.status_code >= 400 else False
    return answer.status_code, answer.json()["code"] if problem else "", "idempotent-replayed" in answer.headers


@asynccontextmanager
async def forwarding(there: Scene) -> AsyncIterator[tuple[httpx.AsyncClient, Upstream]]:
    """A client of a gateway, and the upstream behind it."""
    settings: dict[str, Any] = {"jwt": there.jwt, "idempotency": {"scope": SCOPE}, "admin_token": TOKEN}
    async with Upstream(answering(CREATED)) as upstream, served(upstream.url, **settings) as (client, _):
        yield client, upstream


@pytest.mark.parametrize("name", [*VALID, *INVALID])
async def test_each_caller_at_the_gateway(there: Scene, name: str) -> None:
    async with forwarding(there) as (client, upstream):

        async def send(key: str, lines: Lines) -> tuple[int, str, bool]:
            return await sent(client, "/payments", key, lines)

        async def executions() -> int:
            return upstream.arrivals

        await comes(there, send, executions, name)


@asynccontextmanager
async def submitting(
    there: Scene, redis_server: RedisServer, **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """A client of a gateway whose commands are submitted, and the gateway's namespace."""
    namespace = uuid4().hex
    settings = {"routes": ROUTES, "idempotency": {"scope": SCOPE}, "jwt": there.jwt} | settings
    own: dict[str, Any] = {
        "cache": redis_server.url,
        "namespace": namespace,
        "cache_timeout": TIMEOUT,
        "admin_token": TOKEN,
    }
    async with served("http://127.0.0.1:1", **own, **settings) as (client, _):
        yield client, namespace


@pytest.mark.parametrize("name", [*VALID, *INVALID])
async def test_each_caller_of_an_asynchronous_route(there: Scene, redis_server: RedisServer, name: str) -> None:
    async with submitting(there, redis_server) as (client, namespace):

        async def send(key: str, lines: Lines) -> tuple[int, str, bool]:
            return await sent(client, "/reports", key, lines)

        async def executions() -> int:
            return int(redis_server.command("XLEN", stream_key(namespace, "commands")))

        await comes(there, send, executions, name)


async def test_a_status_is_for_any_token_of_the_same_caller(there: Scene, redis_server: RedisServer) -> None:
    async with submitting(there, redis_server) as (client, _):

        async def answer_to(lines: Lines) -> httpx.Response:
            return await client.get(location, headers=lines)

        lines = [("idempotency-key", "k"), *there.issuer.lines()]
        location = (await client.post("/reports", content=b"{}", headers=lines)).headers["location"]
        assert (await answer_to(there.issuer.lines())).status_code == 200
        assert (await answer_to(bearer(TOKEN))).status_code == 200, (
            "an operator's token is no JWT, and needs not be one"
        )
        assert (await answer_to(rotated(there))).status_code == 200, "for which the keys are fetched anew"
        for stranger in (there.issuer.lines("bob"), [], [("x-sub", "alice")]):
            assert (await answer_to(stranger)).status_code == 404
        for name, caller in INVALID.items():
            if "9 KB" not in name:
                refused = await answer_to(caller(there))
                assert refused.status_code == 401, name
                assert_described(refused, STATUS["401"])
        assert (await answer_to(rotated_and_away(there))).status_code == 503


async def test_a_client_can_t_take_the_token_s_header_away(there: Scene) -> None:
    """`Connection` names it, or it comes as a CGI upstream would take it for the same: the upstream must see what counted."""
    there.settings = {"header": "X-Token"}
    async with forwarding(there) as (client, upstream):
        token = there.issuer.token()
        lines = [("idempotency-key", "k"), ("x-token", token), ("x_token", "another"), ("connection", "x-token")]
        assert (await client.post("/", headers=lines)).status_code == 201
        assert upstream.requests[0].values("x-token") == [token]
        assert upstream.requests[0].values("x_token") == []


async def test_operators_give_the_claims_not_a_token(there: Scene) -> None:
    settings: Any = {
        "upstream": "http://127.0.0.1:1",
        "jwt": there.jwt,
        "idempotency": {"scope": [*SCOPE, "jwt:https://a/b"]},
    }
    made = GatewaySettings(**settings)
    records = create_records(made, create_cache(made))
    lines = [f"jwt:iss: {ISSUER}", "jwt:sub: alice", "jwt:https://a/b: c: d"]
    expected = [b"jwt:iss", b"1", ISSUER.encode(), b"jwt:sub", b"1", b"alice", b"jwt:https://a/b", b"1", b"c: d"]
    assert records.callers(lines) == [expected]
    with pytest.raises(NotARecord, match="no header tells who the caller is: give jwt:iss or jwt:sub"):
        records.callers([f"Authorization: Bearer {there.issuer.token()}"])


async def test_an_operator_finds_the_record_of_a_caller(there: Scene) -> None:
    async with forwarding(there) as (client, _):
        await sent(client, "/payments", "k", there.issuer.lines())
        found = {}
        for name in ("alice", "bob"):
            query = {"key": "k", "caller": [f"jwt:iss: {ISSUER}", f"jwt:sub: {name}"]}
            operator = {"authorization": f"Bearer {TOKEN}"}
            found[name] = (await client.post("/_oncegate/records/find", json=query, headers=operator)).json()["ids"]
        assert (len(found["alice"]), found["bob"]) == (1, [])
        policy = await client.get("/_oncegate/policy")
        assert_described(policy, DESCRIPTION["paths"]["/policy"]["get"]["responses"]["200"])
        assert policy.json()["routes"][-1]["scope"] == {"headers": [], "claims": ["iss", "sub"], "required": False}


# -- how it is set up


def test_a_claim_needs_keys(tmp_path: Path) -> None:
    file = tmp_path / "oncegate.toml"
    file.write_text('upstream = "http://a"\n[[routes]]\npath = "/a"\nscope = ["jwt:sub"]\n')
    with pytest.raises(ConfigurationError) as refused:
        load({}, str(file))
    assert str(refused.value) == (
        "jwt: is missing, and a scope names a token's claim (jwt:sub), which has to be verified: set jwks in [jwt]"
    )


def test_the_environment_has_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEGATE_JWT__JWKS", "https://issuer.example/jwks.json")
    monkeypatch.setenv("ONCEGATE_JWT__AUDIENCE", '["payments"]')
    monkeypatch.setenv("ONCEGATE_IDEMPOTENCY__SCOPE", '["jwt:sub"]')
    settings = load({"upstream": "http://a"})
    assert settings.jwt is not None
    assert (settings.jwt.jwks, settings.jwt.audience) == ("https://issuer.example/jwks.json", ("payments",))


@pytest.fixture
def log_as_it_was() -> Iterator[None]:
    """A start has the log go where standard error goes, which is this test's alone."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("log_as_it_was")
def test_a_start_without_keys_or_without_pyjwt_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    settings: Any = {"upstream": "http://127.0.0.1:1", "idempotency": {"scope": ["jwt:sub"]}}
    assert serve(GatewaySettings(**settings, jwt=JwtSettings(jwks=str(tmp_path / "none")))) == 2
    assert capfd.readouterr().err == "oncegate: jwt: jwks: can't be read: No such file or directory\n"
    monkeypatch.setitem(sys.modules, "jwt", None)
    assert serve(GatewaySettings(**settings, jwt=JwtSettings(jwks=Issuer().write(tmp_path / "jwks")))) == 2
    assert capfd.readouterr().err == (
        "oncegate: jwt: a scope by a token's claim needs PyJWT: pip install 'oncegate[jwt]'\n"
    )


@pytest.mark.parametrize(
    ("jwt", "scope", "advice"),
    [
        ({"jwks": "https://a/b"}, ["jwt:sub"], "jwt.issuer or jwt.audience is not set"),
        ({"jwks": "http://a/b", "issuer": "a", "audience": ["b"]}, ["jwt:sub"], "jwt.jwks is fetched in clear"),
        (
            {"jwks": "https://a/b", "issuer": "a", "audience": ["b"]},
            ["header:X-Key"],
            "jwt is set, and no scope names a claim",
        ),
        ({"jwks": "https://a/b", "issuer": "a", "audience": ["b"]}, ["jwt:sub"], None),
    ],
)
def test_what_is_probably_not_meant_is_advised_about(jwt: Any, scope: list[str], advice: str | None) -> None:
    settings: Any = {"upstream": "http://a", "jwt": jwt, "idempotency": {"scope": scope}}
    lines = settings_advice(GatewaySettings(**settings))
    assert [line.startswith(advice or "?") for line in lines] == ([True] if advice else [])
