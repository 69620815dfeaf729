"""``oncegate keys`` as it is typed: what it refuses, and that nothing secret is taken from or shown on the command line.

Rules of docs/contract.md: R10.1, R10.5, R11.9, R11.10, R11.18, R11.23.
"""

import asyncio
import json
import os
import shlex
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncegate.app.cli.records.keys_view import print_list, print_records
from oncegate.cache.codec import encode
from oncegate.cache.record import Record, State, StoredResponse, Trace
from oncegate.cache.redis.store import RedisCache
from oncegate.middleware.rules.keys.key import caller_of_id, record_id, record_key, scope_parts
from testing.command_line import ENVIRONMENT, ONCEGATE, PATIENCE, forked, invoke, run
from testing.servers import RedisServer

RECORD = f"{'a' * 20}:{'b' * 20}"


@pytest.fixture
def where(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setitem(ENVIRONMENT, "ONCEGATE_CACHE_TIMEOUT", "10")  # a machine may stand still for a while
    return ["--cache", redis.url, "--namespace", f"keys-{os.urandom(4).hex()}"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["show"], "give either a key or --record ID"),
        (["show", "k", "--record", RECORD], "give either a key or --record ID"),
        (["show", "--record", RECORD, "--caller", "-"], "leave out --caller"),
        (["show", "k", "--caller", "Bearer hunter2"], "a credential is nothing for a command line"),
        (["show", "--record", "other:a:b"], "a record's id is two digests"),
        (["show", '"unclosed'], "close it with"),
        (["resolve", "k"], "say --status, or --as failed"),
        (["resolve", "k", "--as", "succeeded"], "status is missing"),
        (["resolve", "k", "--as", "failed", "--body", "x"], "status is missing"),
        (["resolve", "k", "--status", "204", "--body", "x"], "has no body"),
        (["resolve", "k", "--status", "201", "--body", "@/no/such/file"], "can't be read"),
        (["resolve", "k", "--status", "201", "--body", "@-", "--caller", "-"], "can't be both"),
        (["resolve", "k", "--status", "201", "--header", "nonsense"], "takes a header line"),
        (["resolve", "k", "--as", "failed", "--ttl", "nan"], "ttl is above 0"),
        (["resolve", "k", "--as", "failed", "--ttl", "inf"], "ttl is above 0"),
        (["resolve", "k", "--as", "failed", "--ttl", "0"], "ttl is above 0"),
        (["show", "\udcff"], "no UTF-8 text"),
        (["list", "--cursor", "absurd"], "no cursor"),
        (["list", "--gateway", "http://127.0.0.1:1"], "--gateway excludes"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(where: list[str], arguments: list[str], reason: str) -> None:
    done = invoke("keys", *arguments, *where)
    assert done.returncode == 2, done.stderr
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "hunter2" not in done.stderr


def test_which_records_must_be_said() -> None:
    done = invoke("keys", "list")
    assert done.returncode == 2
    assert "--gateway URL" in done.stderr
    done = invoke("keys", "list", "--gateway", "http://127.0.0.1:1")
    assert done.returncode == 2
    assert "ONCEGATE_ADMIN_TOKEN is not set" in done.stderr
    done = invoke("keys", "list", "--gateway", "http://user:hunter2@127.0.0.1:1", ONCEGATE_ADMIN_TOKEN="t")
    assert done.returncode == 2
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize(
    "gateway", ["http://a..b", "http://127.0.0.1:1/a b", f"http://{'a' * 80}.x", "http://[::1", "x"]
)
def test_what_can_be_no_gateway_is_wrong_usage(gateway: str) -> None:
    done = invoke("keys", "list", "--gateway", gateway, ONCEGATE_ADMIN_TOKEN="t")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    "command",
    [
        ["keys", "list", "--gateway", "http://127.0.0.1:1"],
        ["serve", "--upstream", "http://127.0.0.1:1", "--port", "0"],
        ["check", "--upstream", "http://127.0.0.1:1"],
    ],
)
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(command: list[str]) -> None:
    done = invoke(*command, ONCEGATE_ADMIN_TOKEN="hunter2\nhunter3")
    assert done.returncode == 2
    assert "ONCEGATE_ADMIN_TOKEN holds a control character" in done.stderr + done.stdout
    assert "hunter" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    "command",
    [["serve", "--upstream", "http://127.0.0.1:1", "--port", "0"], ["check", "--upstream", "http://127.0.0.1:1"]],
)
def test_a_token_that_is_too_short_opens_no_gateway(command: list[str]) -> None:
    done = run(*command, ONCEGATE_ADMIN_TOKEN="hunter2-hunter2")
    assert done.returncode == 2
    assert "ONCEGATE_ADMIN_TOKEN is shorter than 16 characters" in done.stderr + done.stdout
    assert "hunter" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("gateways", "mine"),
    [("the operators' token\n", "the operators' token"), ("t\u00e9\u2603" * 6, "t\u00e9\u2603" * 6 + "\n")],
)
def test_white_space_around_the_token_is_not_part_of_it(gateways: str, mine: str) -> None:
    """As files and mounted secrets have it."""
    with forked("serve", "--upstream", "http://127.0.0.1:1", "--port", "0", ONCEGATE_ADMIN_TOKEN=gateways) as gateway:
        done = invoke("keys", "list", "--gateway", gateway.url(), ONCEGATE_ADMIN_TOKEN=mine)
    assert (done.returncode, done.stdout.strip()) == (0, "No such records.")


def test_a_caller_may_be_no_text(where: list[str]) -> None:
    for wrong, code in ((b"Authorization: Basic \xff", 1), (b"\xff", 2), (b"jwt:\xff: alice", 2)):
        command = [*ONCEGATE, "keys", "show", "k", "--caller", "-", *where]
        done = subprocess.run(command, input=wrong, capture_output=True, env=ENVIRONMENT, timeout=PATIENCE)
        assert (done.returncode, len(done.stderr.splitlines())) == (code, 1)


def test_where_nothing_answers_the_exit_code_is_1() -> None:
    done = invoke("keys", "list", "--gateway", "http://127.0.0.1:1", ONCEGATE_ADMIN_TOKEN="t")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    done = invoke("keys", "list", "--cache", "redis://:hunter2@127.0.0.1:1")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize("command", ["show", "release"])
def test_what_is_not_there_is_told(where: list[str], command: str) -> None:
    for which in (["k"], ["--record", RECORD]):
        done = invoke("keys", command, *which, *where)
        assert done.returncode == 1
        assert "no such record" in done.stderr
    assert json.loads(invoke("keys", "list", "--json", *where).stdout) == {"records": [], "cursor": ""}


async def test_the_few_that_are_looked_for_are_found_among_many(redis: RedisServer, where: list[str]) -> None:
    cache, unknown = RedisCache.from_url(redis.url, timeout=PATIENCE), set()
    for number in range(400):
        key, token = record_key(where[-1], f"k-{number}", None), os.urandom(16)
        state = State.UNKNOWN if number % 150 == 7 else State.SUCCEEDED
        if state is State.UNKNOWN:
            unknown.add(record_id(key))
        await cache.complete(
            key, Record(token=token, fingerprint=b"f" * 16, attempt=1, state=state, response=None), ttl_ms=600_000
        )
    await cache.close()
    done = await asyncio.to_thread(invoke, "keys", "list", "--state", "unknown", "--json", *where)
    assert {each["id"] for each in json.loads(done.stdout)["records"]} == unknown
    assert len(unknown) == 3
    found: set[str] = set()
    cursor, steps = "", 0
    while cursor or not steps:
        more = ["--cursor", cursor] if cursor else []
        done = await asyncio.to_thread(invoke, "keys", "list", "--limit", "150", "--json", *more, *where)
        page = json.loads(done.stdout)
        found |= {each["id"] for each in page["records"]}
        cursor, steps = page["cursor"], steps + 1
    assert len(found) == 400
    assert steps > 1


async def test_a_list_is_of_a_route_a_caller_or_a_time_and_the_newest_come_first(
    redis: RedisServer, where: list[str], tmp_path: Path
) -> None:
    cache, now = RedisCache.from_url(redis.url, timeout=PATIENCE), round(time.time() * 1000)
    alice, route = scope_parts({b"authorization": [b"Bearer alice"]}, (b"authorization",)), "/payments/*"
    made: dict[str, str] = {}
    for number in range(30):
        key = record_key(where[-1], f"k-{number}", alice if number % 2 else None)
        begun = now - number * 60_000
        trace = Trace(begun_at_ms=begun, route=route if number % 3 else "/refunds")
        state = State.UNKNOWN if number % 5 == 0 else State.SUCCEEDED
        record = Record(state, os.urandom(16), b"f" * 16, 1, trace=trace)
        await cache.complete(key, record, ttl_ms=600_000)
        made[f"k-{number}"] = record_id(key)
    timeless = Record(State.SUCCEEDED, b"t" * 16, b"f" * 16, 1)
    await cache.complete(record_key(where[-1], "of no time", None), timeless, ttl_ms=600_000)
    await cache.close()

    async def listed(*options: str, stdin: str = "") -> list[int]:
        done = await asyncio.to_thread(invoke, "keys", "list", "--json", *options, *where, stdin=stdin)
        assert done.returncode == 0, done.stderr
        assert ("these are the newest" in done.stderr) == ("3" in options)
        numbers = {identifier: int(key.removeprefix("k-")) for key, identifier in made.items()}
        return [numbers.get(each["id"], -1) for each in json.loads(done.stdout)["records"]]

    assert await listed() == [*range(30), -1]
    assert await listed("--route", route) == [number for number in range(30) if number % 3]
    assert await listed("--route", route, "--limit", "3") == [1, 2, 4]
    assert await listed("--since", "10m", "--limit", "3") == [0, 1, 2]
    assert await listed("--since", "630s") == list(range(11))
    line = "Authorization: Bearer alice"
    assert await listed("--caller", "-", stdin=line) == list(range(1, 30, 2))
    both = await listed("--caller", "-", "--route", route, "--since", "690s", "--state", "unknown", stdin=line)
    assert both == [5]
    assert await listed("--caller", "-", stdin="Authorization: Bearer bob") == []
    assert await listed("--caller", caller_of_id(made["k-1"])) == list(range(1, 30, 2))
    assert await listed("--caller", "x" * 20) == []


async def test_a_list_says_where_it_has_not_looked_at_all(redis: RedisServer, where: list[str]) -> None:
    cache = RedisCache.from_url(redis.url, timeout=PATIENCE)
    for number in range(1500):
        record = Record(State.SUCCEEDED, os.urandom(16), b"f" * 16, 1, trace=Trace(begun_at_ms=number + 1))
        await cache.complete(record_key(where[-1], f"k-{number}", None), record, ttl_ms=600_000)
    await cache.close()
    for scan, is_complete in ((100, False), (1_000_000, True)):
        done = await asyncio.to_thread(invoke, "keys", "list", "--json", "--scan", str(scan), "--limit", "5", *where)
        found = json.loads(done.stdout)
        assert len(found["records"]) == 5
        assert (found["complete"], found["scanned"] < 1500) == (is_complete, not is_complete)
        assert ("records were looked at, and there are others" in done.stderr) == (not is_complete)
        assert sum(found["counts"].values()) == found["scanned"] >= min(scan, 1500)


@pytest.mark.parametrize(
    ("options", "stdin", "reason"),
    [
        (["--since", "yesterday"], "", "--since takes an age above 0"),
        (["--caller", "-"], "", "give a key, or the header lines of a caller"),
        (["--caller", "Bearer hunter2"], "", "a credential is nothing for a command line"),
        (["--route", "*", "--cursor", "x"], "", "--cursor goes on with a list of any route"),
    ],
)
def test_what_no_list_can_be_of_is_wrong_usage(where: list[str], options: list[str], stdin: str, reason: str) -> None:
    done = invoke("keys", "list", *options, *where, stdin=stdin)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert reason in done.stderr


async def test_what_to_do_next_is_pasted_with_the_place_that_was_given(
    redis: RedisServer, where: list[str], tmp_path: Path
) -> None:
    config = tmp_path / "the gateway's.toml"
    config.write_text(f'cache = "{redis.url}"\nnamespace = "{where[-1]}"\n')
    cache = RedisCache.from_url(redis.url, timeout=PATIENCE)
    identifiers = []
    for key, submission in (("k-0", False), ("k-1", False), ("s", True)):
        record = Record(State.UNKNOWN, os.urandom(16), b"f" * 16, 1, submission=submission)
        await cache.complete(record_key(where[-1], key, None), record, ttl_ms=600_000)
        identifiers.append(record_id(record_key(where[-1], key, None)))
    await cache.close()
    for number, place in enumerate((["--config", str(config)], where)):
        shown = (await asyncio.to_thread(invoke, "keys", "show", f"k-{number}", *place)).stdout
        (command,) = [line.partition("  oncegate ")[2] for line in shown.splitlines() if line.startswith("not?")]
        done = await asyncio.to_thread(invoke, *shlex.split(command))
        assert (done.returncode, identifiers[number] in done.stdout) == (0, True), done.stderr
    shown = (await asyncio.to_thread(invoke, "keys", "show", "s", "--config", str(config))).stdout
    assert f"oncegate commands show {identifiers[-1]} --config {shlex.quote(str(config))}" in " ".join(shown.split())


async def test_a_record_that_can_not_be_read_hides_no_other(redis: RedisServer, where: list[str]) -> None:
    cache = RedisCache.from_url(redis.url, timeout=PATIENCE)
    for state, caller in ((State.SUCCEEDED, b"alice"), (State.UNKNOWN, b"bob")):
        fields: dict[str, Any] = {"fingerprint": b"f" * 16, "attempt": 1}
        outcome = Record(state, os.urandom(16), **fields)
        await cache.complete(record_key(where[-1], "k", [caller]), outcome, ttl_ms=600_000)
    await cache.close()
    damaged = record_key(where[-1], "k", [b"bob"])
    redis.command("SET", damaged, "nonsense", "EX", "600")
    shown = await asyncio.to_thread(invoke, "keys", "show", "k", "--json", *where)
    assert sorted(each["state"] for each in json.loads(shown.stdout)["records"]) == ["succeeded", "unreadable"]
    shown = await asyncio.to_thread(invoke, "keys", "show", "k", *where)
    assert "unreadable: damaged" in shown.stdout
    alone = await asyncio.to_thread(invoke, "keys", "show", "--record", record_id(damaged), *where)
    assert (alone.returncode, len(alone.stderr.splitlines())) == (1, 1)


@pytest.mark.parametrize("instant", [999999999999999, 253402300800000, 253402300799999, -1, -999999999999999, 2**62])
async def test_odd_instants_of_records_hide_nothing_else(redis: RedisServer, where: list[str], instant: int) -> None:
    """Of an attempt's begin anybody's bytes are believed, since it decides nothing: it may be of no year that can be written."""
    key, trace = record_key(where[-1], "k", None), Trace(begun_at_ms=instant)
    late = StoredResponse(201, (), b"{}", 253402300799999)
    for state, response, took in (
        (State.UNKNOWN, None, None),
        (State.UNKNOWN, None, instant),
        (State.FAILED, late, instant),
        (State.SUCCEEDED, late._replace(completed_at_ms=0), instant),
    ):
        record = Record(state, b"t" * 16, b"f" * 16, 1, response, trace=replace(trace, took_ms=took))
        redis.command("SET", key, encode(record), "EX", "600")
        for arguments in (["list"], ["show", "--record", record_id(key)], ["show", "k"]):
            shown = await asyncio.to_thread(invoke, "keys", *arguments, *where)
            assert (shown.returncode, shown.stderr) == (0, "")
            assert state.value in shown.stdout
        shown = await asyncio.to_thread(invoke, "keys", "show", "k", "--json", *where)
        (as_json,) = json.loads(shown.stdout)["records"]
        assert as_json["ended_at"] == ("9999-12-31T23:59:59.999+00:00" if response is late else None)


def record_as_json(**changes: object) -> dict[str, object]:
    record: dict[str, object] = {"id": RECORD, "state": "failed", "attempt": 2, "lapsed": False, "began_at": None}
    record |= {"ended_at": "2026-01-01T00:00:00.000+00:00", "took": 1.5, "gateway": None, "note": None, "status": 500}
    return record | {"lease_left": None, "expires_in": 30.0, "found": None, "response": None} | changes


def test_what_comes_from_elsewhere_does_not_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    response = {"status": 500, "headers": [], "body": "\x1b]0;owned\x07[red]no markup[/red]"}
    print_records({"records": [record_as_json(response=response, note="\x1b[2J", gateway="[blink]\x9b")]})
    print_list({"records": [record_as_json(gateway="[/]\x1b[2J")], "cursor": ""})
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\x9b" not in shown
    assert "[red]no markup[/red]" in shown
    assert "[blink]" in shown


@pytest.mark.parametrize("state", ["in-flight", "succeeded", "failed", "unknown"])
def test_every_state_is_told_in_words(capsys: pytest.CaptureFixture[str], state: str) -> None:
    lease = -30.0 if state == "unknown" else 12.0 if state == "in-flight" else None
    print_records(
        {"records": [record_as_json(state=state, lapsed=state == "unknown", lease_left=lease, ended_at=None)]}
    )
    shown = capsys.readouterr().out
    assert state in shown
    assert "a retry" in shown
    assert ("oncegate keys resolve" in shown) == (state == "unknown")


@pytest.mark.parametrize("state", ["succeeded", "unknown"])
def test_a_submission_is_called_one(capsys: pytest.CaptureFixture[str], state: str) -> None:
    print_records({"records": [record_as_json(state=state, submission=True)]})
    shown = capsys.readouterr().out
    assert f"oncegate commands show {RECORD}" in shown
    assert ("accepted anew" in shown) == (state == "unknown")
    assert "oncegate keys resolve" not in shown, "nobody has to"


def test_a_record_that_can_not_be_read_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    print_list({"records": [{"id": RECORD, "state": "unreadable"}, record_as_json()], "cursor": "17"})
    shown = capsys.readouterr().out
    assert "unreadable" in shown
    assert "--cursor 17" in shown
