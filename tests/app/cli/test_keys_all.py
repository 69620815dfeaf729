"""``oncegate keys resolve-all`` and ``release-all``: all unknown outcomes of a choice, on a cache and by a gateway.

Rules of docs/contract.md: R11.9, R11.22, R11.55.
"""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from oncegate.app.operators.records import unknown_changes
from oncegate.cache.record import Record, State, Trace
from oncegate.cache.redis.store import RedisCache
from oncegate.middleware.rules.keys.key import record_id, record_key
from testing.command_line import OPERATOR, forked, invoke
from testing.servers import RedisServer
from tests.app.cli.test_keys_gateway import Liar, liar

TOKEN = "the-operators-token"
ALICE, BOB = ([b"authorization", b"1", name] for name in (b"Bearer alice", b"Bearer bob"))
__all__ = ["liar"]


class Lost:
    """Records of unknown outcome in a namespace of their own, which are changed ``by`` the cache itself, or by a gateway."""

    def __init__(self, redis: RedisServer, by: str) -> None:
        self.namespace = f"all-{os.urandom(4).hex()}"
        self.cache = RedisCache.from_url(redis.url, timeout=30)
        self.where = ["--cache", redis.url, "--namespace", self.namespace]
        self.by = by
        self._url = redis.url

    @contextmanager
    def there(self) -> Iterator[None]:
        """The gateway, where they are changed by one."""
        if self.by == "cache":
            yield
            return
        settings = {"ONCEGATE_ADMIN_TOKEN": TOKEN, "ONCEGATE_NAMESPACE": self.namespace, "ONCEGATE_CACHE_TIMEOUT": "10"}
        arguments = ["--upstream", "http://127.0.0.1:1", "--cache", self._url, "--port", "0"]
        with forked("serve", *arguments, **settings) as gateway:
            self.where = ["--gateway", gateway.url()]
            yield

    async def put(self, key: str, caller: Any = ALICE, route: str = "/payments", ago: float = 60.0) -> str:
        """A record that has been unknown for so many seconds; its id."""
        address, begun = record_key(self.namespace, key, caller), round((time.time() - ago) * 1000) - 10
        trace = Trace("vm/1", begun, 10, "", "POST", route)
        record = Record(State.UNKNOWN, os.urandom(16), bytes(16), 1, None, trace=trace)
        assert await self.cache.complete(address, record, ttl_ms=600_000)
        return record_id(address)

    async def typed(self, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        """In a thread, since the command has an event loop of its own."""
        environment = {"ONCEGATE_CACHE_TIMEOUT": "10", "ONCEGATE_ADMIN_TOKEN": TOKEN}
        return await asyncio.to_thread(invoke, "keys", *arguments, *self.where, stdin=stdin, **environment)


@pytest.fixture(params=["cache", "gateway"])
async def lost(request: pytest.FixtureRequest, redis: RedisServer) -> AsyncIterator[Lost]:
    made = Lost(redis, request.param)
    with made.there():
        yield made
    await made.cache.close()


async def states(lost: Lost) -> dict[str, str]:
    """The state of each record."""
    done = await lost.typed("list", "--json")
    return {each["id"]: each["state"] for each in json.loads(done.stdout)["records"]}


async def test_all_that_match_are_counted_then_resolved(lost: Lost) -> None:
    ids = [await lost.put(f"k-{number}") for number in range(3)]
    bob, other, old = await lost.put("b", BOB), await lost.put("o", route="/refunds"), await lost.put("old", ago=7200)
    why = ["--reason", "in the books"]
    chosen = ["--route", "/payments", "--caller", ids[0].partition(":")[2], "--since", "1h", *why]
    counted = await lost.typed("resolve-all", *chosen, "--as", "failed", "--dry-run")
    assert counted.stdout == "3 found, none changed\n"
    assert set((await states(lost)).values()) == {"unknown"}
    done = await lost.typed("resolve-all", *chosen, "--status", "201", "--body", "{}", "--json")
    assert done.returncode == 0, done.stderr
    total = json.loads(done.stdout)
    assert (total["found"], total["resolved"], total["refused"], total["left"]) == (3, 3, 0, 0)
    found = await states(lost)
    assert {found.pop(each) for each in ids} == {"succeeded"}
    assert found == {bob: "unknown", other: "unknown", old: "unknown"}
    shown = await lost.typed("show", "--record", ids[0], "--response", "--json")
    (record,) = json.loads(shown.stdout)["records"]
    assert (record["response"]["status"], record["response"]["body"]) == (201, {})
    by = OPERATOR if lost.by == "cache" else "an operator"
    assert record["note"] == f"resolved by {by}: in the books"
    lines = [line for line in done.stderr.splitlines() if line.startswith("oncegate.audit: ")]
    if lost.by == "cache":  # a gateway has them in its log
        assert f"oncegate.audit: record {ids[0]}: resolved to succeeded by {by}: in the books" in lines
        assert len(lines) == 3 + 1
    audit = json.loads((await asyncio.to_thread(audit_list, lost)).stdout)["lines"]
    assert [each["what"].partition(" (")[0] for each in audit] == [f"record {ids[0]}", "3 records of unknown outcome"]
    line = "Authorization: Bearer bob\n"
    done = await lost.typed("release-all", "--caller", "-", *why, stdin=line)
    assert done.stdout == "1 found, 1 changed\n", done.stderr
    done = await lost.typed("release-all", "--older", "1h", *why)
    assert done.stdout == "1 found, 1 changed\n"
    assert set(await states(lost)) == {*ids, other}


def audit_list(lost: Lost) -> "subprocess.CompletedProcess[str]":
    return invoke("audit", "list", "--json", *lost.where, ONCEGATE_ADMIN_TOKEN=TOKEN)


async def test_many_are_changed_step_by_step(lost: Lost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown_changes, "MOST_CHANGED", 60)
    for number in range(150):
        await lost.put(f"k-{number}")
    late = await lost.put("late", ago=-60)  # by a clock that is ahead: nobody has seen it
    done = await lost.typed("release-all", "--reason", "not booked", "--json")
    assert done.returncode == 0, done.stderr
    total = json.loads(done.stdout)
    assert (total["found"], total["resolved"], total["left"]) == (150, 150, 1)
    assert await states(lost) == {late: "unknown"}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["release-all"], "Missing option '--reason'"),
        (["release-all", "--reason", " "], "--reason says why, in some words"),
        (["release-all", "--reason", "x" * 121], "--reason is one line of at most"),
        (["resolve-all", "--reason", "x"], "say --status, or --as failed"),
        (["resolve-all", "--reason", "x", "--as", "succeeded"], "status is missing"),
        (["release-all", "--reason", "x", "--since", "1w"], "--since takes an age above 0"),
        (["release-all", "--reason", "x", "--older", "0d"], "--older takes an age above 0"),
        (["release-all", "--reason", "x", "--caller", "Bearer hunter2"], "a credential is nothing for a command line"),
        (["release-all", "--reason", "x", "--caller", "-"], "give a key, or the header lines of a caller"),
        (
            ["resolve-all", "--reason", "x", "--status", "200", "--body", "@-", "--caller", "-"],
            "standard input can't be both",
        ),
    ],
)
def test_what_is_wrong_is_said_and_changes_nothing(arguments: list[str], why: str) -> None:
    done = invoke("keys", *arguments, "--gateway", "http://127.0.0.1:1", ONCEGATE_ADMIN_TOKEN=TOKEN)
    assert (done.returncode in (1, 2), why in done.stderr, done.stdout) == (True, True, ""), done.stderr


def test_answers_that_lead_nowhere_are_not_followed_for_ever(liar: str) -> None:
    members = {"until": "2026-11-26T05:00:00Z", "scanned": 0, "found": 0, "resolved": 0, "refused": 0, "left": 0}
    Liar.answer = (200, json.dumps(members | {"cursor": "7", "complete": False}).encode())
    done = invoke("keys", "release-all", "--reason", "x", "--gateway", liar, ONCEGATE_ADMIN_TOKEN=TOKEN)
    assert (done.returncode, done.stdout) == (1, "0 found, 0 changed\n")
    assert "these were not all" in done.stderr
    Liar.answer = (200, b'{"found": 1}')
    done = invoke("keys", "release-all", "--reason", "x", "--gateway", liar, ONCEGATE_ADMIN_TOKEN=TOKEN)
    assert done.stderr == "oncegate: that is no gateway's records/: it answered 200\n"
