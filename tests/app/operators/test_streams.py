"""``streams/`` and dead letters by error: how far consumers are, and what is done to all of one error.

Rules of docs/contract.md: R11.41, R11.42.
"""

import asyncio
import json
from base64 import b64encode
from typing import Any

import httpx
import pytest

from oncegate.app.operators.letters import changes, groups
from oncegate.cache.encryption import Encryption
from oncegate.cache.redis.streams.encrypted import encrypted_death
from oncegate.cache.redis.streams.letter import ERROR
from oncegate.cache.redis.streams.stream import stream_key
from testing.command_line import invoke
from testing.servers import RedisServer
from tests.app.operators.test_dead_letters import OPERATOR, Letters, described
from tests.app.submitted import Submitted, serving


def died(error: str, kind: str = "NotRetryable", reason: str = "rejected") -> dict[bytes, bytes]:
    return {b"dead.error": error.encode(), b"dead.error_type": kind.encode(), b"dead.reason": reason.encode()}


def command(number: int) -> str:
    return f"{number:020d}:{'d' * 20}"


@pytest.fixture
def letters(submitted: Submitted, redis_server: RedisServer) -> Letters:
    return Letters(submitted, redis_server)


@pytest.fixture
def where(submitted: Submitted, redis_server: RedisServer) -> list[str]:
    return ["--cache", redis_server.url, "--namespace", submitted.namespace, "--consumer", "billing"]


async def oncegate(*arguments: str, code: int = 0) -> Any:
    done = await asyncio.to_thread(invoke, "commands", *arguments, "--json", ONCEGATE_CACHE_TIMEOUT="10")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if done.stdout else done.stderr


async def state(submitted: Submitted) -> dict[str, Any]:
    answer: httpx.Response = await submitted.client.get("/_oncegate/streams/", headers=OPERATOR)
    streams = {each["stream"]: each for each in described(answer, 200)["streams"]}
    assert streams.keys() == {"commands", "tenants"}
    found: dict[str, Any] = streams["commands"]
    return found


async def test_how_far_each_consumer_is_is_shown(
    submitted: Submitted, redis_server: RedisServer, where: list[str], letters: Letters
) -> None:
    assert await state(submitted) == {
        "stream": "commands", "consumer": "billing", "length": 0, "oldest_at": None, "dead": 0, "trimmed": 0, "groups": [],
    }  # fmt: skip
    for number in range(5):
        await submitted.submit(key=f"k-{number}")
    stream = stream_key(submitted.namespace, "commands")
    assert (await state(submitted))["groups"] == []
    for group in ("audit", "billing"):
        redis_server.command("XGROUP", "CREATE", stream, group, "0")
    read: Any = redis_server.command("XREADGROUP", "GROUP", "billing", "host/1", "COUNT", "3", "STREAMS", stream, ">")
    assert len(dict(read)[stream.encode()] if isinstance(read, dict) else read[0][1]) == 3
    redis_server.command("XGROUP", "CREATECONSUMER", stream, "billing", "host/2")
    letters.add(command(1))
    found = await state(submitted)
    assert (found["length"], found["dead"]) == (5, 1)
    billing, audit = found["groups"]  # the gateway's own consumer first
    assert (billing["name"], billing["lag"], billing["pending"]) == ("billing", 2, 3)
    assert [(each["name"], each["pending"]) for each in billing["workers"]] == [("host/1", 3), ("host/2", 0)]
    assert billing["workers"][0]["silent_for"] >= 0
    assert (audit["name"], audit["lag"], audit["pending"], audit["workers"]) == ("audit", 5, 0, [])
    assert found["oldest_at"] == billing["oldest_at"] == audit["oldest_at"]
    entries: Any = redis_server.command("XRANGE", stream, "-", "+")
    redis_server.command("XACK", stream, "billing", entries[0][0])
    assert (await state(submitted))["groups"][0]["oldest_at"] >= found["oldest_at"]
    assert (await oncegate("streams", *where))["streams"][0]["groups"][0]["pending"] == 2
    shown = await asyncio.to_thread(invoke, "commands", "streams", *where)
    assert "commands: 5 entries" in shown.stdout
    assert "host/1" in shown.stdout


async def test_letters_that_differ_in_numbers_and_ids_are_one_group(letters: Letters, where: list[str]) -> None:
    for number in range(6):
        letters.add(
            command(number),
            others=died(f"no account {number} for 3f2a9c00-{number}e11-4b1c-9f6d-0123456789ab\nat line {number}"),
        )
    for number in range(3):
        letters.add(command(10 + number), others=died("<b>no</b> route", kind="TimeoutError", reason="attempts"))
    found = await letters.get("errors", stream="commands")
    assert (found["scanned"], found["complete"], found["others"]) == (9, True, 0)
    first, second = found["groups"]
    assert (first["count"], first["error"], first["reason"]) == (6, "no account # for #", "rejected")
    assert (second["count"], second["error"], second["error_type"]) == (3, "<b>no</b> route", "TimeoutError")
    assert first["routes"] == ["/reports"]
    shown = await letters.get(first["example"], stream="commands")
    assert shown["command"] == command(5)  # the newest
    assert "secret" not in json.dumps(found)
    bounded = await letters.get("errors", stream="commands", scan=4)
    assert (bounded["scanned"], bounded["complete"]) == (4, False)
    assert [group["count"] for group in bounded["groups"]] == [3, 1]
    assert (await oncegate("errors", *where))["groups"] == found["groups"]
    assert "no account # for #" in (await asyncio.to_thread(invoke, "commands", "errors", *where)).stdout


async def test_what_can_not_be_told_apart_is_counted_together(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MOST_GROUPS", 2)
    for number in range(8):
        letters.add(command(number), others=died("abcd"[number % 4]))
    found = await letters.get("errors", stream="commands")
    assert (len(found["groups"]), found["others"]) == (2, 4)


@pytest.mark.parametrize("by_way_of", ["gateway", "command line"])
async def test_all_of_one_error_are_retried_or_discarded_and_no_others(
    letters: Letters, where: list[str], monkeypatch: pytest.MonkeyPatch, by_way_of: str
) -> None:
    monkeypatch.setattr(changes, "MOST_CHANGED", 4)
    letters.has_a_reader()
    for number in range(6):
        letters.add(command(number), others=died(f"no account {number}"))
        letters.add(command(10 + number), others=died("never"))
    kept = letters.add(command(99), others=died("something else"))
    groups = {group["error"]: group["group"] for group in (await letters.get("errors", stream="commands"))["groups"]}
    mended, never = groups["no account #"], groups["never"]
    if by_way_of == "gateway":
        first = await letters.post(f"errors/{mended}/retry", document={"reason": "it is there now"})
        assert first == {"changed": 4, "unread": 0, "more": True}
        assert await letters.post(f"errors/{mended}/retry") == {"changed": 2, "unread": 0, "more": False}
        assert (await letters.post(f"errors/{never}/discard"))["changed"] == 4
        assert (await letters.post(f"errors/{never}/discard"))["changed"] == 2
        assert (await letters.post(f"errors/{never}/discard"))["changed"] == 0
        assert (await letters.post("errors/absurd/discard", 400))["status"] == 400
    else:
        done = await oncegate("retry", "--error", mended, "--reason", "it is there now", *where)
        assert done["retried"] == 6
        assert (await oncegate("discard", "--error", never, *where))["discarded"] == 6
        assert "12 hexadecimal digits" in await oncegate("discard", "--error", "absurd", *where, code=2)
        assert "give ids" in await oncegate("retry", "--all", "--error", never, *where, code=2)
    assert len(letters.entries()) == 6
    assert letters.fields(letters.entries()[0])[b"retried"].endswith(
        b"it is there now" if by_way_of != "gateway" else b""
    )
    left = await letters.get(stream="commands")
    assert [letter["id"] for letter in left["dead_letters"]] == [kept]
    audit = described(await letters.client.get("/_oncegate/audit/", headers=OPERATOR), 200)["lines"]
    assert {line["done"] for line in audit} == {"retried", "discarded"}
    assert audit[-1]["reason"] == "it is there now"
    assert f"with error {mended}" in audit[-1]["what"]


async def test_errors_that_are_encrypted_are_grouped_by_what_they_say(redis_server: RedisServer) -> None:
    key = f"k1:{b64encode(b'x' * 32).decode()}"
    async with serving(redis_server, encryption_keys=[key]) as there:
        letters = Letters(there, redis_server)
        for number in range(3):
            death = {ERROR: f"no account {number}".encode(), b"dead.error_type": b"NotRetryable"}
            sealed = encrypted_death(death, command(number), Encryption([key]))
            assert ERROR not in sealed
            letters.add(command(number), others={ERROR: b""} | sealed)
        (group,) = (await letters.get("errors", stream="commands"))["groups"]
        assert (group["count"], group["error"]) == (3, "no account #")


async def test_what_nobody_would_read_stays(letters: Letters) -> None:
    letters.has_a_reader()
    letters.add(command(1), consumer="gone", others=died("never"))
    (group,) = (await letters.get("errors", stream="commands"))["groups"]
    done = await letters.post(f"errors/{group['group']}/retry")
    assert (done["changed"], done["unread"]) == (0, 1)
    assert len((await letters.get(stream="commands"))["dead_letters"]) == 1
