"""What docs/security.md says is kept, shared and refused, held to a gateway and a Redis that are really there.

Rules of docs/contract.md: R6.9, R8.9, R9.17.
"""

import asyncio
import re
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing import template
from testing.certificates import Authority
from testing.issuer import Issuer
from testing.pages import BLOCK
from testing.served import raw, served
from testing.servers import RedisServer
from testing.tls_served import listening
from testing.upstreams import OK, Upstream, answering

KEY, CREDENTIAL, COMMAND = "secret-key", "Bearer secret-token", b"secret command"
CREATED = b"HTTP/1.1 201 Created\r\nset-cookie: secret-cookie\r\nx-a: 1\r\ncontent-length: 2\r\n\r\nok"


async def pay(client: httpx.AsyncClient, **fields: str) -> httpx.Response:
    headers = {"Idempotency-Key": KEY, "Authorization": CREDENTIAL} | {
        name.replace("_", "-"): value for name, value in fields.items()
    }
    return await client.post("/x", headers=headers, content=COMMAND)


async def test_a_record_holds_the_response_and_none_of_the_requests_secrets() -> None:
    with RedisServer() as server:
        # Confined to its namespace, and without the permissions that the page calls dispensable.
        user = ("ACL", "SETUSER", "oncegate", "on", ">pw", "~payments:*", "+@all", "-info", "-config", "-client|kill")
        server.command(*user)
        url = server.url.replace("127.0.0.1", "oncegate:pw@127.0.0.1")
        async with (
            Upstream(answering(CREATED)) as upstream,
            served(upstream.url, cache=url, namespace="payments") as (client, _),
        ):
            assert "secret-cookie" in (await pay(client)).headers["set-cookie"]
            replayed = await pay(client)
        assert replayed.headers["idempotent-replayed"] == "true"
        assert "set-cookie" not in replayed.headers
        (name,) = server.command("KEYS", "*")
        record = server.command("GET", name)
    assert name.startswith(b"payments:")
    assert record.endswith(b"ok")
    assert b'["x-a","1"]' in record
    assert b"secret" not in name + record


async def test_a_command_is_stored_whole_and_without_its_credentials() -> None:
    with RedisServer() as server:
        patterns = ("~payments:*", "~{payments:*")
        server.command(
            "ACL", "SETUSER", "oncegate", "on", ">pw", *patterns, "+@all", "-info", "-config", "-client|kill"
        )
        url = server.url.replace("127.0.0.1", "oncegate:pw@127.0.0.1")
        routes = [{"path": "/x", "mode": "async", "on_missing_key": "reject"}]
        async with served("http://127.0.0.1:1", cache=url, namespace="payments", routes=routes) as (client, _):
            accepted = await pay(client, Cookie="secret-cookie", Proxy_Authorization="secret-proxy")
            assert accepted.status_code == 202
            status = await client.get(accepted.headers["location"], headers={"Authorization": CREDENTIAL})
            assert status.json()["status"] == "accepted"
        names = sorted(server.command("KEYS", "*"))
        assert [name.startswith((b"payments:", b"{payments:")) for name in names] == [True] * 6
        ((_, fields),) = server.command("XRANGE", "{payments:stream:commands}", "-", "+")
    assert (fields[b"key"], fields[b"body"]) == (KEY.encode(), COMMAND)
    others = [value for name, value in fields.items() if name not in (b"key", b"body")]
    assert b"secret" not in b"".join(others).replace(KEY.encode(), b"")  # the key's line travels as it came


async def test_a_changed_credential_makes_a_new_caller() -> None:
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        await pay(client)
        await pay(client, Authorization="Bearer refreshed")
        assert upstream.arrivals == 2


@pytest.mark.parametrize(
    ("scope", "executed"), [(["header:Authorization"], 1), (["header:Host", "header:Authorization"], 2)]
)
async def test_host_names_share_keys_unless_the_scope_has_them(scope: list[str], executed: int) -> None:
    async with Upstream(answering(OK)) as upstream, served(upstream.url, idempotency={"scope": scope}) as (client, _):
        await pay(client, Host="a.example")
        await pay(client, Host="b.example")
        assert upstream.arrivals == executed


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (b"content-length: 5\r\ntransfer-encoding: chunked", b"400"),
        (b"content-length: 5\r\ncontent-length: 5", b"400"),
        (b"transfer-encoding: chunked\r\ntransfer-encoding: chunked", b"400"),
        (b"content-length: +5", b"400"),
        (b"content-length: 5, 5", b"400"),
        (b"transfer-encoding: gzip, chunked", b"501"),
        (b"transfer-encoding: xchunked", b"400"),
        (b"content-length: 0\r\nx-a: 1\r\n folded", b"400"),
        (b"content-length: 0\nx-a: 1", b"400"),
        (b"content-length : 0", b"400"),
        (b"content-length: 0\r\nx-a: \0", b"400"),
        (b"content-length: 0\r\nhost: other", b"400"),
        (b"content-length: 0\r\nx-a: " + b"1" * 65536, b"431"),
        (b"content-length: 0\r\nconnection: upgrade\r\nupgrade: websocket", b"501"),
    ],
    ids=lambda value: repr(value[:60]),
)
async def test_what_could_be_framed_in_two_ways_is_refused_and_the_connection_closed(
    fields: bytes, status: bytes
) -> None:
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        async with asyncio.timeout(60):
            answer = await raw(
                client, b"POST /x HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\n" + fields + b"\r\n\r\n0\r\n\r\n"
            )
        assert answer.split(b" ", 2)[1] == status
        assert upstream.arrivals == 0


async def test_what_some_servers_read_as_a_header_that_counts_is_dropped() -> None:
    request = (
        b"POST /x HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\nidempotency_key: other\r\ncontent_length: 5\r\n"
        b"x-forwarded-for: 192.0.2.1\r\nx_forwarded_for: 192.0.2.2\r\nidempotency-attempt: 7\r\nauthorization: a\r\n"
        b"connection: close, authorization, idempotency-key\r\ntransfer-encoding: chunked\r\n\r\n"
        b"2;extension=1\r\nab\r\n0\r\nx-trailer: 1\r\n\r\n"
    )
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        await raw(client, request)
        assert [(name, value) for name, value in upstream.requests[0].fields if name != "via"] == [
            ("host", "a"),
            ("idempotency-key", "k"),
            ("authorization", "a"),
            ("idempotency-attempt", "1"),
            ("x-forwarded-for", "127.0.0.1"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "a"),
            ("content-length", "2"),
        ]


async def test_without_cors_origins_the_gateway_adds_nothing() -> None:
    """What docs/faq.md tells of scripts in browsers."""
    allowing = [
        b"HTTP/1.1 201 Created\r\naccess-control-allow-origin: https://%b.example\r\ncontent-length: 2\r\n\r\nok" % name
        for name in (b"one", b"two", b"three")
    ]
    for scope, origins in (
        (["header:Authorization"], ["https://one.example", "https://one.example"]),
        (["header:Authorization", "header:Origin"], ["https://one.example", "https://two.example"]),
    ):
        async with (
            Upstream(answering(*allowing)) as upstream,
            served(upstream.url, idempotency={"scope": scope}) as (client, _),
        ):
            answers = [await pay(client, Origin=origin) for origin in ("https://one.example", "https://two.example")]
            assert [answer.headers["access-control-allow-origin"] for answer in answers] == origins
            before = upstream.arrivals
            await client.options("/x", headers={"Origin": "https://one.example"})
            assert upstream.arrivals == before + 1, "a preflight passes through"
            problem = await client.post("/x", headers={"Idempotency-Key": '"', "Origin": "https://one.example"})
            assert problem.status_code == 400
            assert "access-control-allow-origin" not in problem.headers


# -- what the page says to set, and what is without it ------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs/security.md").read_text("utf-8")


def advised(kind: str, word: str) -> str:
    (found,) = [block for language, block in BLOCK.findall(PAGE) if language == kind and word in block]
    return str(found)


async def test_callers_by_an_api_key_share_no_answer_once_the_scope_has_it() -> None:
    advice = tomllib.loads(advised("toml", "X-Api-Key"))
    for settings, executed, without in ((None, 1, 200), (advice["idempotency"], 2, 401)):
        given: dict[str, Any] = {} if settings is None else {"idempotency": settings}
        async with Upstream(answering(OK)) as upstream, served(upstream.url, **given) as (client, _):
            for name in ("alice", "bob"):
                await client.post("/x", headers={"Idempotency-Key": KEY, "X-Api-Key": name}, content=COMMAND)
            assert upstream.arrivals == executed
            bare = await client.post("/x", headers={"Idempotency-Key": KEY}, content=COMMAND)
            assert bare.status_code == without


async def test_a_retry_with_a_refreshed_token_is_a_replay_once_the_scope_is_its_claims(tmp_path: Path) -> None:
    advice = tomllib.loads(advised("toml", "[jwt]"))
    issuer = Issuer()
    (tmp_path / "jwks.json").write_bytes(issuer.jwks())
    by_claims = {"idempotency": advice["idempotency"], "jwt": advice["jwt"] | {"jwks": str(tmp_path / "jwks.json")}}
    for given, executed in (({}, 2), (by_claims, 1)):
        async with Upstream(answering(OK)) as upstream, served(upstream.url, **given) as (client, _):
            for number in range(2):  # another token each time, of one bearer
                assert (await pay(client, Authorization=f"Bearer {issuer.token(jti=str(number))}")).status_code == 200
            assert upstream.arrivals == executed
            if given:
                other = await pay(client, Authorization=f"Bearer {issuer.token(aud='another service')}")
                assert (other.status_code, other.json()["code"]) == (401, "caller-invalid")


@pytest.mark.parametrize(
    ("word", "right", "wrong"),
    [("without_secrets", ", redact=without_secrets", ""), ("def logged_in(", ", caller=logged_in", "")],
)
def test_the_page_s_app_without_what_it_recommends_shows_the_fault(
    tmp_path: Path, word: str, right: str, wrong: str
) -> None:
    program = advised("python", word)
    assert right in program
    for text, code in ((program, 0), (program.replace(right, wrong), 1)):
        done = template.run("-c", text, preloaded=("oncegate", "fastapi.testclient"), cwd=tmp_path)
        assert done.returncode == code, done.stderr
    assert re.search(r"AssertionError|KeyError", done.stderr)


async def test_the_page_s_certificate_is_what_clients_are_shown(tmp_path: Path) -> None:
    authority, advice = Authority(tmp_path), tomllib.loads(advised("toml", "tls_cert"))
    assert set(advice) == {"tls_cert", "tls_key"}
    own = dict(zip(advice, map(str, authority.issue()), strict=True))
    async with (
        Upstream(answering(OK)) as upstream,
        listening(authority, upstream.url, **own) as there,
        there.client() as client,
    ):
        assert (await client.get("/")).content == b"ok"


def test_every_block_of_the_page_is_followed() -> None:
    words = ("tls_cert", "X-Api-Key", "[jwt]", "without_secrets", "def logged_in(")
    for language, block in BLOCK.findall(PAGE):
        if language:
            assert any(word in block for word in words), block
    assert all(word in re.sub(r"\s+", " ", PAGE) for word in words)
