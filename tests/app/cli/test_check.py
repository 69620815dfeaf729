"""``oncegate check``: each thing that can be wrong has a finding that says what to do, and the exit code is right.

Rules of docs/contract.md: R7.8, R10.1, R10.5, R10.10.
"""

import asyncio
import json
from typing import Any

import pytest

from oncegate.app.cli.check.findings import Finding, Severity, examine
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.cache.redis.streams.stream import dead_letters_key, stream_key
from testing.command_line import invoke
from testing.issuer import Issuer, JwksServer
from testing.servers import RedisServer, free_port
from testing.upstreams import OK, Peer, Upstream, answering, closing_after, hanging

QUIET: dict[str, Any] = {
    "namespace": "checked",
    "secret": "a secret of 32 bytes, or of more",
    "idempotency": {"scope": ["header:X-Api-Key"]},
    "cache_timeout": 10,
}
"""Settings without anything to advise about, for a machine that may stand still for a while."""
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


async def found(area: str, upstream: str = "http://127.0.0.1:1", **settings: Any) -> list[Finding]:
    given = {"upstream_keepalive": 0.2} | QUIET | settings
    return [each for each in await examine(GatewaySettings(upstream=upstream, **given)) if each.area == area]


async def test_a_good_configuration_is_good(redis_url: str) -> None:
    (finding,) = await found("configuration", cache=redis_url)
    assert finding.severity is Severity.GOOD


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"idempotency": {}}, "idempotency.scope is not set"),
        ({"namespace": "default"}, "namespace is not set"),
        ({"secret": ""}, "secret is not set"),
        ({"idempotency": QUIET["idempotency"] | {"lease": 2}, "cache_timeout": 0.5}, "idempotency.lease is 2 s"),
        ({"routes": [{"path": "/a", "lease": 3}], "cache_timeout": 0.5}, "routes.0.lease is 3 s"),
        ({"upstream_keepalive": 60}, "upstream_keepalive is 60 s"),
        ({"routes": [{"path": "*"}, {"path": "/payments/{id}"}]}, "routes.1: '/payments/{id}' is never reached"),
        ({"routes": [{"path": "/a?b=1"}]}, "routes.0.path: '/a?b=1' matches nothing"),
    ],
)
async def test_what_is_probably_not_meant_is_advised_about(
    redis_url: str, settings: dict[str, Any], advice: str
) -> None:
    (finding,) = await found("configuration", cache=redis_url, **settings)
    assert finding.severity is Severity.ADVICE
    assert advice in finding.text


async def test_keys_that_verify_tokens_are_looked_for() -> None:
    issuer = Issuer()
    scope: dict[str, Any] = {"idempotency": {"scope": ["jwt:sub"]}}
    with JwksServer(issuer.jwks()) as server:
        (finding,) = await found("jwks", jwt={"jwks": server.url}, **scope)
        assert (finding.severity, finding.text.endswith("verified by: 1")) == (Severity.GOOD, True)
        server.status = 404
        (finding,) = await found("jwks", jwt={"jwks": server.url}, **scope)
        assert (finding.severity, "jwks: answered 404" in finding.text) == (Severity.FAILED, True)
        assert await found("jwks", jwt={"jwks": server.url}) == [], "no scope names a claim"


async def test_a_cache_that_would_lose_records_is_advised_about() -> None:
    config = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
    with RedisServer(config=config) as redis:
        findings = await found("cache", cache=redis.url)
    texts = [finding.text for finding in findings]
    assert [finding.severity for finding in findings] == [Severity.ADVICE] * 2
    assert "set noeviction" in texts[0]
    assert "no persistence" in texts[1]


async def test_a_cache_that_keeps_records_is_good() -> None:
    with RedisServer(persist=True) as redis:
        (finding,) = await found("cache", cache=redis.url)
    assert finding.severity is Severity.GOOD


async def test_a_cache_that_is_away_fails_and_its_password_is_not_told() -> None:
    (finding,) = await found("cache", cache=f"redis://:hunter2@127.0.0.1:{free_port()}")
    assert finding.severity is Severity.FAILED
    assert "hunter2" not in finding.text
    (finding,) = await found("cache")
    assert (finding.severity, "memory://" in finding.text) == (Severity.ADVICE, True)


async def test_a_cache_that_is_too_old_fails() -> None:
    """No such server is at hand, so its greeting is given by hand."""

    async def old(peer: Peer) -> None:
        while data := await peer.reader.read(65536):
            hello = b"*4\r\n$7\r\nversion\r\n$6\r\n6.2.14\r\n$2\r\nid\r\n:7\r\n"
            commands = data.count(b"SETINFO") or 1 + data.count(b"INFO\r\n") + data.count(b"LOAD")
            await peer.send((hello if b"HELLO" in data else b"+OK\r\n") + b"+OK\r\n" * (commands - 1))

    async with Upstream(old) as server:
        (finding,) = await found("cache", cache=server.url.replace("http", "redis"))
    assert (finding.severity, "6.2.14 is too old" in finding.text) == (Severity.FAILED, True), finding.text


async def test_an_upstream_that_keeps_connections_longer_is_good() -> None:
    async with Upstream(answering(HEAD)) as upstream:
        (finding,) = await found("upstream", upstream.url)
        assert finding.severity is Severity.GOOD, finding.text
        assert upstream.arrivals == 1


async def test_an_upstream_that_closes_idle_connections_early_is_found_out() -> None:
    async def early(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        await asyncio.sleep(0.3)  # idle for so long, it is closed: that is what is to be found

    async with Upstream(early) as upstream:
        (finding,) = await found("upstream", upstream.url, upstream_keepalive=60)
    assert finding.severity is Severity.ADVICE
    assert "closes idle connections after" in finding.text
    assert "upstream_keepalive" in finding.text


async def test_an_upstream_that_announces_when_it_closes_is_believed() -> None:
    announcing = HEAD.replace(b"\r\n\r\n", b"\r\nkeep-alive: timeout=1\r\n\r\n")
    async with Upstream(closing_after(announcing)) as upstream:
        (finding,) = await found("upstream", upstream.url, upstream_keepalive=60)
    assert finding.severity is Severity.GOOD, finding.text


async def test_an_upstream_that_keeps_no_connections_is_told() -> None:
    async with Upstream(closing_after(HEAD.replace(b"200 OK", b"200 OK\r\nconnection: close"))) as upstream:
        (finding,) = await found("upstream", upstream.url)
    assert finding.severity is Severity.ADVICE
    assert "closes its connection after each answer" in finding.text


async def test_an_upstream_that_is_away_hangs_or_speaks_otherwise_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = await found("upstream", f"http://127.0.0.1:{free_port()}")
    assert finding.severity is Severity.FAILED
    async with Upstream(hanging) as upstream:
        with monkeypatch.context() as patched:
            patched.setattr("oncegate.app.cli.check.findings.HEAD_SECONDS", 0.2)
            (finding,) = await found("upstream", upstream.url)
        assert (finding.severity, "did not answer" in finding.text) == (Severity.ADVICE, True)
    async with Upstream(answering(b"SSH-2.0-OpenSSH_9\r\n\r\n")) as upstream:
        (finding,) = await found("upstream", upstream.url)
        assert finding.severity is Severity.FAILED


async def test_exit_codes_and_json(redis_url: str) -> None:
    async with Upstream(answering(HEAD)) as upstream:
        arguments = ["check", "--upstream", upstream.url, "--cache", redis_url]
        quick = {"ONCEGATE_UPSTREAM_KEEPALIVE": "0.1", "ONCEGATE_CACHE_TIMEOUT": "10"}
        done = await asyncio.to_thread(invoke, *arguments, "--json", **quick)
        assert done.returncode == 0, done.stderr
        findings = json.loads(done.stdout)["findings"]
        assert {each["area"] for each in findings} == {"build", "configuration", "cache", "upstream"}
        assert (await asyncio.to_thread(invoke, *arguments, "--strict", **quick)).returncode == 1
    done = await asyncio.to_thread(invoke, "check", "--upstream", f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    done = await asyncio.to_thread(invoke, "check", "--upstream", "ftp://x", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["findings"][0]["verdict"] == "failed"


async def test_ok_is_not_asked_for_a_body() -> None:
    """An upstream that answers HEAD with a body has its connection closed; nobody hangs."""
    async with Upstream(answering(OK)) as upstream:
        (finding,) = await found("upstream", upstream.url)
    assert finding.severity in (Severity.ADVICE, Severity.FAILED)


ASYNC: dict[str, Any] = {"routes": [{"path": "/a", "mode": "either", "consumer": "billing"}], "stream_limit": 4}


async def test_a_stream_is_told_of_with_its_groups() -> None:
    with RedisServer() as redis:
        (good, missing) = await found("stream", cache=redis.url, **ASYNC)
        assert good.text == "stream commands: 0 entries, at most 4 (no group reads it)"
        assert missing.severity is Severity.ADVICE
        assert "nobody has begun to read it as billing" in missing.text

        key = stream_key("checked", "commands")
        redis.command("XGROUP", "CREATE", key, "billing", "0", "MKSTREAM")
        (good,) = await found("stream", cache=redis.url, **ASYNC)
        assert good.severity is Severity.GOOD
        assert good.text.endswith("(billing has 0 to read and 0 to acknowledge)")

        for _ in range(2):
            redis.command("XADD", key, "*", "v", "1")
        redis.command("XREADGROUP", "GROUP", "billing", "one", "COUNT", "1", "STREAMS", key, ">")
        redis.command("XADD", dead_letters_key("checked", "commands"), "*", "v", "1")
        (good, behind, dead) = await found("stream", cache=redis.url, **ASYNC)
        assert "2 entries" in good.text
        assert "billing has 1 to read and 1 to acknowledge, of 4" in behind.text
        assert "has given up commands, 1 so far" in dead.text
        assert behind.severity is dead.severity is Severity.ADVICE


async def test_streams_are_looked_at_only_where_a_route_is_asynchronous_and_fail_with_their_redis(
    redis_url: str,
) -> None:
    assert await found("stream", cache=redis_url) == []
    (finding,) = await found("stream", cache=f"redis://:hunter2@127.0.0.1:{free_port()}", **ASYNC)
    assert finding.severity is Severity.FAILED
    assert "hunter2" not in finding.text


REFUSING: list[tuple[dict[str, str], list[tuple[str, ...]], str]] = [
    ({"maxmemory-policy": "noeviction"}, [("CONFIG", "SET", "maxmemory", "1")], "raise maxmemory"),
    ({"min-replicas-to-write": "1"}, [], "bring replicas back"),
    ({}, [("REPLICAOF", "127.0.0.1", "1")], "use the primary's address"),
    (
        {},
        [("ACL", "SETUSER", "default", "resetkeys", "~other:*")],
        "let the user run EVALSHA and SCRIPT LOAD, and read and write the keys checked:*",
    ),
]


@pytest.mark.parametrize(("config", "commands", "remedy"), REFUSING)
async def test_a_cache_that_takes_no_records_is_found_and_said_what_to_do(
    config: dict[str, str], commands: list[tuple[str, ...]], remedy: str
) -> None:
    with RedisServer(config=config) as redis:
        for command in commands:
            redis.command(*command)
        findings = await found("cache", cache=redis.url)
    assert findings[-1].severity is Severity.FAILED
    assert "takes no records" in findings[-1].text
    assert remedy in findings[-1].text


async def test_nothing_is_left_of_the_record_that_was_tried(redis_url: str) -> None:
    with RedisServer() as redis:
        await found("cache", cache=redis.url)
        assert redis.command("DBSIZE") == 0
