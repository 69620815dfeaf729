"""``audit/`` and ``oncegate audit list``: who changed what, when and why, for all gateways and command lines of a cache.

Rules of docs/contract.md: R11.39.
"""

import asyncio
import json
import os
from typing import Any

import httpx
import pytest

from oncegate.app.operators.audit import Author
from oncegate.app.operators.audit_lines import MOST_LINES, AuditLines
from oncegate.app.settings.admin_tokens import AdminToken, new_token
from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.store import Cache, KeepsAudit
from testing.command_line import invoke
from testing.served import served
from testing.servers import RedisServer
from testing.upstreams import Upstream, resetting_after
from tests.app.described import as_described
from tests.app.operators.test_records import unknown

ALICE, BOB = new_token(), new_token()
TOKENS = AdminToken.of("alice", ALICE, writes=False).setting(), AdminToken.of("bob", BOB).setting()


def lines_in(cache: Cache, namespace: str = "") -> AuditLines:
    assert isinstance(cache, KeepsAudit)
    return AuditLines(cache, namespace or f"audit-{os.urandom(4).hex()}")


async def listed(client: httpx.AsyncClient, status: int = 200, **query: Any) -> Any:
    answer = await client.get("/_oncegate/audit/", params=query, headers={"authorization": f"Bearer {ALICE}"})
    assert answer.status_code == status
    return as_described(answer).json()


async def test_the_last_lines_are_kept_in_each_cache_and_none_of_another_namespace(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncegate.app.operators.audit_lines.MOST_LINES", 5)
    namespace = f"audit-{os.urandom(4).hex()}"
    lines, others = lines_in(cache, namespace), lines_in(cache)
    for number in range(8):
        await lines.keep(Author("alice" if number % 2 else "bob", f"because {number}"), f"record {number}", "released")
    await others.keep(Author(), "x" * 5000, "resolved to failed")
    found = await lines.listing()
    assert [line["reason"] for line in found["lines"]] == [f"because {number}" for number in (7, 6, 5, 4, 3)]
    assert found["kept"] == 5
    first = found["lines"][0]
    assert (first["operator"], first["what"], first["done"]) == ("alice", "record 7", "released")
    assert (first["at"].startswith("2"), first["process"].endswith(f"/{os.getpid()}")) == (True, True)
    of_bob = await lines.listing(operator="bob", limit=1)
    assert [line["reason"] for line in of_bob["lines"]] == ["because 6"]
    ((other,), kept) = (await others.listing()).values()
    assert (other["operator"], len(other["what"]), kept) == ("", 200, 1)
    assert (await cache.scan(namespace)).keys == ()  # they are no records


async def test_no_line_is_lost_where_several_come_at_once(cache: Cache) -> None:
    lines = lines_in(cache)
    await asyncio.gather(*[lines.keep(Author("a"), f"record {number}", "released") for number in range(20)])
    assert sorted(line["what"] for line in (await lines.listing())["lines"]) == sorted(f"record {n}" for n in range(20))


async def test_they_go_once_nothing_was_changed_for_long(redis_server: RedisServer) -> None:
    cache = RedisCache.from_url(redis_server.url, timeout=30)
    namespace = f"audit-{os.urandom(4).hex()}"
    await lines_in(cache, namespace).keep(Author("a"), "record", "released")
    await cache.close()
    left = redis_server.command("PTTL", f"{{{namespace}:audit}}")
    assert 29 * 86_400_000 < left <= 30 * 86_400_000


async def test_what_is_kept_is_what_was_done() -> None:
    async with Upstream(resetting_after()) as upstream, served(upstream.url, admin_tokens=TOKENS) as (client, _):
        record = await unknown(client, "secret-key")
        assert await listed(client) == {"lines": [], "kept": 0}
        hostile = '<script>alert("1")</script>'
        for status, token, reason in ((403, ALICE, "no"), (200, BOB, hostile), (409, BOB, "again")):
            where, headers = f"/_oncegate/records/{record}/resolve", {"authorization": f"Bearer {token}"}
            done = await client.post(where, json={"as": "failed", "reason": reason}, headers=headers)
            assert done.status_code == status
        (line,) = (await listed(client))["lines"]  # what was refused changed nothing
        assert (line["operator"], line["what"], line["reason"]) == ("bob", f"record {record}", hostile)
        assert line["done"] == "resolved to failed"
        assert "secret-key" not in json.dumps(await listed(client))
        assert BOB not in json.dumps(line)
        assert (await listed(client, operator="alice"))["lines"] == []
        for wrong in ({"limit": 0}, {"limit": MOST_LINES + 1}, {"operator": "x" * 65}):
            assert (await listed(client, 400, **wrong))["status"] == 400


async def test_without_operators_there_are_none() -> None:
    async with served("http://127.0.0.1:1") as (client, _):
        assert (await client.get("/_oncegate/audit/", headers={"authorization": f"Bearer {ALICE}"})).status_code == 404


async def test_what_a_cache_does_not_keep_is_in_the_log_and_done_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    class Away(MemoryCache):
        __slots__ = ()

        async def keep_audit_line(self, namespace: str, line: bytes, *, most: int, ttl_ms: int) -> None:
            raise CacheUnavailable("it is away")

    await lines_in(Away()).report(Author("alice", "why"), "record x", "released")
    assert "record x: released by alice: why" in caplog.text
    assert "an audit line was not kept, and is in this log alone: it is away" in caplog.text


async def test_damaged_lines_hide_no_others() -> None:
    cache, namespace = MemoryCache(), "damaged"
    lines = lines_in(cache, namespace)
    await lines.keep(Author("a"), "record", "released")
    for odd in (b"", b"[]", b"{}", b"\xff", b'{"at": "x"}', b"1"):
        await cache.keep_audit_line(namespace, odd, most=100, ttl_ms=1000_000)
    await cache.keep_audit_line(
        namespace, b'{"at":1e300,"operator":1,"what":[],"done":"","reason":"","process":""}', most=100, ttl_ms=1000_000
    )
    found = (await lines.listing())["lines"]
    assert [line["at"] is None for line in found] == [True, False]


async def test_a_command_line_and_a_gateway_list_each_other_s(redis_server: RedisServer) -> None:
    namespace = f"audit-{os.urandom(4).hex()}"
    where = ["--cache", redis_server.url, "--namespace", namespace]
    settings: dict[str, Any] = {"cache": redis_server.url, "namespace": namespace, "cache_timeout": 5}
    async with (
        Upstream(resetting_after()) as upstream,
        served(upstream.url, admin_tokens=TOKENS, **settings) as (client, _),
    ):
        record, other = await unknown(client, "k-1"), await unknown(client, "k-2")
        headers = {"authorization": f"Bearer {BOB}"}
        done = await client.post(f"/_oncegate/records/{record}/release", json={"reason": "one"}, headers=headers)
        assert done.status_code == 200
        released = await asyncio.to_thread(invoke, "keys", "release", "--record", other, "--reason", "two", *where)
        assert released.returncode == 0, released.stderr
        purged = await asyncio.to_thread(invoke, "keys", "purge", "--route", "*", "--force", *where)
        assert purged.returncode == 0, purged.stderr
        assert [line["reason"] for line in (await listed(client))["lines"]] == ["two", "one"]
        as_json = await asyncio.to_thread(invoke, "audit", "list", "--json", "--operator", "bob", *where)
        assert [line["reason"] for line in json.loads(as_json.stdout)["lines"]] == ["one"]
        text = (await asyncio.to_thread(invoke, "audit", "list", *where)).stdout
        assert f"record {record}" in text
        assert f"record {other}" in text
