"""Which gateways and workers are up, by their entries in the cache: real processes, of which one stops and one is killed.

Rules of docs/contract.md: R11.44, R11.45, R11.46.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx

from oncegate.app.operators.heartbeats import PERIOD, TTL_MS
from oncegate.app.settings.admin_tokens import AdminToken
from testing.caller import Caller, fresh_key
from testing.command_line import forked, invoke
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer, free_port
from testing.waiting import until
from tests.system.conftest import Shared, Start
from tests.system.test_console import log_in, open_page
from tests.worker.test_metrics import values

TOKEN = "oncegate-a-token-that-changes"
TOKENS = [AdminToken.of("will", TOKEN).setting()]
LATER = {"path": "/later", "mode": "async", "on_missing_key": "reject"}
LONG = 2 * (TTL_MS / 1000) + DEADLINE
"""Seconds within which an entry that nobody keeps is gone, on any machine."""


async def over_http(gateway: Gateway, path: str) -> Any:
    async with httpx.AsyncClient(timeout=DEADLINE, trust_env=False, verify=False) as client:
        answer = await client.get(f"{gateway.url}/_oncegate/{path}", headers={"authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def by_command(*arguments: str) -> Any:
    """What a command prints as JSON."""
    done = await asyncio.to_thread(
        invoke, *arguments, "--json", ONCEGATE_ADMIN_TOKEN=TOKEN, ONCEGATE_CACHE_TIMEOUT="10"
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def names(found: dict[str, Any]) -> list[str]:
    return sorted(each["name"] for each in found["processes"])


def numbers(found: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    return {(row["route"], row["decision"]): row["count"] for row in found}


async def up(gateway: Gateway, count: int, within: float = DEADLINE) -> dict[str, Any]:
    """What is listed once there are ``count`` processes."""
    found: dict[str, Any] = {}

    async def are_there() -> bool:
        found.update(await over_http(gateway, "processes/"))
        return len(found["processes"]) == count

    await until(are_there, f"{count} processes are up", within)
    return found


def figure(page: str, name: str) -> str:
    """The figure under a name on a page."""
    found = re.search(rf">{re.escape(name)}</a></dt><dd>([^<]*)</dd>", page)
    assert found is not None, page
    return found[1]


async def metric(gateway: Gateway, route: str, decision: str) -> float:
    async with httpx.AsyncClient(timeout=DEADLINE, trust_env=False, verify=False) as client:
        text = (await client.get(f"{gateway.url}/_oncegate/metrics")).text
    sample = re.compile(
        rf'oncegate_requests_total{{(?=.*route="{re.escape(route)}")(?=.*decision="{decision}").*}} (\S+)'
    )
    return sum(float(found[1]) for line in text.splitlines() if (found := sample.fullmatch(line)))


async def test_two_gateways_and_a_worker_are_seen_and_pages_agree_with_commands(
    start: Start, ledger: Ledger, redis_server: RedisServer, caller: Caller
) -> None:
    namespace = fresh_key()
    given = {"namespace": namespace, "admin_tokens": TOKENS, "routes": [LATER, {"path": "/paid"}], "cache_timeout": 10}
    one, other = (start(ledger.url, redis_server.url, **given).ready() for _ in range(2))
    where = ["--cache", redis_server.url, "--namespace", namespace]
    port = free_port()
    with forked("worker", *where, "--forward", ledger.url, "--metrics-port", str(port)) as worker:
        found = await up(one, 3)
        kinds = {each["kind"]: each for each in found["processes"]}
        assert [each["kind"] for each in found["processes"]] == ["gateway", "gateway", "worker"]
        assert kinds["worker"]["reads"] == "commands as commands"
        assert {each["name"].rpartition("/")[2] for each in found["processes"][:2]} == {str(one.pid), str(other.pid)}
        assert all(each["silent_for"] <= TTL_MS / 1000 for each in found["processes"])
        assert found["differences"] == []  # a worker's settings are its own
        keys = [fresh_key() for _ in range(4)]
        for key in keys[2:]:
            ledger.answer(key, Reply(422))
        for gateway, key in ((one, keys[0]), (one, keys[0]), (other, keys[1]), (other, keys[0])):
            assert (await caller.post(gateway, key, "/paid")).status_code == 201
        for gateway, key in ((one, keys[2]), (other, keys[3])):
            assert (await caller.post(gateway, key, "/later")).status_code == 202

        async def are_all_counted() -> bool:
            nonlocal found
            found = await over_http(other, "processes/")
            return sum(numbers(found["decisions"]).values()) == 6

        await until(are_all_counted, "the last requests are in the entries", PERIOD + DEADLINE)
        # One road: the page, both commands, and what Prometheus gets.
        for source in (where, ["--gateway", one.url]):
            printed = await by_command("processes", *source)
            assert names(printed) == names(found)
            assert numbers(printed["decisions"]) == numbers(found["decisions"])
        own = [numbers((await over_http(each, "decisions/"))["decisions"]) for each in (one, other)]
        for (route, decision), count in numbers(found["decisions"]).items():
            assert sum(each.get((route, decision), 0) for each in own) == count
            assert await metric(one, route, decision) + await metric(other, route, decision) == count
        assert numbers(found["decisions"])[("/paid", "first")] == 2
        assert numbers(found["decisions"])[("/paid", "replayed")] == 2
        cookie, cookie_of_other = log_in(one), log_in(other)
        status, page = open_page(one, cookie)
        text = " ".join(re.sub(r"<[^>]*>", " ", page).split())
        assert status == 200
        assert all(each in text for each in (*names(found), *found["decisions_of"]))
        assert re.search(r"By all gateways that are up .* /paid 2 2 0 0 0 0 4 ", text)
        records = await by_command("keys", "list", *where)
        states = {each["state"] for each in records["records"]}
        listing = open_page(one, cookie, "/records")[1]
        assert all(each["id"] in listing for each in records["records"])
        assert states <= {"succeeded", "in-flight"}

        async def are_given_up() -> bool:
            counts: dict[str, int] = (await by_command("commands", "list", *where))["counts"]
            return counts["dead"] == 2

        await until(are_given_up, "the commands that their service refuses are dead letters")
        assert await asyncio.to_thread(values, port, "oncegate_dead_letters_total", "reason") == {"rejected": 2}
        assert figure(open_page(one, cookie)[1], "Dead letters of commands") == "2"
        letters = (await by_command("commands", "list", *where))["dead_letters"]
        assert [each["reason"] for each in letters] == ["rejected", "rejected"]
        (group,) = (await by_command("commands", "errors", *where))["groups"]
        assert (group["reason"], group["count"]) == ("rejected", 2)
        shown_by_error = open_page(other, cookie_of_other, f"/commands/error?stream=commands&group={group['group']}")[1]
        assert all(each[name] in shown_by_error for each in letters for name in ("id", "command"))
        streams = await by_command("commands", "streams", *where)
        shown = (await over_http(one, "streams/"))["streams"]
        assert [each["stream"] for each in streams["streams"]] == [each["stream"] for each in shown] == ["commands"]
        assert [each["dead"] for each in streams["streams"]] == [each["dead"] for each in shown] == [2]
        assert await asyncio.to_thread(worker.stop) == 0
        assert len((await over_http(one, "processes/"))["processes"]) == 2  # at once
    other.terminate()
    assert other.exit_code() == 0
    assert names(await over_http(one, "processes/")) == [each for each in names(found) if each.endswith(f"/{one.pid}")]


async def test_a_worker_that_was_killed_is_seen_until_its_time_is_over(
    start: Start, ledger: Ledger, redis_server: RedisServer
) -> None:
    """Its end is as Redis has it: 30 s after it was last seen, which nobody puts off any more."""
    namespace = fresh_key()
    gateway = start(ledger.url, redis_server.url, namespace=namespace, admin_tokens=TOKENS, cache_timeout=10).ready()
    where = ["--cache", redis_server.url, "--namespace", namespace]
    ends = f"{{{namespace}:processes}}:ends"

    def now_ms() -> int:
        seconds, micros = map(int, redis_server.command("TIME"))
        return seconds * 1000 + micros // 1000

    with forked("worker", *where, "--forward", ledger.url) as worker:
        name = next(each["name"] for each in (await up(gateway, 2))["processes"] if each["kind"] == "worker")
        worker.process.kill()
        worker.process.wait()
    end = int(redis_server.command("ZSCORE", ends, name))
    assert end - now_ms() <= 30_000
    assert name in names(await by_command("processes", *where)), "nobody knows yet that it is gone"
    cookie = log_in(gateway)
    assert name in open_page(gateway, cookie)[1]
    redis_server.command("ZADD", ends, "XX", str(now_ms()), name)  # as if that time had come
    assert name not in names(await by_command("processes", *where))
    assert name not in open_page(gateway, cookie)[1]


async def test_one_that_was_killed_goes_within_its_time_to_live(start: Start, ledger: Ledger, shared: Shared) -> None:
    given = {"namespace": fresh_key(), "admin_tokens": TOKENS, "cache_timeout": 10}
    one = start(ledger.url, shared.url, **given).ready()
    other = start(ledger.url, shared.url, drain_delay=0.5, workers=2, **given).ready()
    found = await up(one, 3)
    assert len({each["gateway"] for each in found["processes"]}) == 2
    assert len(found["decisions_of"]) == 2  # what two workers count is counted once
    (line,) = found["differences"]
    assert line.startswith("gateways run 2 configurations: ")
    other.end()
    found = await up(one, 1, LONG)
    assert [each["name"].endswith(f"/{one.pid}") for each in found["processes"]] == [True]
    assert found["differences"] == []


async def test_the_entry_has_the_configuration_of_a_reload(
    start: Start, ledger: Ledger, redis_server: RedisServer, tmp_path: Path
) -> None:
    config = tmp_path / "oncegate.toml"
    config.write_text("drain_delay = 0\n")
    gateway = start(
        ledger.url, redis_server.url, namespace=fresh_key(), admin_tokens=TOKENS, workers=2, config=str(config)
    ).ready()
    before = await up(gateway, 2)
    config.write_text("drain_delay = 0.25\n")
    async with httpx.AsyncClient(timeout=DEADLINE, trust_env=False, verify=False) as client:
        done = await client.post(f"{gateway.url}/_oncegate/reload/", headers={"authorization": f"Bearer {TOKEN}"})
    digest = done.json()["configuration"]

    async def is_seen() -> bool:
        seen = {each["configuration"] for each in (await over_http(gateway, "processes/"))["processes"]}
        return seen == {digest}

    await until(is_seen, "both entries have it", PERIOD + DEADLINE)
    assert digest not in {each["configuration"] for each in before["processes"]}
    rows = {each["name"]: each for each in (await over_http(gateway, "settings/"))["settings"]}
    assert (rows["drain_delay"]["value"], rows["drain_delay"]["source"]) == (0.25, f"{config}, line 1")
    assert rows["workers"]["source"] == "command line"
    assert rows["namespace"]["source"] == "ONCEGATE_NAMESPACE"


async def test_while_the_cache_is_away_nothing_else_suffers_and_pages_say_so(
    start: Start, ledger: Ledger, caller: Caller
) -> None:
    with RedisServer(persist=True) as server:
        gateway = start(ledger.url, server.url, namespace=fresh_key(), admin_tokens=TOKENS, cache_timeout=0.5).ready()
        await up(gateway, 1)
        cookie = log_in(gateway)
        server.stop()
        found = await over_http(gateway, "cache/")
        assert (found["state"], found["parts"]) == ("unavailable", [])
        assert found["failed"]
        status, page = open_page(gateway, cookie)
        assert status == 200
        assert "How the cache stands is not known" in page
        assert "Which are up is not known" in page
        assert (await caller.keyless(gateway)).status_code == 201
        gateway.terminate()
        assert gateway.exit_code() == 0
    assert gateway.text().count("that this process is up can't be kept") <= 1
