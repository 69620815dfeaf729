"""``processes/``, ``cache/`` and ``settings/``: who is up, how the cache stands, which settings are in effect and whence.

Rules of docs/contract.md: R11.44, R11.45, R11.46. What real processes do: tests/system/test_processes.py.
"""

import asyncio
import json
import logging
import os
import pickle
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from oncegate.app.operators import heartbeats
from oncegate.app.operators.heartbeats import MOST_ROWS, TTL_MS, Heartbeat, processes, shortened
from oncegate.app.operators.readiness import Readiness
from oncegate.app.operators.standing import Standing
from oncegate.app.reload.changes import in_effect
from oncegate.app.settings.admin_tokens import AdminToken, new_token
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import load
from oncegate.app.settings.shown.effective import listing
from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.store import Cache, Described, KeepsProcesses
from testing.command_line import invoke
from testing.served import served
from testing.servers import RedisServer
from testing.waiting import until
from tests.app.described import as_described

ALICE = new_token()
TOKENS = (AdminToken.of("alice", ALICE, writes=False).setting(),)
HOSTILE = '"><script>alert(1)</script>'


def keeping(cache: Cache) -> KeepsProcesses:
    assert isinstance(cache, KeepsProcesses)
    return cache


async def get(client: httpx.AsyncClient, path: str, status: int = 200, token: str = ALICE) -> Any:
    answer = await client.get(f"/_oncegate/{path}/", headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == status, answer.text
    return as_described(answer).json()


def recent(*rows: tuple[str, str, int]) -> dict[str, Any]:
    """What has been decided, as `RecentDecisions.listing` has it."""
    listed = [{"route": route, "decision": decision, "mode": "enforced", "count": n} for route, decision, n in rows]
    return {"seconds": 300.0, "decisions": listed}


@asynccontextmanager
async def beating(cache: Cache, name: str, namespace: str = "up", **entry: Any) -> AsyncIterator[Heartbeat]:
    """A process that is up."""

    async def as_of_now() -> dict[str, Any]:
        return {"kind": "gateway", "gateway": name, "configuration": "c0ffee", **entry}

    heartbeat = Heartbeat(cache, namespace, name, as_of_now)
    heartbeat.start()
    await until(lambda: is_up(cache, name, namespace))
    yield heartbeat
    await heartbeat.stop()


async def is_up(cache: Cache, name: str, namespace: str = "up") -> bool:
    return name in [each["name"] for each in (await processes(keeping(cache), namespace))["processes"]]


async def test_who_is_up_is_listed_in_each_cache_until_it_stops(cache: Cache) -> None:
    namespace = f"up-{os.urandom(4).hex()}"
    async with (
        beating(cache, "h/1", namespace, decisions=shortened(recent(("/a", "first", 3), ("/a", "replayed", 1)))),
        beating(cache, "h/2", namespace, decisions=shortened(recent(("/a", "first", 4), ("/b", "first", 5)))),
        beating(cache, "w/3-x", namespace, kind="worker", gateway="w/3-x", reads="commands as commands", version="9"),
    ):
        found = await processes(keeping(cache), namespace)
        assert [(each["name"], each["kind"]) for each in found["processes"]] == [
            ("h/1", "gateway"),
            ("h/2", "gateway"),
            ("w/3-x", "worker"),
        ]
        assert [(each["route"], each["decision"], each["count"]) for each in found["decisions"]] == [
            ("/a", "first", 7),
            ("/b", "first", 5),
            ("/a", "replayed", 1),
        ]
        assert (found["decisions_of"], found["complete"]) == (["h/1", "h/2"], True)
        assert found["differences"] == []  # of one kind each
        first = found["processes"][0]
        assert 0 <= first["silent_for"] <= TTL_MS / 1000
        assert first["started"] <= first["last_seen"]
    assert (await processes(keeping(cache), namespace))["processes"] == []


async def test_it_is_kept_again_before_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (heartbeats.PERIOD, TTL_MS) == (10, 30_000), "as docs say; one may fail"
    monkeypatch.setattr(heartbeats, "PERIOD", 0.01)
    kept: list[bytes] = []

    class Noting(MemoryCache):
        __slots__ = ()

        async def keep_process(self, namespace: str, name: str, entry: bytes, *, ttl_ms: int) -> None:
            kept.append(entry)
            await super().keep_process(namespace, name, entry, ttl_ms=ttl_ms)

    cache = Noting()
    async with beating(cache, "h/1") as heartbeat:
        await until(lambda: len(kept) > 3)
        await heartbeat.stop()
        count = len(kept)
        await asyncio.sleep(0.05)
        assert len(kept) == count
        assert not await is_up(cache, "h/1")


async def test_where_it_can_t_be_kept_that_is_logged_once_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeats, "PERIOD", 0.01)
    tries = 0

    class Away(MemoryCache):
        __slots__ = ()

        async def keep_process(self, namespace: str, name: str, entry: bytes, *, ttl_ms: int) -> None:
            nonlocal tries
            tries += 1
            if tries < 6:
                raise CacheUnavailable("it is away")
            await super().keep_process(namespace, name, entry, ttl_ms=ttl_ms)

        async def forget_process(self, namespace: str, name: str) -> None:
            raise CacheUnavailable("it is away")

    caplog.set_level(logging.INFO, "oncegate.operators")
    async with beating(Away(), "h/1"):
        assert tries >= 6
    assert caplog.text.count("that this process is up can't be kept, and others don't see it: it is away") == 1


async def test_a_stop_does_not_wait_for_a_cache_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "STOP_SECONDS", 0.05)

    class Stuck(MemoryCache):
        __slots__ = ()

        async def forget_process(self, namespace: str, name: str) -> None:
            await asyncio.Event().wait()

    async with asyncio.timeout(60), beating(Stuck(), "h/1"):
        pass


async def test_damaged_entries_hide_no_others_and_long_ones_are_cut() -> None:
    cache = MemoryCache()
    good = {"name": "h/1", "kind": "gateway", "gateway": "h/1", "started": 1, "ttl": TTL_MS}
    wrong: list[bytes] = [b"", b"\xff", b"[]", b"{}", b"1"]
    wrong += [orjson.dumps(good | each) for each in ({"ttl": "x"}, {"ttl": 0}, {"started": None}, {"name": ""})]
    wrong += [
        orjson.dumps(good | {"decisions": each})
        for each in (1, {"rows": [1]}, {"rows": [["a", "b", "c", "d"]], "more": 0})
    ]
    for number, entry in enumerate(wrong):
        await cache.keep_process("up", f"odd/{number}", entry, ttl_ms=TTL_MS)
    await cache.keep_process("up", "h/1", orjson.dumps(good | {"build": "x" * 5000}), ttl_ms=TTL_MS)
    (found,) = (await processes(cache, "up"))["processes"]
    assert (found["name"], len(found["build"])) == ("h/1", 200)


async def test_a_count_that_can_t_be_one_hides_nothing() -> None:
    cache = MemoryCache()
    for number in range(3):
        decided = b'{"rows": [["/a", "first", "enforced", 1e300]], "more": false}'
        entry = b'{"name": "h/%d", "started": 1, "ttl": 30000, "decisions": %b}' % (number, decided)
        await cache.keep_process("up", f"h/{number}", entry, ttl_ms=TTL_MS)
    found = await processes(cache, "up")
    assert len(found["processes"]) == 3
    assert orjson.loads(orjson.dumps(found["decisions"]))[0]["count"] > 2**53


async def test_a_fault_of_a_cache_of_one_s_own_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeats, "PERIOD", 0.01)
    tries = 0

    class Faulty(MemoryCache):
        __slots__ = ()

        async def keep_process(self, namespace: str, name: str, entry: bytes, *, ttl_ms: int) -> None:
            nonlocal tries
            tries += 1
            if tries < 6:
                raise RuntimeError("a fault")
            await super().keep_process(namespace, name, entry, ttl_ms=ttl_ms)

    async with beating(Faulty(), "h/1"):
        assert tries >= 6
    assert caplog.text.count("that this process is up can't be kept") == 1


async def test_of_many_routes_the_most_frequent_are_kept_and_it_says_so() -> None:
    cache = MemoryCache()
    rows = [(f"/{number}", "first", 1000 - number) for number in range(MOST_ROWS + 1)]
    async with beating(cache, "h/1", decisions=shortened(recent(*rows))):
        found = await processes(cache, "up")
    assert (len(found["decisions"]), found["complete"]) == (MOST_ROWS, False)


async def test_what_differs_among_those_of_one_kind_is_said() -> None:
    cache = MemoryCache()
    async with (
        beating(cache, "h/1"),
        beating(cache, "h/2"),
        beating(cache, "h/3", configuration="beef"),
        beating(cache, "w/4", kind="worker", configuration="else", version="0.0.1"),
    ):
        found = await processes(cache, "up")
        assert found["differences"] == ["gateways run 2 configurations: beef in h/3; c0ffee in h/1, h/2"]
        async with beating(cache, "w/5", kind="worker", configuration="else", version="0.0.2"):
            lines = (await processes(cache, "up"))["differences"]
    assert lines[1:] == ["workers run 2 versions: 0.0.1 in w/4; 0.0.2 in w/5"]


async def test_the_pages_are_for_operators() -> None:
    async with served("http://127.0.0.1:1", admin_tokens=TOKENS) as (client, gateway):
        async with beating(gateway.lasting.cache, HOSTILE, "default"):
            (found,) = (await get(client, "processes"))["processes"]
        assert found["name"] == HOSTILE
        for path in ("processes", "cache", "settings"):
            await get(client, path, 401, "wrong")
    async with served("http://127.0.0.1:1") as (client, _):
        for path in ("processes", "cache", "settings"):
            await get(client, path, 404)


async def test_the_cache_says_how_it_stands_as_check_does(redis_server: RedisServer) -> None:
    async with served("http://127.0.0.1:1", admin_tokens=TOKENS) as (client, _):
        found = await get(client, "cache")
        assert (found["kind"], found["state"], found["failed"]) == ("memory", "available", None)
        assert found["parts"][0]["records"] == 0
    with RedisServer() as server:
        server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        async with served("http://127.0.0.1:1", admin_tokens=TOKENS, cache=server.url, cache_timeout=10) as (
            client,
            gateway,
        ):
            found = await get(client, "cache")
            assert (found["kind"], found["state"], found["parts"][0]["policy"]) == ("redis", "available", "allkeys-lru")
            assert found["advice"] == await gateway.lasting.cache.check()
            assert any("maxmemory-policy is allkeys-lru" in line for line in found["advice"])
            server.stop()
            found = await get(client, "cache")
            assert (found["state"], found["parts"]) == ("unavailable", [])
            await get(client, "processes", 503)
            server.start()


async def test_a_cache_that_stands_still_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncegate.app.operators.standing.SECONDS", 0.05)

    async def stands_still(*_: Any) -> Described:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(MemoryCache, "describe", stands_still)
    monkeypatch.setattr(MemoryCache, "processes", stands_still)
    async with served("http://127.0.0.1:1", admin_tokens=TOKENS) as (client, _):
        found = await get(client, "cache")
        assert (found["state"], found["failed"]) == ("unavailable", "it did not answer within 0.05 s")
        await get(client, "processes", 503)


SECRET = "s3cr3t-" + "x" * 40


async def test_each_setting_is_shown_with_where_it_came_from_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        f'upstream = "http://127.0.0.1:1"\ncache = "redis://user:{SECRET}@127.0.0.1/0"\nadmin_tokens = ["{TOKENS[0]}"]\n'
        '[[routes]]\npath = "/a"\nstatus = {402 = "success"}\n'
    )
    given = {"ONCEGATE_SECRET": SECRET, "ONCEGATE_DRAIN_DELAY": "0.5"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = pickle.loads(pickle.dumps(load({"port": "0"}, str(file))))  # as a parent sends them to its workers
    cache = MemoryCache()
    standing = Standing(settings, cache, Readiness(probe=cache.check, cache=cache))
    shown = (await standing.of_settings())["settings"]
    rows = {each["name"]: each for each in orjson.loads(orjson.dumps(shown))}
    assert (rows["port"]["value"], rows["port"]["source"]) == (0, "command line")
    assert (rows["cache"]["value"], rows["cache"]["source"]) == (
        "redis://127.0.0.1/0",
        f"{file}, line 2 (credentials and options left out)",
    )
    for name, source in (("secret", "ONCEGATE_SECRET"), ("admin_tokens", f"{file}, line 3")):
        assert (rows[name]["value"], rows[name]["source"], rows[name]["secret"]) == (None, source, True)
    assert rows["routes.0.status"]["value"] == {"402": "success"}
    assert rows["drain_delay"]["source"] == "ONCEGATE_DRAIN_DELAY"
    assert (rows["host"]["source"], rows["host"]["secret"]) == ("default", False)
    assert SECRET not in str(rows)
    printed = invoke("config", "--config", str(file), "--port", "0", "--json", **given)
    assert json.loads(printed.stdout)["settings"] == list(rows.values())  # one road


async def test_the_command_shows_the_settings_of_a_gateway_that_runs() -> None:
    async with served("http://127.0.0.1:1", admin_tokens=TOKENS, drain_delay=0.25) as (client, _):
        rows = {each["name"]: each for each in (await get(client, "settings"))["settings"]}
        assert (rows["drain_delay"]["value"], rows["drain_delay"]["source"]) == (0.25, "the program that made them")
        url = ("--gateway", str(client.base_url))
        done = await asyncio.to_thread(invoke, "config", *url, ONCEGATE_ADMIN_TOKEN=ALICE)
        assert done.returncode == 0, done.stderr
        assert re.search(r"^drain_delay +0.25 +the program that made them *$", done.stdout, re.M)
        assert re.search(r"^admin_tokens +set, and left out ", done.stdout, re.M)
        assert re.search(r"^jwt +not set ", done.stdout, re.M)
        wrong = await asyncio.to_thread(invoke, "config", *url, "--port", "1", ONCEGATE_ADMIN_TOKEN=ALICE)
        assert (wrong.returncode, "excludes the other options" in wrong.stderr) == (2, True)


def test_what_waits_for_a_restart_keeps_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"

    def written(text: str) -> GatewaySettings:
        file.write_text('upstream = "http://127.0.0.1:1"\n' + text)
        return load({}, str(file))

    first = written("workers = 1\nnamespace = 'a'\n")
    second, _ = in_effect(first, written("\n\nnamespace = 'b'\ndrain_delay = 1\n"))
    third, _ = in_effect(second, written("\n\n\n\nnamespace = 'c'\ndrain_delay = 2\n"))
    for settings, line in ((second, 5), (third, 7)):
        rows = {each["name"]: each for each in listing(settings)}
        assert (rows["namespace"]["value"], rows["namespace"]["source"]) == ("a", f"{file}, line 3")
        assert rows["drain_delay"]["source"] == f"{file}, line {line}"


def test_settings_are_the_same_wherever_their_values_came_from() -> None:
    assert load({"upstream": "http://a"}) == GatewaySettings(upstream="http://a")
    assert load({"upstream": "http://a"}) != GatewaySettings(upstream="http://b")


def test_the_command_needs_a_cache_that_others_share() -> None:
    done = invoke("processes")
    assert (done.returncode, "--gateway URL" in done.stderr) == (2, True)


async def test_the_command_prints_who_is_up(redis_server: RedisServer) -> None:
    cache, namespace = RedisCache.from_url(redis_server.url, timeout=30), f"up-{os.urandom(4).hex()}"
    where = ("--cache", redis_server.url, "--namespace", namespace)
    async with (
        beating(cache, "h/1", namespace, decisions=shortened(recent(("/a", "first", 3)))),
        beating(cache, "h/2", namespace, configuration="beef"),
    ):
        done = await asyncio.to_thread(invoke, "processes", *where)
    assert done.returncode == 0
    assert "!! gateways run 2 configurations: beef in h/2; c0ffee in h/1" in done.stdout
    assert "in the last 5 min, by the gateways of h/1" in done.stdout
    assert "None is up." in (await asyncio.to_thread(invoke, "processes", *where)).stdout
    await cache.close()
