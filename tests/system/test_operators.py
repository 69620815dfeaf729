"""A gateway process is killed, an operator finds what it left, resolves it, and a retry gets that answer.

Rules of docs/contract.md: R11.3, R11.8, R11.9, R11.11, R11.13, R11.14, R11.22, R11.36.
"""

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from testing.caller import CALLER_MARK, Caller, fresh_key, is_replay, slug, until_answer
from testing.command_line import OPERATOR, invoke
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer, free_port
from testing.waiting import until
from tests.system.conftest import UNHURRIED, Start

TOKEN = "password-is-operators-token"
ANSWER = b'{"receipt":"found in the books"}'


async def oncegate(
    *arguments: str, stdin: str = "", token: str | None = None, code: int = 0
) -> "subprocess.CompletedProcess[str]":
    """What an operator types, without a process of its own; tests/app/cli/test_keys_purge.py and test_check.py start such."""
    environment = {"ONCEGATE_CACHE_TIMEOUT": str(UNHURRIED)} | (
        {} if token is None else {"ONCEGATE_ADMIN_TOKEN": token}
    )
    done = await asyncio.to_thread(invoke, *arguments, stdin=stdin, **environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done


async def records(*arguments: str, **options: Any) -> list[dict[str, Any]]:
    """Those of the document that a command of ``oncegate keys`` prints."""
    done = await oncegate("keys", *arguments, "--json", **options)
    found: list[dict[str, Any]] = json.loads(done.stdout)["records"]
    return found


@pytest.fixture
def namespace() -> str:
    return f"operators-{uuid4().hex}"


@pytest.fixture
def gateway(start: Start, ledger: Ledger, redis_server: RedisServer, namespace: str) -> Gateway:
    return start(ledger.url, redis_server.url, namespace=namespace, cache_timeout=UNHURRIED).ready()


@pytest.fixture
def where(redis_server: RedisServer, namespace: str) -> list[str]:
    return ["--cache", redis_server.url, "--namespace", namespace]


async def metric(gateway: Gateway, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels."""
    async with httpx.AsyncClient(timeout=DEADLINE, trust_env=False, verify=False) as client:
        text = (await client.get(f"{gateway.url}/_oncegate/metrics")).text
    total = 0.0
    for line in text.splitlines():
        match = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
        if match and all(f'{label}="{value}"' in (match[1] or "") for label, value in labels.items()):
            total += float(match[2])
    return total


@pytest.mark.parametrize("by_way_of", ["cache", "gateway"])
async def test_an_unknown_outcome_is_found_resolved_and_replayed(
    start: Start,
    ledger: Ledger,
    redis_server: RedisServer,
    caller: Caller,
    namespace: str,
    where: list[str],
    tmp_path: Path,
    by_way_of: str,
) -> None:
    settings: dict[str, Any] = {"idempotency": {"lease": 6}, "admin_token": TOKEN, "cache_timeout": 2}
    doomed, survivor = [start(ledger.url, redis_server.url, namespace=namespace, **settings) for _ in range(2)]
    doomed.ready(), survivor.ready()
    token = None
    if by_way_of == "gateway":
        where, token = ["--gateway", survivor.url], TOKEN
    key = fresh_key()
    authorization = f"Authorization: Bearer {CALLER_MARK}alice\n"
    async with caller.held(ledger, doomed, key) as (lost, _):
        running = await records("show", key, *where, token=token)
        assert [record["state"] for record in running] == ["in-flight"]
        doomed.kill()
        with pytest.raises(httpx.TransportError):
            await lost
        answer = await until_answer(lambda: caller.post(survivor, key), "outcome-unknown")
    record = answer.json()["record"]

    listed = await records("list", "--state", "unknown", *where, token=token)
    assert [each["id"] for each in listed] == [record]
    shown = await records("show", key, "--caller", "-", *where, stdin=authorization, token=token)
    assert [each["id"] for each in shown] == [record]
    for person in ("alice", "bob"):
        lines = f"authorization:Bearer {CALLER_MARK}{person}\n"
        code = 0 if person == "alice" else 1
        await oncegate("keys", "show", key, "--caller", "-", *where, stdin=lines, token=token, code=code)
    (what,) = shown
    assert (what["state"], what["lapsed"], what["attempt"], what["status"]) == ("unknown", True, 1, None)
    assert what["gateway"].endswith(f"/{doomed.pid}")
    for_people = (await oncegate("keys", "show", "--record", record, *where, token=token)).stdout
    assert "silent since its lease ran out" in for_people
    assert f"oncegate keys resolve --record {record}" in for_people

    body = tmp_path / "answer.json"
    body.write_bytes(ANSWER)
    resolve = [
        "keys",
        "resolve",
        "--record",
        record,
        *("--status", "201", "--reason", "seen", "--body"),
        f"@{body}",
        *where,
    ]
    done = await oncegate(*resolve, "--json", token=token)
    assert json.loads(done.stdout)["state"] == "succeeded"
    line = f"oncegate.audit: record {record}: resolved to succeeded by {OPERATOR}: seen\n"
    assert done.stderr == ("" if by_way_of == "gateway" else line)  # a gateway writes its own
    again = await oncegate(*resolve, token=token, code=1)
    assert "its outcome is known" in again.stderr

    retry = await caller.settled(survivor, key)
    assert (retry.status_code, retry.content) == (201, ANSWER)
    assert is_replay(retry)
    assert ledger.attempts(key) == ["1"]
    resolved = await records("show", "--record", record, *where, token=token)
    by = "an operator" if by_way_of == "gateway" else OPERATOR
    assert resolved[0]["note"] == f"resolved by {by}: seen"
    assert resolved[0]["gateway"] == what["gateway"]

    assert await metric(survivor, "oncegate_requests_total", decision="outcome-unknown") >= 1
    assert await metric(survivor, "oncegate_requests_total", decision="replayed") == 1


async def test_a_key_that_was_set_free_is_executed_by_the_next_retry(
    gateway: Gateway, where: list[str], ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    ledger.answer(key, Reply(cut="before-head"), Reply())
    assert slug(await caller.post(gateway, key)) == "upstream-failed"
    assert slug(await caller.post(gateway, key)) == "outcome-unknown"
    assert await metric(gateway, "oncegate_attempts_total", outcome="unknown") == 1
    (what,) = await records("show", key, *where)
    assert "the connection broke" in what["note"]
    assert what["took"] is not None
    done = await oncegate("keys", "release", key, *where)
    assert "the key is free" in done.stdout
    assert (await caller.post(gateway, key)).status_code == 201
    assert ledger.attempts(key) == ["1", "1"]


async def test_a_record_in_flight_is_released_by_force_alone_and_its_late_success_is_kept(
    gateway: Gateway, where: list[str], ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    async with caller.held(ledger, gateway, key) as (first, gate):
        refused = await oncegate("keys", "release", key, *where, code=1)
        assert "in flight" in refused.stderr
        assert slug(await caller.post(gateway, key)) == "in-flight"
        await oncegate("keys", "release", key, "--force", *where)
        gate.open()
        answer = await first
    assert is_replay(again := await caller.post(gateway, key))
    assert again.content == answer.content
    assert ledger.attempts(key) == ["1"]


async def test_a_late_owner_does_not_overwrite_what_was_resolved(
    gateway: Gateway, where: list[str], ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    async with caller.held(ledger, gateway, key) as (first, gate):
        waiter = caller.send(gateway, key, wait=30)
        resolve = ["keys", "resolve", key, "--status", "200", "--body", "{}", *where]
        await oncegate(*resolve, code=1)
        await oncegate(*resolve, "--force")
        gate.open()
        assert (await first).status_code == 201
        waited = await waiter
        assert (waited.status_code, waited.content) == (200, b"{}"), "who waits is told what everybody after is"
    again = await caller.post(gateway, key)
    assert (again.status_code, again.content) == (200, b"{}")
    assert await metric(gateway, "oncegate_outcomes_refused_total") == 1


async def test_metrics_are_summed_over_workers_and_outlive_one_that_dies(
    start: Start, ledger: Ledger, redis_server: RedisServer, caller: Caller, namespace: str
) -> None:
    settings: dict[str, Any] = {"namespace": namespace, "cache_timeout": UNHURRIED}
    routes = [{"path": "/payments"}, {"path": "/paymets"}]
    gateway = start(ledger.url, redis_server.url, workers=2, routes=routes, **settings).ready()
    keys = [fresh_key() for _ in range(12)]
    for key in keys * 2:
        assert (await caller.post(gateway, key)).status_code == 201

    async def counted() -> list[float]:
        name = "oncegate_requests_total"
        return [await metric(gateway, name, decision=decision) for decision in ("first", "replayed")]

    async def matched() -> list[float]:
        return [await metric(gateway, "oncegate_route_matched", route=str(route["path"])) for route in routes]

    async def all_are_counted() -> bool:
        return await counted() == [12, 12]

    # A worker counts a request when it has answered it: another one may be asked before that.
    await until(all_are_counted, "the last answer to be counted")
    for _ in range(4):  # whichever worker is asked
        assert await counted() == [12, 12]
        assert await matched() == [1, 0]
    assert await metric(gateway, "oncegate_cache_seconds_count", operation="claim") == 24
    assert await metric(gateway, "oncegate_upstream_seconds_count") == 12

    held = fresh_key()
    async with caller.held(ledger, gateway, held) as (lost, _):
        assert await metric(gateway, "oncegate_attempts_in_flight") == 1
        gateway.kill_workers()
        with pytest.raises(httpx.TransportError):
            await lost
        await until(lambda: gateway.text().count("listening on") >= 4, "both workers are replaced")
    assert await counted() == [12, 12]
    assert await matched() == [1, 0]
    assert await metric(gateway, "oncegate_attempts_in_flight") == 0
    text = gateway.text()
    assert all(key not in text for key in keys)


async def test_on_a_port_of_their_own_metrics_and_records_are_nowhere_else(
    start: Start, ledger: Ledger, redis_server: RedisServer, namespace: str
) -> None:
    port = free_port()
    settings: dict[str, Any] = {"namespace": namespace, "ops_port": port, "admin_token": TOKEN, "public": []}
    gateway = start(ledger.url, redis_server.url, workers=2, **settings).ready()
    own = f"http://127.0.0.1:{port}"
    before = ledger.total()
    async with httpx.AsyncClient(timeout=DEADLINE, trust_env=False, verify=False) as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"

        async def statuses(url: str) -> dict[str, int]:
            names = ("healthz", "readyz", "policy", "metrics", "records/")
            return {name: (await client.get(f"{url}/_oncegate/{name}")).status_code for name in names}

        both = {"healthz": 200, "readyz": 200}
        assert await statuses(gateway.url) == both | {"policy": 404, "metrics": 404, "records/": 404}
        assert await statuses(own) == both | {"policy": 200, "metrics": 200, "records/": 200}
        for spoofed in ({"host": f"127.0.0.1:{port}"}, {"x-forwarded-port": str(port)}):
            assert (await client.get(f"{gateway.url}/_oncegate/metrics", headers=spoofed)).status_code == 404
        # Nothing else lives there, and nothing is forwarded from there.
        assert (await client.post(f"{own}/payments", content=b"x")).status_code == 404
    assert ledger.total() == before
    missing = await oncegate("keys", "list", "--gateway", gateway.url, token=TOKEN, code=1)
    assert "ops_port" in missing.stderr
    assert await records("list", "--gateway", own, token=TOKEN) == []
